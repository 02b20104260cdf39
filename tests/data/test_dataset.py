"""A data set is checked once, whatever it came from."""

import numpy as np
import pytest
import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData

X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
WHOLE = {"name": "tiny", "x": X, "y": Y, "test_x": X, "test_y": Y, "class_names": ("no", "yes")}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_by_client_and_row(value):
    x = X.clone()
    x[2, 1] = value
    with pytest.raises(BadData, match="Row 2 of client 'b' in tiny training data holds NaN or infinity"):
        Dataset(**WHOLE | {"x": x, "client": np.array([0, 0, 1, 1]), "client_names": ("a", "b")})
    with pytest.raises(BadData, match="Row 2 in tiny test data"):
        Dataset(**WHOLE | {"test_x": x})


def test_opposite_infinities_do_not_hide_each_other():
    x = X.clone()
    x[1] = torch.tensor([float("inf"), float("-inf")])
    with pytest.raises(BadData, match="Row 1 in"):
        Dataset(**WHOLE | {"x": x})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y": Y[:3]}, "training rows with one label each, got 4 and 3"),
        ({"x": X[:0], "y": Y[:0]}, "training rows with one label each, got 0 and 0"),
        ({"test_x": X[:0]}, "test rows with one label each, got 0 and 4"),
        ({"y": Y + 1}, r"training label of tiny in 0..1, got 2"),
        ({"test_x": torch.zeros(4, 3)}, r"one shape, got \[2\] and \[3\]"),
        ({"client": np.array([0])}, "one client per row of tiny, got 1 for 4"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, sentence):
    with pytest.raises(BadData, match=sentence):
        Dataset(**WHOLE | change)


def test_the_data_is_not_printed():
    assert "tensor" not in repr(Dataset(**WHOLE))
