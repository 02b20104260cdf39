"""Small real runs: scikit-learn's digits, a few clients, a few rounds, in one process unless a test is about several."""

import pytest
from trained import changed

SMALL = {
    "name": "small",
    "data": {"clients": 6, "examples_per_client": 40},
    "train": {"rounds": 4, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    "run": {"workers": 1},
}


@pytest.fixture
def small():
    """Builds a small experiment, with changes: small(train={"rounds": 2})."""

    return lambda **changes: changed(SMALL, changes)
