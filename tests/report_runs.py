"""Experiments for the tests of the report: a small one, and names that try to become markup."""

import trained

EVIL = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>",
    "{{7*7}} \u2028 & <!--",
)
SMALL = {
    "name": "small",
    "data": {"clients": 5, "examples_per_client": 40},
    "train": {"rounds": 6, "local_steps": 2, "sampling_rate": 0.3},
    "privacy": {"kind": "local", "epsilon": [1.0, 2.0, 2.0, 4.0, 8.0]},
    "run": {"workers": 1},
}


def changed(**changes):
    """The small experiment with changes."""
    return trained.changed(SMALL, changes)
