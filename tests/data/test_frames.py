"""DataFrames: which columns are features is said or refused, and nothing is learned from a column on the way."""

import numpy as np
import pytest

from tacit import Dataset
from tacit.data.given import digest_of
from tacit.errors import BadInput

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
        (FRAME.assign(visits=pd.array([1, None, 3, 4], dtype="Int64")), {}, r"^Column 'visits' .* row 1 .*fillna"),
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
