"""csv files as hospitals have them: gaps, numbers written twice, no first line; what reading did to them is counted and said."""

import pytest
import torch

from tacit.data.sources import load
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection

WITHOUT_NAMES = "63,1,233,0\n41,0,,1\n57,1,0,1\n"
RECORDS = f"age,sex,chol,num\n{WITHOUT_NAMES}"
BASE = {
    "name": "csv",
    "label": "num",
    "classes": 2,
    "numeric": {"age": [0, 100], "chol": [0, 600]},
    "categorical": {"sex": ["0", "1"]},
    "missing": {"chol": 240},
}


@pytest.fixture
def read(tmp_path):
    """Writes files and reads them as one data set: read({"north.csv": text}, key=value)."""

    def from_files(files, **keys):
        folder = tmp_path / "records"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        path = str(folder / next(iter(files))) if len(files) == 1 else str(folder)
        keys = {"path": path, "test_path": path} | BASE | keys
        return load(
            DataSection.model_validate({key: value for key, value in keys.items() if value is not None}), seed=0
        )

    return from_files


def test_a_missing_number_is_its_columns_own(read):
    assert read({"a.csv": RECORDS}).x[1].tolist() == pytest.approx([0.41, 1, 0, 0.4])


def test_columns_that_the_table_of_missing_values_does_not_name_refuse_gaps(read):
    with pytest.raises(BadData, match=r"line 3, column 'age' is missing: fill it in"):
        read({"a.csv": RECORDS.replace("41,", ",")})


