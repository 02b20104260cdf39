"""Sources and their options: what is no option, has another type or contradicts itself is refused before a row is read."""

from dataclasses import dataclass, field

import pytest

from tacit import plugin
from tacit.data.sources import ROOM, csv, identity, load, settings, source
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection

CSV = {"name": "csv", "path": "records.csv", "classes": ["no", "yes"]}


def test_every_file_in_the_room_is_a_source_of_its_name():
    names = plugin.names(ROOM)
    assert names == ["cifar10", "csv", "digits", "fashion-mnist", "mnist", "npz"]
    for name in names:
        files = {"path": "a", "classes": 2} if name in ("csv", "npz") else {}
        assert type(source(DataSection.model_validate({"name": name} | files))).__name__ == name.replace("-", "_")


def test_whole_numbers_may_name_classes_and_categories():
    made = source(DataSection.model_validate(CSV | {"classes": [0, 1], "categorical": {"ward": [1, 2]}}))
    assert (made.classes, made.categorical) == (("0", "1"), {"ward": ("1", "2")})
    assert source(DataSection.model_validate(CSV | {"classes": 3})).classes == 3


def test_options_count_with_their_types_and_defaults_whether_they_are_written_out_or_not():
    short = DataSection.model_validate(CSV | {"numeric": {"age": [0, 120]}, "missing": 0})
    long = DataSection.model_validate(
        CSV | {"numeric": {"age": [0.0, 120.0]}, "missing": 0.0, "test_share": 0.2, "header": []}
    )
    assert settings(short) == settings(long)
    assert isinstance(settings(short)["missing"], float)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "mnst"}, r"Expected data.name to be one of .*got 'mnst'. Did you mean 'mnist'\?"),
        ({"client": 3}, r"Unknown key 'data.client'. Did you mean 'data.clients'\?"),
        ({"numeric": {"age": [0, 1]}}, r"Unknown key 'data.numeric'"),
        ({"path": "somewhere"}, r"Unknown key 'data.path'"),
        ({"name": "mnist", "classes": ["a", "b"]}, r"Unknown key 'data.classes'"),
        ({"name": "npz", "path": "a.npz", "classes": 2, "client_column": "who"}, r"Unknown key 'data.client_column'"),
        (CSV | {"lable": "sick"}, r"Unknown key 'data.lable'. Did you mean 'data.label'\?"),
        ({"name": "mnist", "path": 3}, r"Expected data.path to be a text, got 3."),
        (
            CSV | {"test_share": "half"},
            r"Expected data.test_share to be a number of at least 0 and below 1, got 'half'.",
        ),
        (CSV | {"test_share": True}, r"Expected data.test_share to be a number of at least 0 and below 1, got true."),
        ({"name": "csv", "classes": 2}, r"Expected data.path to say where the csv data is"),
        ({"name": "csv", "path": "a.csv"}, r"Expected data.classes to declare the labels"),
        (CSV | {"classes": "all"}, r"Expected data.classes to declare the labels"),
        (CSV | {"classes": ["no", "no"]}, r"at least 2 labels, each once"),
        (CSV | {"classes": 1}, r"at least 2 labels"),
        (CSV | {"test_share": 1}, r"Expected data.test_share to be a number of at least 0 and below 1, got 1"),
        (CSV | {"numeric": {"age": [5, 5]}}, r"data.numeric.age = \[low, high\] with low < high, got \[5.0, 5.0\]"),
        (CSV | {"numeric": {"age": [0, float("inf")]}}, r"data.numeric.age to be a finite number"),
        (CSV | {"categorical": {"sex": []}}, r"data.categorical.sex to list its values"),
        (CSV | {"categorical": {"sex": ["f", "f"]}}, r"data.categorical.sex to list its values, each once"),
        (CSV | {"categorical": {"a": ["x"]}, "numeric": {"a": [0, 1]}}, r"Column 'a' has two roles"),
        (CSV | {"numeric": {"age": {"private": [9, 9]}}}, r"data.numeric.age = \[low, high\] with low < high"),
        (CSV | {"numeric": {"age": {}}}, r"Expected data.numeric to be"),
        (
            CSV | {"missing": "skip"},
            r'Expected data.missing to be "refuse", "drop" or a number, or a table .*got \'skip\'',
        ),
        (CSV | {"missing": float("nan")}, r"Expected data.missing to be a finite number"),
        (
            {"name": "npz", "path": "a.npz", "classes": 2, "divide_by": 0},
            r"Expected data.divide_by to be a number above 0, got 0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(values, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        source(DataSection.model_validate(values))
    assert "\n" not in str(refusal.value)


class Raising:
    def load(self, *, seed, progress=None):
        raise KeyError("flu")


class Other:
    def load(self, *, seed, progress=None):
        return [1, 2]


def nothing():
    return 3


@pytest.fixture
def here(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "some_sources", sys.modules[__name__])


def test_what_somebodys_source_raises_is_one_sentence_that_logs_do_not_repeat(here):
    with pytest.raises(BadData, match=r"'some_sources:Raising' cannot be read .*KeyError: 'flu'") as refusal:
        load(DataSection(name="some_sources:Raising"), seed=0)
    assert "flu" not in refusal.value.discreet


def test_what_gives_no_data_set_is_refused(here):
    with pytest.raises(BadInput, match=r"to give a tacit.data.dataset.Dataset, got a builtins.list"):
        load(DataSection(name="some_sources:Other"), seed=0)
    with pytest.raises(BadInput, match="to make a source with a method `load`, got 3"):
        load(DataSection(name="some_sources:nothing"), seed=0)


@dataclass(frozen=True, kw_only=True)
class tomorrow(csv):
    """The csv source with one more type of column, as somebody will add it."""

    dates: dict[str, tuple[str, str]] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    calendar: str | None = None


@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_a_new_type_of_column_changes_no_ledgers_identity_and_a_column_of_it_does(partition):
    said = {"path": "a.csv", "classes": ["no", "yes"], "numeric": {"age": [0, 120]}, "partition": partition}
    today = identity(DataSection.model_validate({"name": "csv", **said}))
    then = {"name": f"{__name__}:tomorrow", **said}
    assert identity(DataSection.model_validate(then)) | {"name": "csv"} == today
    assert identity(DataSection.model_validate(then | {"dates": {"born": ["1900-01-01", "2030-01-01"]}})) != today


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"path": "elsewhere.csv"}, True),
        ({"clients": 7}, True),
        ({"categorical": {}}, True),
        ({"numeric": {"age": [0, 100]}}, False),
        ({"categorical": {"sex": ["f", "m"]}}, False),
        ({"missing": "drop"}, False),
        ({"missing": {"age": 40}}, False),
        ({"header": ["age", "label"]}, False),
        ({"test_share": 0}, False),
        ({"held_out": 0.2}, False),
        ({"label": "ill"}, False),
        ({"client_column": "ward"}, False),
    ],
)
def test_a_ledger_belongs_to_one_way_of_reading_rows_wherever_they_lie(change, same):
    said = {"name": "csv", "path": "a.csv", "classes": 2, "numeric": {"age": [0, 120]}, "partition": "natural"}
    one, other = (identity(DataSection.model_validate(each)) for each in (said, said | change))
    assert (one == other) is same
