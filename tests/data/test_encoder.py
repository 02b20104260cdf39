"""An encoder says what a row is; as a file it comes from anybody, and is refused in a sentence unless it is whole."""

import ast
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data import csv as csv_files
from tacit.data import encoder
from tacit.data.encoder import Category, Column, Encoder, Number
from tacit.data.sources import csv
from tacit.data.texts import Table
from tacit.engine.queries import histograms_of
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment

COLUMNS = (
    Number("age", limits=(0.0, 120.0)),
    Number("chol", limits=(0.0, 600.0), missing=240.0),
    Category("sex", values=("f", "m", "missing"), missing="missing"),
    Number("rate", missing="drop"),
)
WHOLE = Encoder(("no", "yes"), (6,), COLUMNS, label="ill", header=("age", "chol", "sex", "rate", "ill"))


def changed(**parts):
    return json.dumps(json.loads(encoder.text(WHOLE)) | parts)


def column(**parts):
    first = json.loads(encoder.text(WHOLE))["columns"][0] | parts
    return changed(columns=[first], shape=[1])


def category(values):
    return changed(columns=[{"type": "category", "name": "sex", "missing": "refuse", "values": values}], shape=[2])


def test_an_encoder_comes_back_from_its_file_as_it_was():
    assert encoder.read(encoder.text(WHOLE)) == WHOLE


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_every_range_comes_back_to_the_last_bit(low, high):
    if low < high:
        ranged = Encoder(("a", "b"), (1,), (Number("x", limits=(low, high)),))
        assert encoder.read(encoder.text(ranged)) == ranged


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not valid JSON"),
        ("[]", "no JSON object"),
        ("{" * 100_000, "brackets"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "not valid JSON"),
        ("{}", "does not have exactly the parts"),
        (changed(more=1), "does not have exactly the parts"),
        (changed(format="tacit encoder 4"), "written by another version"),
        (changed(classes=["no"]), "at least 2 classes"),
        (changed(classes=["no", "no"]), "each once"),
        (changed(classes=["no", 1]), "A class is not a printable text"),
        (changed(classes=["no", "y\u001b[2Jes"]), "A class is not a printable text"),
        (changed(classes=["no", "y" * 501]), "A class is not a printable text"),
        (changed(shape=[8]), "make 6 features, and its shape is"),
        (changed(shape=[True]), "A side of a row is true"),
        (changed(columns=[], shape=[10**6] * 8), "1 to 16777216 numbers"),
        (changed(shape=[]), "make 6 features, and its shape is"),
        (changed(columns=[], shape=[1] * 9), "The shape of a row is not a list of at most 8"),
        (changed(columns={"a": 1}), "The list of columns is not a list"),
        (changed(label="age"), "each of a name of its own"),
        (changed(divide_by=0), "above zero"),
        (changed(divide_by=10**400), "not a finite number"),
        (encoder.text(WHOLE).replace("600.0", "1e999"), "not a finite number"),
        (encoder.text(WHOLE).replace("600.0", "NaN"), "not valid JSON"),
        (column(limits=[5, 5]), r"range \[low, high\]"),
        (column(limits=[5]), "two ends"),
        (column(limits=["0", 1]), "not a finite number"),
        (column(values=["a", "b"]), "does not have exactly the parts"),
        (category(["1", "1.0"]), "1 and 1.0 are one value"),
        (category([]), "must have values"),
        (column(type="nonsense"), "no type that is known"),
        (column(type=[]), "no type that is known"),
        (column(missing="mean"), 'to be a number, "drop" or "refuse"'),
        (column(missing=None), "not a finite number"),
        (column(code="os:system"), "does not have exactly the parts"),
    ],
)
def test_a_crafted_encoder_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        encoder.read(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@given(st.text(max_size=200) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_whatever_is_sent_is_refused_and_nothing_else_happens(text):
    with pytest.raises(BadInput):
        encoder.read(text)


@dataclass(frozen=True)
class Yes(Column):
    """One more type, as somebody would add it: a class, and an option of [data] (`Wider`)."""

    kind = "yes"
    key = "flags"
    example = "flags = {{{} = true}} for a yes or no"
    width = 1

    def validate(self):
        pass

    @classmethod
    def declared(cls, name, source, missing):
        return cls(name, missing)

    def block(self, table, absent, *, trained):
        found = np.array([cell == "yes" for cell in table.columns[self.name]])
        return found[:, None].astype(np.float32), encoder.TO_OTHER, np.zeros(len(found), bool)

    def features(self, value, *, key):
        return [float(value == "yes")]


@dataclass(frozen=True, kw_only=True)
class Wider(csv):
    flags: dict[str, bool] = field(default_factory=dict)


@pytest.fixture
def wider(monkeypatch):
    for room in (encoder, csv_files):
        monkeypatch.setattr(room, "TYPES", (*encoder.TYPES, Yes))
    return partial(Wider, classes=("0", "1"), label="ill", test_share=0.0)


def test_another_type_of_column_is_one_class_and_one_option(wider):
    said = wider(path="a.csv", numeric={"age": (0, 120)}, flags={"smokes": True}, categorical={"sex": ("f", "m")})
    made = tuple(encoder.column_of(name, said) for name in ("smokes", "age", "sex"))
    assert [type(one).kind for one in made] == ["yes", "number", "category"]
    rows = Table("a.csv", [2, 3], {"smokes": ["yes", "no"], "age": ["60", "30"], "sex": ["f", "m"]})
    assert encoder.encode(rows, made).x.tolist() == [[1, 0.5, 1, 0], [0, 0.25, 0, 1]]
    whole = Encoder(("a", "b"), (4,), made)
    assert encoder.read(encoder.text(whole)) == whole


def test_a_column_of_another_type_has_one_role_and_must_be_there_as_any_other(wider, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("age,smokes,ill\n60,yes,1\n150,no,0\n30,yes,1\n", "utf-8")
    ages = {"age": (0, 120)}
    found = wider(path=str(rows), numeric=ages, flags={"smokes": True}).load(seed=0)
    assert found.x.tolist() == [[0.5, 1.0], [1.0, 0.0], [0.25, 1.0]]
    assert "clamped 1 value of 'age' into its declared range [0, 120]" in found.notes
    with pytest.raises(BadInput, match=r"two roles in .*, numeric and categorical and flags"):
        wider(path=str(rows), numeric=ages, flags={"age": True})
    with pytest.raises(BadInput, match=r"data.columns leaves out 'smokes'"):
        wider(path=str(rows), numeric=ages, flags={"smokes": True}, columns=("age",))
    with pytest.raises(BadData, match=r"no column 'smoke', which data.flags names. Did you mean 'smokes'\?"):
        wider(path=str(rows), numeric=ages, flags={"smoke": True}).load(seed=0)
    with pytest.raises(BadData, match=r"data.flags do not say how to read 'smokes'.* or flags = \{smokes = true\} for"):
        wider(path=str(rows), numeric=ages).load(seed=0)
    said = {"data": {"name": "csv", "path": str(rows), "classes": ["0", "1"]}}
    with pytest.raises(BadInput, match="Column 'smokes' is of the type 'yes', which has no histogram: leave it out"):
        histograms_of(Experiment.model_validate(said), found, ["smokes"])


def test_nobody_else_asks_a_column_for_its_type():
    types, room = {kind.__name__ for kind in encoder.TYPES}, Path(encoder.__file__)
    asking = [
        f"{path}:{node.lineno}"
        for path in sorted(room.parents[1].rglob("*.py"))
        if path != room
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == encoder.__name__
            and types & {n.name for n in node.names}
        )
        or (isinstance(node, ast.Attribute) and node.attr in types and ast.unparse(node.value) == "encoder")
    ]
    assert asking == []
