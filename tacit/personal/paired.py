"""Several models on the same rows of the same clients: each one's mean, and their differences, row by row of a draw.

A draw takes every client's rows again (bootstrap within clients), the same for all models: so a difference has the interval of
differences, which is narrower than either model's own. The mean over clients is weighted by their rows. An interval is about rows,
for clients as they are: not about other clients, seeds or noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit import metrics
from tacit.metrics import Answers
from tacit.metrics._resample import RESAMPLES, middle

PAIRS = (("own", "alone"), ("own", "common"))


@dataclass(frozen=True, eq=False)
class Judged:
    """One metric of one client's models: the values, and the values in every draw of its rows; None where they cannot tell."""

    rows: int
    values: dict[str, float] | None
    drawn: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def told(self) -> dict[str, Any] | None:
        """Value and 95 % interval of each model."""
        return self.values and {
            name: {"value": value, "interval": _around(value, self.drawn.get(name))}
            for name, value in self.values.items()
        }


def judged(metric: str, answers: Mapping[str, Answers], *, seed: int) -> Judged:
    """One client's models by one metric, on draws of its rows that all of them share."""
    made, some = metrics.load(metric), next(iter(answers.values()))
    values = {name: metrics.told(made, found) for name, found in answers.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return Judged(some.test_rows, None)
    drawn: dict[str, np.ndarray] = {}
    if hasattr(made, "resampled") and some.test_rows > 1:
        even = np.full(some.test_rows, 1 / some.test_rows)
        counts = np.random.default_rng(seed).multinomial(some.test_rows, even, size=RESAMPLES).astype(np.float32)
        counts = counts if some.row is None else counts[:, some.row]
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = {name: made.resampled(found, counts) for name, found in answers.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return Judged(some.test_rows, known, drawn)


def together(clients: Sequence[Judged]) -> dict[str, Any]:
    """The mean of every model over the clients whose rows can tell, by their rows, and the paired differences."""
    known = [one for one in clients if one.values is not None]
    if not known:
        return {"rows": 0, "clients": 0}
    weights = np.array([one.rows for one in known], dtype=float)
    weights /= weights.sum()
    names = list(known[0].values or ())
    values = {name: float(weights @ [(one.values or {})[name] for one in known]) for name in names}
    draws = {name: _over(known, weights, name) for name in names}
    told: dict[str, Any] = {"rows": int(sum(one.rows for one in known)), "clients": len(known)}
    told |= {name: {"value": values[name], "interval": _around(values[name], draws[name])} for name in names}
    for one, other in PAIRS:
        gap, both = values[one] - values[other], (draws[one], draws[other])
        drawn = None if both[0] is None or both[1] is None else both[0] - both[1]
        told[f"{one}_less_{other}"] = {"value": gap, "interval": _around(gap, drawn)}
    return told


def _over(known: Sequence[Judged], weights: np.ndarray, name: str) -> np.ndarray | None:
    """The weighted mean in every draw; a client that a draw cannot tell of (one class) counts there with its value."""
    total = np.zeros(RESAMPLES)
    for one, weight in zip(known, weights, strict=True):
        value = (one.values or {})[name]
        if name not in one.drawn and one.rows > 1:
            return None
        drawn = one.drawn.get(name, np.full(RESAMPLES, value))
        total += weight * np.where(np.isfinite(drawn), drawn, value)
    return total


def _around(value: float, drawn: np.ndarray | None) -> list[float] | None:
    ends = middle(drawn) if drawn is not None else None
    return ends and [min(ends[0], value), max(ends[1], value)]
