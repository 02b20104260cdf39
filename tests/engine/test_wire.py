"""What is read from bytes: the quick look for numbers that are not finite agrees with the slow one."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.wire import all_finite

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(ANY, max_size=9))
@example([torch.inf, -torch.inf, 1.0])  # infinities that cancel
@example([3.25e38, 3.25e38, -3.25e38])  # finite numbers whose sum is not
def test_the_quick_look_for_what_is_not_finite_agrees_with_the_slow_one(numbers):
    tensor = torch.tensor(numbers)
    assert all_finite(tensor) == bool(torch.isfinite(tensor).all())
    assert all(all_finite(torch.ones(5, dtype=kind)) for kind in (torch.uint8, torch.int64, torch.bool, torch.float64))
