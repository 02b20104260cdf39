"""DataFrames: which columns are features is said or refused, and nothing is learned from a column on the way."""

import numpy as np
import pytest
import torch

import tacit
from tacit import Dataset
from tacit.data.given import digest_of
from tacit.engine.assemble import build
from tacit.errors import BadData, BadInput

pd = pytest.importorskip("pandas")

FRAME = pd.DataFrame(
    {
        "age": [30, 40, 50, 60.0],
        "smoker": [True, False, True, False],
        "visits": pd.array([1, 2, 3, 4], dtype="Int64"),
        "site": ["b", "a", "b", "a"],
        "ill": ["yes", "no", "no", "yes"],
    }
)
HOW = {"label": "ill", "client": "site", "classes": ["no", "yes"], "test": FRAME.drop(columns="site")}


def test_columns_of_numbers_are_features_in_their_order():
    data = Dataset.from_pandas(FRAME, **HOW).rows
    assert data.x.tolist() == [[30, 1, 1], [40, 0, 2], [50, 1, 3], [60, 0, 4]]
    assert (data.y.tolist(), data.client_names, data.client.tolist()) == ([1, 0, 0, 1], ("a", "b"), [1, 0, 1, 0])
    assert data.test_x.tolist() == data.x.tolist()


def test_test_rows_are_taken_by_the_columns_names_whatever_their_order():
    data = Dataset.from_pandas(FRAME, **HOW | {"test": FRAME[["ill", "visits", "smoker", "age"]]}).rows
    assert data.test_x.tolist() == data.x.tolist()


def test_a_frame_and_its_arrays_are_the_same_rows():
    x = FRAME[["age", "smoker", "visits"]].to_numpy(dtype=float)
    test = (x, FRAME["ill"].to_numpy())
    arrays = Dataset(x, FRAME["ill"], clients=FRAME["site"], classes=["no", "yes"], test=test)
    assert digest_of(Dataset.from_pandas(FRAME, **HOW)) == digest_of(arrays)


@pytest.mark.parametrize(
    ("frame", "change", "sentence"),
    [
        (pd.concat([FRAME, FRAME]), {}, r"^The index of df holds '0' more than once.*df.reset_index\(drop=True\)"),
        (
            FRAME.assign(sex="f", day=pd.Timestamp("2020-01-01")),
            {},
            r"hold no numbers: 'sex' \(.*\), 'day' \(datetime64.*public",
        ),
        (FRAME.assign(kind=pd.Categorical(list("abab"))), {}, r"hold no numbers: 'kind' \(category\)"),
        (
            FRAME.assign(age=[1, None, np.inf, 2]),
            {},
            r"^Column 'age' of df has no finite number in row 1 and in 1 more",
        ),
        (FRAME.assign(age=[1, 2, 1e300, 2]), {}, r"^Column 'age' of df has no finite number in row 2 \("),
        (FRAME.assign(visits=pd.array([1, None, 3, 4], dtype="Int64")), {}, r"^Column 'visits' .* row 1 .*missing="),
        (FRAME.assign(ill=["yes", None, "no", "no"]), {}, r"^Column 'ill' of df is empty in row 1"),
        (FRAME.assign(site=["a", "a", None, "b"]), {}, r"^Column 'site' of df is empty in row 2"),
        (FRAME.assign(ill=["yes", "maybe", "no", "no"]), {}, r"^y has the label 'maybe' in row 1"),
        (FRAME.iloc[:0], {}, r"^df has no rows"),
        (FRAME.set_axis(["a", "a", "b", "site", "ill"], axis=1), {}, r"two columns named 'a'"),
        (FRAME, {"label": "il"}, r"^df has no column 'il'. Did you mean 'ill'\?"),
        (FRAME, {"columns": ["age", "Smoker"]}, r"^df has no column 'Smoker'. Did you mean 'smoker'\?"),
        (FRAME, {"columns": ["age", "ill"]}, r"^Expected features beside the label and the client"),
        (FRAME, {"columns": []}, r"^Expected features beside the label and the client"),
        (FRAME, {"test": FRAME[["age", "ill"]]}, r"^test has no column 'smoker'"),
        (FRAME, {"test": pd.concat([FRAME, FRAME])}, r"^The index of test holds '0' more than once"),
        (FRAME, {"test": None}, r"^There are no test rows"),
        (FRAME.to_numpy(), {}, r"^Expected df to be a pandas DataFrame, got a ndarray"),
    ],
)
def test_a_frame_that_cannot_be_used_is_refused_in_a_sentence(frame, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset.from_pandas(frame, **HOW | change)


# the same declarations as of a csv file, and the same names again when the model predicts


DECLARED = {
    "numeric": {"age": [0, 100], "dose": "unscaled"},
    "categorical": {"sex": ["f", "m"]},
    "missing": {"age": 50.0, "sex": "missing"},
}


def people(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(0, 110, rows).astype(float), "sex": rng.choice(["f", "m"], rows)})
    frame["dose"] = rng.normal(size=rows).round(3)
    frame["ill"] = np.where(frame["age"] + 30 * frame["dose"] > 50, "yes", "no")
    frame.loc[3, "age"], frame.loc[5, "sex"] = np.nan, None
    return frame


