"""Argument checks in one voice: `check.positive(clip=clip)` raises "Expected clip > 0, got -1.0."."""

import difflib
import math
from collections.abc import Iterable

from tacit.errors import BadInput


def finite(**values: float) -> None:
    """Refuses NaN, infinity and anything that is not a number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadInput(f"Expected {name} to be a finite number, got {value!r}.")


def positive(**values: float) -> None:
    """Refuses what is not a finite number above zero."""
    finite(**values)
    for name, value in values.items():
        if value <= 0:
            raise BadInput(f"Expected {name} > 0, got {value!r}.")


def at_least(low: float, **values: float) -> None:
    """Refuses what is below `low`."""
    finite(**values)
    for name, value in values.items():
        if value < low:
            raise BadInput(f"Expected {name} >= {low}, got {value!r}.")


def probability(**values: float) -> None:
    """Refuses what is not strictly between 0 and 1 (a delta)."""
    finite(**values)
    for name, value in values.items():
        if not 0 < value < 1:
            raise BadInput(f"Expected 0 < {name} < 1, got {value!r}.")


def rate(**values: float) -> None:
    """Refuses what is not in (0, 1] (a sampling rate)."""
    finite(**values)
    for name, value in values.items():
        if not 0 < value <= 1:
            raise BadInput(f"Expected 0 < {name} <= 1, got {value!r}.")


def one_of(options: Iterable[str], **values: str) -> None:
    """Refuses a name that is not among the options, and points at the nearest one."""
    known = list(options)
    for name, value in values.items():
        if value not in known:
            raise BadInput(f"Expected {name} to be one of {', '.join(known)}; got {value!r}.{nearest(value, known)}")


def nearest(word: str, options: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" for the closest option, whatever its capitals, or nothing.

    >>> nearest("AGE", ["sex", "age", "Average"])
    " Did you mean 'age'?"
    """
    spelled = {option.casefold(): option for option in reversed(list(options))}
    found = difflib.get_close_matches(str(word).casefold(), list(spelled)[::-1], n=1, cutoff=0.5)
    return f" Did you mean {spelled[found[0]]!r}?" if found else ""
