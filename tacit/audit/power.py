"""What an audit of canaries could have shown: its lower limit where all is as priced, and what to do where that is too little.

Where even code that keeps its price to the letter would have a lower limit below half of the promise, a fault that doubles epsilon
would hardly be seen: such an audit cannot tell.
"""

import math
from collections.abc import Mapping

from tacit.audit.as_run import limits_of
from tacit.audit.evidence import Noise
from tacit.audit.priced import Charged

TELLING = 0.5  # of the promise: the least lower limit of an audit that can tell
MECHANISM = "`tacit audit EXPERIMENT --mechanism`"


def tells(low: float, promised: float) -> bool:
    """Whether a lower limit is near enough to the promise for a fault to have been seen.

    >>> tells(2.9, 4.0), tells(1.9, 4.0)
    (True, False)
    """
    return low >= TELLING * promised


def lower_limit(charged: Charged, *, canaries: int, level: float) -> float:
    """What the lower limit of `as_run.measured` would be with so many canaries where noise, clip and rate are as priced."""
    steps, q, z, rounds = charged.steps, charged.rate, charged.multiplier, charged.rounds
    taking_part = rounds * canaries / 2  # a fair coin each
    squares = taking_part * (steps * q * (1 - q) + (steps * q) ** 2)
    freedom = max(1, round(rounds * canaries) - 1)
    trials = int(steps * taking_part)
    multipliers, rates, _ = limits_of(
        1.0, squares, Noise(z**2 * freedom, freedom), round(q * trials), trials, charged, level=level
    )
    return charged.epsilon(multipliers[1] / z, rates[0]) if math.isfinite(multipliers[1]) else 0.0


def could_tell(groups: Mapping[Charged, int], *, level: float) -> bool:
    """Whether so many canaries in each group of clients who are charged alike could show a fault in any of them."""
    return any(
        tells(lower_limit(charged, canaries=canaries, level=level), charged.epsilon())
        for charged, canaries in groups.items()
        if canaries
    )


def more(most: int, groups: Mapping[Charged, int], *, level: float) -> str:
    """What to do after an audit that could hardly have shown anything; `groups` have the `most` canaries that fit."""
    if not could_tell(groups, level=level):
        return f"{too_small(most)}, or several runs together."
    one = ", give clients one epsilon" if len(groups) > 1 else ""
    return f"Plant more (up to {most:,} fit){one}, or audit several runs together."


def too_small(most: int) -> str:
    """That canaries are not the way, and which one is."""
    return (
        f"In a run like this one the model is too small to be audited by canaries: even the {most:,} that fit could hardly show a"
        f" fault. Audit the mechanism alone with {MECHANISM}"
    )


def first(most: int, groups: Mapping[Charged, int], *, usual: int, how: str, level: float) -> str:
    """What to do where no canary was planted: `how`, with no more of them than fit, or not at all; `groups` have the most."""
    if groups and not could_tell(groups, level=level):
        return f"{too_small(most)}."
    return f"{how.format(min(usual, most))}, or audit the mechanism alone with {MECHANISM}."