def trained(tmp_path, **changes):
    frames = {"df": people().assign(ward=["a", "b"] * 30), "test": people(40, seed=1)}
    data = Dataset.from_pandas(**frames, label="ill", client="ward", classes=["no", "yes"], **DECLARED)
    experiment = tacit.Experiment(train={"rounds": 3, "sampling_rate": 1.0}, **changes)
    return data, tacit.run(experiment, data=data, out=tmp_path / "frame", page=False)


def test_a_frame_and_a_csv_file_give_the_same_rows_and_the_same_model(tmp_path):
    data, history = trained(tmp_path, privacy={"kind": "none"})
    people().assign(ward=["a", "b"] * 30).to_csv(tmp_path / "rows.csv", index=False)
    people(40, seed=1).to_csv(tmp_path / "test.csv", index=False)
    table = {"name": "csv", "path": str(tmp_path / "rows.csv"), "test_path": str(tmp_path / "test.csv"), "label": "ill"}
    table |= {"classes": ["no", "yes"], "client_column": "ward", "partition": "natural", **DECLARED}
    table |= {"columns": ["age", "sex", "dose"]}
    experiment = tacit.Experiment(data=table, train={"rounds": 3, "sampling_rate": 1.0}, privacy={"kind": "none"})
    as_file = build(experiment).population
    assert data.rows.x.shape == (60, 1 + 3 + 1)
    assert torch.equal(as_file.x, data.rows.x[data.rows.client.argsort(kind="stable")])
    other = tacit.run(experiment, out=tmp_path / "csv", page=False)
    for mine, theirs in zip(history.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)  # what is passed keys the order in which rows are summed


def test_a_model_of_a_frame_predicts_frames_by_the_names_of_their_columns(tmp_path):
    trained(tmp_path, privacy={"kind": "none"})
    model, new = tacit.load(tmp_path / "frame"), people(20, seed=2)
    known = model.predict(new.drop(columns="ill"))
    assert np.array_equal(model.predict(new[new.columns[::-1]]).probabilities, known.probabilities)
    assert list(model.feature_names_in_) == ["age", "sex", "dose"]
    assert list(model.classes_) == ["no", "yes"]
    assert np.array_equal(model.predict_proba(new), known.probabilities)
    assert np.asarray(known).tolist() == known.labels == model.classes_[known.probabilities.argmax(1)].tolist()
    with pytest.raises(BadData, match="no column 'dose'"):
        model.predict(new.drop(columns="dose"))
    with pytest.raises(BadData, match=r"columns that the model was not trained on: ward; take its own"):
        model.predict(new.assign(ward=1))


def test_a_row_that_missing_drops_is_dropped_with_its_label_and_its_client():
    frame = people().assign(ward=["a", "b"] * 30)
    how = {"label": "ill", "client": "ward", "classes": ["no", "yes"], "test_share": 0, "columns": ["age", "dose"]}
    data = Dataset.from_pandas(frame, missing="drop", **how)
    kept = frame.dropna(subset=["age"])
    assert np.array_equal(data.rows.x.numpy(), kept[["age", "dose"]].to_numpy(np.float32))
    assert [data.rows.class_names[code] for code in data.rows.y] == list(kept["ill"])
    assert [data.rows.client_names[code] for code in data.rows.client] == list(kept["ward"])


def test_a_private_range_is_for_csv_files():
    with pytest.raises(BadInput, match="A range of from_pandas is public"):
        Dataset.from_pandas(people(), label="ill", classes=["no", "yes"], test_share=0, numeric={"age": "private"})