@pytest.mark.parametrize(("said", "second"), [("missing", [0, 0, 1]), (0, [1, 0]), ("1", [0, 1]), ("1.0", [0, 1])])
def test_a_missing_category_is_the_one_that_its_column_says(read, said, second):
    data = read({"a.csv": RECORDS.replace("41,0", "41,?")}, missing={"chol": 240, "sex": said})
    assert data.x[1, 1:-1].tolist() == second


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"missing": {"chol": "mean"}}, "stands in for missing values of column 'chol' to be a number"),
        ({"missing": {"chol": True}}, "data.missing"),
        ({"missing": {"chol": float("inf")}}, "Expected data.missing.chol to be a finite number"),
        ({"missing": {"sex": "x"}}, "stands in for missing values of column 'sex' to be one of its values"),
        ({"missing": {"kol": 1}}, r"has no column 'kol', which data.missing names"),
        ({"categorical": {"sex": ["1", "1.0"]}}, "to list its values, each once"),
        ({"classes": ["1", "1.0"]}, "1 and 1.0 are one"),
        ({"header": ["age", "age"]}, "data.header to name the columns, each once"),
        ({"numeric": {"age": "as it is"}}, "data.numeric"),
    ],
)
def test_a_stand_in_that_cannot_be_is_refused(read, keys, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        read({"a.csv": RECORDS}, **keys)
    assert "\n" not in str(refusal.value)


def test_one_and_one_point_zero_are_one_category_and_one_label(read):
    data = read({"a.csv": RECORDS.replace("63,1,233,0", "63,1.0,233,0.0")})
    whole = read({"a.csv": RECORDS})
    assert torch.equal(data.x, whole.x)
    assert torch.equal(data.y, whole.y)
    found = read({"a.csv": RECORDS.replace("233,0", "233,0.00")}, classes="from-data")
    assert found.class_names == ("0", "1")


def test_a_column_that_nothing_is_declared_of_is_refused_with_what_it_spans(read):
    with pytest.raises(BadData, match=r"how to read 'chol'\. In these rows they span 'chol: 0 to 233'") as refusal:
        read({"a.csv": RECORDS}, numeric={"age": [0, 100]}, missing=1)
    assert "233" not in refusal.value.discreet  # what a site may log
    texts = RECORDS.replace("63,1", "63,male").replace("41,0", "41,female")
    with pytest.raises(BadData, match=r"sex: 1 to 1 and female, male"):
        read({"a.csv": texts}, categorical={})


def test_whether_a_column_is_refused_does_not_depend_on_the_rows(read):
    rows = RECORDS.replace("233", "0").replace(",,", ",1,")
    with pytest.raises(BadData, match="how to read 'chol'"):
        read({"a.csv": rows}, numeric={"age": [0, 100]}, missing=1)


def test_a_column_is_taken_as_it_stands_only_where_that_is_said(read):
    data = read({"a.csv": RECORDS}, numeric={"age": [0, 100], "chol": "unscaled"})
    assert data.x[0, -1] == 233
    every = read({"a.csv": RECORDS}, numeric="unscaled")
    assert every.x[0, 0] == 63


def test_a_file_without_a_first_line_of_names_is_recognised(read):
    with pytest.raises(BadData, match="begins with a record, not with the names of its columns") as refusal:
        read({"a.csv": WITHOUT_NAMES})
    assert "63" not in str(refusal.value)


def test_names_can_be_declared_for_files_without_them_and_files_with_them_are_read_too(read):
    header = ["age", "sex", "chol", "num"]
    alone = read({"a.csv": WITHOUT_NAMES}, header=header)
    assert torch.equal(alone.x, read({"a.csv": RECORDS}).x)
    assert torch.equal(read({"a.csv": RECORDS}, header=header).x, alone.x)
    with pytest.raises(BadData, match=r"line 1 has 4 cells, and data.header names 3 columns"):
        read({"a.csv": WITHOUT_NAMES}, header=["age", "sex", "num"], numeric={"age": [0, 1]}, missing=0)


def test_a_name_in_other_capitals_is_the_nearest_one(read):
    with pytest.raises(BadData, match=r"no column 'Age', which data.numeric names. Did you mean 'age'\?"):
        read({"a.csv": RECORDS}, numeric={"Age": [0, 100], "chol": [0, 600]})
    with pytest.raises(
        BadData, match=r"b.csv has no column 'age': every file needs the same columns. Did you mean 'AGE'\?"
    ):
        read({"a.csv": RECORDS, "b.csv": RECORDS.replace("age", "AGE")}, test_path=None)


def test_what_reading_changed_is_counted_for_every_client(read, tmp_path):
    (tmp_path / "test.csv").write_text(RECORDS.replace("57,1,0", "157,1,900"))
    far = RECORDS.replace("63,1", "163,7").replace("57,1", "157,8")
    data = read(
        {"north.csv": far, "coast.csv": far.replace("157,8", "57,1")},
        categorical={"sex": ["0", "1", "other"]},
        test_path=str(tmp_path / "test.csv"),
    )
    assert data.notes[:3] == (
        "filled in 3 missing values of 'chol' (coast 1, north 1, the test rows 1)",
        "took 3 unknown values of 'sex' as \"other\" (north 2, coast 1)",
        "clamped 4 values of 'age' into its declared range [0, 100] (north 2, coast 1, the test rows 1)",
    )


def test_a_file_under_two_names_and_rows_that_repeat_are_noted(read):
    data = read({"north.csv": RECORDS, "coast.csv": RECORDS}, test_path=None)
    assert any(note.startswith("coast.csv and north.csv hold the same rows") for note in data.notes)
    assert any(note.startswith("3 of 6 rows repeat an earlier one") for note in data.notes)
    other = read({"a.csv": RECORDS + "63,1,233,1\n"})  # another label
    assert not any("same rows" in note or "repeat" in note for note in other.notes)


@pytest.mark.parametrize(
    ("said", "partition"),
    [
        ({"path": "records"}, "natural"),
        ({"path": ["a.csv", "b.csv"]}, "natural"),
        ({"path": "a.csv", "client_column": "who"}, "natural"),
        ({"path": "a.csv"}, "iid"),
        ({"path": "records", "partition": "iid"}, "iid"),
        ({"path": "records", "partition": "dirichlet"}, "dirichlet"),
        ({"path": "records", "name": "npz"}, "iid"),
    ],
)
def test_files_that_name_clients_are_shared_out_to_these_unless_another_way_is_said(said, partition):
    assert DataSection.model_validate({"name": "csv"} | said).partition == partition


def test_several_files_are_named_one_by_one(read, tmp_path):
    read({"a.csv": RECORDS, "b.csv": RECORDS.replace("63", "64")}, test_path=None)
    folder = tmp_path / "records"
    files = [str(folder / "b.csv"), str(folder / "a.csv")]
    data = load(DataSection.model_validate(BASE | {"path": files}), seed=0)
    assert data.client_names == ("a", "b")
    (tmp_path / "a.csv").write_text(RECORDS)
    with pytest.raises(BadData, match=r"Two files of data.path have one name"):
        load(DataSection.model_validate(BASE | {"path": [files[1], str(tmp_path / "a.csv")]}), seed=0)
