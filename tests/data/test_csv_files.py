"""csv files: what they become, and the file, line and column of what they must not hold."""

import numpy as np
import pytest
import torch

from tacit.data import texts
from tacit.data.sources import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection

RECORDS = """age,sex,weight,label,who
40,f,1.5,no,ann
60,m,2.5,yes,bob
200,f,-3,no,ann
20,m,0,yes,bob
"""
TEST = "label,weight,age,sex\nyes,1,20,f\n"
CLAMPED = "clamped 1 value of 'age' into its declared range [0, 80] (ann 1)"  # the 200


@pytest.fixture
def read(tmp_path):
    """Writes text as the records and reads it as a data set."""

    def from_text(text=RECORDS, test=TEST, **keys):
        (tmp_path / "records.csv").write_text(text)
        (tmp_path / "test.csv").write_text(test)
        keys = {
            "path": str(tmp_path / "records.csv"),
            "test_path": str(tmp_path / "test.csv"),
            "classes": ["no", "yes"],
            "client_column": "who",
            "numeric": {"age": [0, 80], "weight": "unscaled"},
            "categorical": {"sex": ["f", "m"]},
        } | keys
        return load(DataSection.model_validate({"name": "csv"} | keys), seed=0)

    return from_text


def test_columns_become_features_by_the_declared_ranges_and_values(read):
    data = read()
    assert data.x.tolist() == [[0.5, 1, 0, 1.5], [0.75, 0, 1, 2.5], [1, 1, 0, -3], [0.25, 0, 1, 0]]
    assert (data.x.dtype, data.y.tolist(), data.notes) == (torch.float32, [0, 1, 0, 1], (CLAMPED,))
    assert (data.client_names, data.client.tolist()) == (("ann", "bob"), [0, 1, 0, 1])
    assert data.test_x.tolist() == [[0.25, 1, 0, 1]]  # of a file that orders its columns otherwise and names no client


def test_one_row_does_not_change_the_features_of_another(read):
    changed = read(RECORDS.replace("200,f,-3", "1,m,9999"))
    assert torch.equal(changed.x[[0, 1, 3]], read().x[[0, 1, 3]])


def test_a_folder_holds_one_file_per_client(tmp_path):
    for name in ("site10", "site9"):
        (tmp_path / f"{name}.csv").write_text("a,label\n" + "".join(f"{k}.{len(name)},{k % 2}\n" for k in range(40)))
    data = load(DataSection(name="csv", path=str(tmp_path), classes=2, numeric="unscaled"), seed=0)
    assert data.client_names == ("site9", "site10")
    kept = np.bincount(data.client)
    assert data.client.tolist() == [0] * kept[0] + [1] * kept[1]
    assert min(kept) > 20
    assert len(data.test_y) + len(data.y) == 80


def test_blocks_join_to_the_same_data(read, monkeypatch):
    whole = read()
    monkeypatch.setattr(texts, "BLOCK_ROWS", 3)
    parts = read()
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.y, parts.y)
    assert np.array_equal(whole.client, parts.client)


def test_spaces_blank_lines_and_a_byte_order_mark_do_not_matter(read):
    text = "\ufeff" + RECORDS.replace(",f,", " , f ,").replace("60", "\n60")
    assert torch.equal(read(text).x, read().x)


@pytest.mark.parametrize("mark", ["", "NA", "?", "nan"])
def test_a_row_with_a_missing_value_is_dropped_and_counted(read, mark):
    data = read(RECORDS.replace("60,m", f"{mark},m"), missing="drop")
    assert len(data.y) == 3
    assert data.notes == ("dropped 1 row with missing values (bob 1)", CLAMPED)


def test_values_beyond_their_range_are_counted_once_and_those_within_are_not(read, tmp_path):
    assert read(RECORDS.replace("200", "80").replace("20,m", "0,m")).notes == ()
    read()
    records = str(tmp_path / "records.csv")
    assert read(RECORDS.replace("40,", "-1,"), test_path=records).notes == (
        CLAMPED.replace("1 value", "2 values").replace("ann 1", "ann 2"),
    )
    assert read(RECORDS.replace("200", ""), missing=100).notes == (
        "filled in 1 missing value of 'age' (ann 1)",  # and not clamped: what was filled in is not a value of the file
    )


def test_a_missing_value_is_filled_and_then_scaled_like_any_other(read):
    data = read(RECORDS.replace("60,m", ",m").replace("-3", ""), missing=20)
    assert data.x[1].tolist() == [0.25, 0, 1, 0, 2.5]
    assert data.x[2, -1] == 20


def test_a_declared_value_is_never_missing(read):
    data = read(RECORDS.replace("60,m", "60,NA"), categorical={"sex": ["f", "m", "NA"]})
    assert data.x[1, 1:4].tolist() == [0, 0, 1]


