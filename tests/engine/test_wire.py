"""What is read from bytes: the quick look for numbers that are not finite agrees with the slow one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.wire import all_finite

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(ANY, max_size=9))
def test_the_quick_look_for_what_is_not_finite_agrees_with_the_slow_one(numbers):
    tensor = torch.tensor(numbers)
    assert all_finite(tensor) == bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bool, torch.float64])
def test_tensors_of_other_kinds_are_looked_at_too(kind):
    assert all_finite(torch.ones(5, dtype=kind))


def test_infinities_that_cancel_are_found():
    assert not all_finite(torch.tensor([torch.inf, -torch.inf, 1.0]))
    assert all_finite(torch.tensor([3.4e38, 3.4e38, -3.4e38]))
