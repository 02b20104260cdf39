"""Arrays from .npz files: taken as they stand, and refused by array, client and row."""

import numpy as np
import pytest

from tacit.data.sources import load
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.array([0, 1] * 5)
WHO = np.array(["b", "a"] * 5)


@pytest.fixture
def read(tmp_path):
    def from_arrays(*, keys=None, **arrays):
        np.savez(tmp_path / "data.npz", **{"x": X, "y": Y} | arrays)
        values = {"name": "npz", "path": str(tmp_path / "data.npz"), "classes": 2} | (keys or {})
        return load(DataSection.model_validate(values), seed=0)

    return from_arrays


def test_arrays_are_taken_as_they_stand_and_a_share_is_held_out(read):
    data = read(client=WHO)
    assert (len(data.x), len(data.test_x)) == (8, 2)
    assert sorted(np.concatenate([data.x, data.test_x])[:, 0].tolist()) == X[:, 0].tolist()
    assert (data.client_names, np.bincount(data.client).tolist()) == (("a", "b"), [4, 4])
    assert data.y.tolist() == [1 - client for client in data.client]


def test_a_public_constant_divides_the_features(read):
    data = read(x=(X * 10).astype(np.uint8), x_test=X, y_test=Y, keys={"divide_by": 10})
    assert np.allclose(data.x, X)
    assert np.allclose(data.test_x, X / 10)


def test_test_rows_come_from_the_file_or_from_a_second_one(read, tmp_path):
    assert len(read(x_test=X[:3], y_test=Y[:3]).test_x) == 3
    np.savez(tmp_path / "test.npz", x=X[:4], y=Y[:4])
    data = read(keys={"test_path": str(tmp_path / "test.npz")})
    assert (len(data.x), len(data.test_x)) == (10, 4)
    with pytest.raises(BadData, match=r"holds x_test and y_test, so data.test_path must go"):
        read(x_test=X, y_test=Y, keys={"test_path": str(tmp_path / "test.npz")})


def test_a_value_that_is_not_finite_is_refused_by_client_and_row(read):
    x = X.copy()
    x[3, 1] = np.nan
    with pytest.raises(BadData, match=r"Row 3 of client 'a' in x of .*data.npz holds NaN or infinity"):
        read(x=x, client=WHO)
    with pytest.raises(BadData, match=r"Row 3 in x_test of .*data.npz holds NaN or infinity"):
        read(x_test=x, y_test=Y)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X.astype(str)}, r"x of .*data.npz to be numbers of shape \[rows, ...\], got <U\d+ of shape"),
        ({"y": Y + 0.5}, r"Row 0 of y of .* says 0.5 .*: expected a text or an integer"),
        ({"y": Y + 1}, r"has the label '2' in row 1, which data.classes does not declare"),
        ({"client": WHO[:3]}, r"client of .* to be 10 integers or texts, got <U1 of shape \[3\]"),
        ({"client": X[:, 0] / 4}, r"Row 1 of client of .* says 0.5"),
        ({"x_test": X}, r"holds x_test alone"),
        ({"x_test": X, "y_test": Y[:2]}, r"y_test of .* to be 10 integers"),
        ({"x": np.array([[{}]] * 10)}, r"cannot be read as an .npz file of plain arrays"),
        ({"xtest": X}, r"the arrays of .*data.npz to be one of .*got 'xtest'. Did you mean 'x_test'\?"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(read, arrays, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(**arrays)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    section = DataSection(name="npz", path=str(tmp_path / "a.npz"), classes=2)
    with pytest.raises(BadData, match=r"a.npz does not exist"):
        load(section, seed=0)
    for content in (b"", b"PK\x03\x04 cut", b"text"):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(BadData, match=r"a.npz cannot be read as an .npz file"):
            load(section, seed=0)
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(BadData, match=r"a.npz cannot be read as an .npz file"):
        load(section, seed=0)
    np.savez(tmp_path / "a.npz", x=X)
    with pytest.raises(BadData, match=r"lacks the array y: it holds x"):
        load(section, seed=0)