def test_other_takes_every_unknown_value(read):
    data = read(RECORDS.replace("60,m", "60,x"), categorical={"sex": ["f", "m", "other"]})
    assert data.x[1, 1:4].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("60,m", ",m", r"records.csv, line 3, column 'age' is missing: fill it in"),
        ("60,m", "60,?", r"records.csv, line 3, column 'sex' is missing"),
        ("2.5,yes", "2.5,", r"records.csv, line 3, column 'label' is missing"),
        ("2.5,yes", "2.5,NA", r"records.csv, line 3, column 'label' is missing"),
        ("2.5,yes", "2.5,maybe", r"records.csv, line 3 has the label 'maybe', which data.classes does not declare"),
        ("yes,bob", "yes,", r"records.csv, line 3, column 'who' is missing"),
        ("60,m", "old,m", r"records.csv, line 3, column 'age' is 'old', which is not a number"),
        ("60,m", "inf,m", r"records.csv, line 3, column 'age' is 'inf', which is not a finite"),
        ("2.5", "1e39", r"records.csv, line 3, column 'weight' is '1e39', which is not a finite 32-bit number"),
        ("2.5", "NAN", r"records.csv, line 3, column 'weight' is 'NAN', which is not a finite"),
        ("60,m", "60,x", r"records.csv, line 3, column 'sex' is 'x', which is none of its declared values"),
        ("60,m", "60,m,7", r"records.csv, line 3 has 6 cells, expected 5"),
        ("60,m", '60,"m', r"records.csv cannot be read as csv in UTF-8 \(unexpected end of data\)"),
        ("age,sex", "age,age", r"records.csv has two columns named 'age'"),
        ("age,sex", "age,sx", r"records.csv has no column 'sex', which data.categorical names. Did you mean 'sx'\?"),
        (RECORDS, "", r"records.csv is empty"),
        (RECORDS, "age,sex,weight,label,who\n", r"records.csv holds no rows"),
    ],
)
def test_bad_records_are_refused_with_file_line_and_column(read, old, new, sentence):
    with pytest.raises(BadData, match=sentence):
        read(RECORDS.replace(old, new))


def test_the_line_is_named_beyond_the_first_block(read, monkeypatch):
    monkeypatch.setattr(texts, "BLOCK_ROWS", 1)
    with pytest.raises(BadData, match="line 5, column 'age' is 'x'"):
        read(RECORDS.replace("20,m", "x,m"))


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ("label,age,sex\nyes,1,f\n", r"test.csv has no column 'weight': every file needs the same columns"),
        ("label,weight,age,sex,x\nyes,1,1,f,0\n", r"test.csv has a column 'x' that is no feature"),
        ("label,weight,age,sex\nno,1,1,q\n", r"test.csv, line 2, column 'sex' is 'q'"),
    ],
)
def test_a_test_file_of_another_shape_is_refused(read, test, sentence):
    with pytest.raises(BadData, match=sentence):
        read(test=test)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"label": "labl"}, r"has no column 'labl', which data.label names. Did you mean 'label'\?"),
        ({"label": "rest_bp"}, r"'rest_bp', which data.label names. There are: age, sex, weight, label, who\.$"),
        ({"path": "nowhere.csv"}, r"nowhere.csv does not exist: correct data.path\.$"),
        ({"test_path": "nowhere.csv"}, r"nowhere.csv does not exist: correct data.test_path\.$"),
    ],
)
def test_a_section_that_does_not_fit_the_file_is_refused(read, keys, sentence):
    with pytest.raises(BadData, match=sentence):
        read(**keys)


def test_what_is_listed_of_a_first_line_is_in_no_log(read):
    """Of a file without a line of names these are a record's cells."""
    with pytest.raises(BadData, match="There are: 63, f") as refusal:
        read(RECORDS.replace("age,sex", "63,f"), numeric={}, categorical={}, label="rest_bp")
    assert refusal.value.discreet.endswith("has no column 'rest_bp', which data.label names.")


def test_data_without_a_row_left_is_refused(read):
    empty = "age,sex,weight,label,who\n,f,1,no,ann\n"
    with pytest.raises(BadData, match="leaves no rows to train on"):
        read(empty, missing="drop")


def test_a_folder_without_files_and_a_client_without_rows_are_refused(tmp_path):
    section = DataSection(name="csv", path=str(tmp_path), classes=2, numeric="unscaled")
    with pytest.raises(BadData, match=r"holds no .csv files"):
        load(section, seed=0)
    (tmp_path / "ann.csv").write_text("a,label\n1,0\n")
    (tmp_path / "bob.csv").write_text("a,label\n")
    with pytest.raises(BadData, match=r"bob.csv holds no rows, so client 'bob' has no data"):
        load(section, seed=0)
