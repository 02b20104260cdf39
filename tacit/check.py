"""Argument checks in one voice: `check.positive(clip=clip)` raises "Expected clip > 0, got -1.0."."""

import difflib
import math
from collections.abc import Iterable

from tacit.errors import BadInput

NEAR = 0.7  # of difflib's likeness: one wrong, missing or exchanged letter in five, as in "mnits", is 0.8
BEGINNING = 3  # letters that two names must begin with for one to stand for the other
LONGEST = 100  # characters of a value that are repeated
MOST_LISTED = 20  # names in a sentence


def finite(**values: float) -> None:
    """Refuses NaN, infinity and anything that is not a number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise BadInput(f"Expected {name} to be a finite number, got {repr(value)[:LONGEST]}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


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
    """The hint " Did you mean 'x'?" for the closest option, whatever its capitals, or nothing where none is near.

    Near is what a slip of the hand makes of a name, a name that the other begins with, or the one whose words begin so.

    >>> nearest("AGE", ["sex", "age", "Average"])
    " Did you mean 'age'?"
    >>> nearest("lr", ["rounds", "learning_rate"])
    " Did you mean 'learning_rate'?"
    >>> nearest("rest_bp", ["chest_pain", "age"])
    ''
    """
    spelled = {option.casefold(): option for option in reversed(list(options))}
    said, known = str(word).casefold(), list(spelled)[::-1]
    begun = [
        name
        for name in known
        if min(len(said), len(name)) >= BEGINNING and (name.startswith(said) or said.startswith(name))
    ]
    abbreviated = [name for name in known if len(said) > 1 and said == _initials(name)]
    found = difflib.get_close_matches(said, known, n=1, cutoff=NEAR) or begun or abbreviated
    return f" Did you mean {spelled[found[0]]!r}?" if found else ""


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.replace("-", "_").split("_") if word)


def listed(options: Iterable[str]) -> str:
    """The hint " There are: x, y." of what can be said instead.

    >>> listed(["age", "sex"])
    ' There are: age, sex.'
    """
    known = list(options)
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    return f" There are: {', '.join(known[:MOST_LISTED])}{more}." if known else ""
