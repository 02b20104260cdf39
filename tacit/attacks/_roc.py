"""How well a score tells members from others: AUC, and the share of members found at a small share of false alarms.

Pure functions of a score (higher says "member"), a truth, and groups for each answer. Answers of one group (the same record asked
about in several models, or many records asked about in one model) are not independent, and the intervals know it: AUC by DeLong et
al. 1988 with clusters (Obuchowski 1997) of two kinds (Cameron, Gelbach, Miller 2011), shares by Clopper and Pearson 1934 with the
number of independent answers that the spread between groups leaves (Korn and Graubard 1998). The threshold of a false alarm rate is
taken as given, as the papers do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tacit.attacks._finding import Estimate, Line
from tacit.errors import BadInput

LEVEL = 0.95
RATES = (0.001, 0.01)  # false alarm rates that papers report
POINTS = 200  # of a line that people look at


@dataclass(frozen=True, eq=False)
class Scored:
    """Answers of one attack: a score, the truth, and the groups of each: whose answer it is, and perhaps of which model."""

    scores: np.ndarray
    member: np.ndarray
    groups: np.ndarray
    models: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        scores: np.ndarray,
        member: np.ndarray,
        groups: np.ndarray | None = None,
        models: np.ndarray | None = None,
    ) -> "Scored":
        """Flat arrays of whatever shape they come in. Raises BadInput where there are no members, or nobody else."""
        flat, truth, shape = np.asarray(scores, float).ravel(), np.asarray(member, bool).ravel(), np.shape(scores)
        whose = np.arange(len(flat)) if groups is None else np.broadcast_to(groups, shape).ravel()
        if truth.all() or not truth.any():
            raise BadInput("Expected members and others to tell apart.")
        return cls(flat, truth, whose, None if models is None else np.broadcast_to(models, shape).ravel())

    def only(self, chosen: np.ndarray) -> "Scored":
        """Some of the answers. Raises BadInput, as `of`."""
        models = None if self.models is None else self.models[chosen]
        return Scored.of(self.scores[chosen], self.member[chosen], self.groups[chosen], models)


def auc(scored: Scored, *, of: str = "") -> Estimate:
    """The probability that a member scores above somebody else, ties counting half, with its interval.

    >>> auc(Scored.of(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1, 1, 0, 0]))).value
    0.75
    """
    ins, outs = scored.scores[scored.member], scored.scores[~scored.member]
    above = _below(ins, outs)  # of each member: the share of others below it
    under = 1 - _below(outs, ins)  # of each other: the share of members above it
    value = float(above.mean())
    parts = np.empty(len(scored.scores))
    parts[scored.member] = (above - value) / len(ins)
    parts[~scored.member] = (under - value) / len(outs)
    low, high = _logit_interval(value, math.sqrt(_variance(parts, scored.groups, scored.models)), len(scored.scores))
    return Estimate("AUC", value, low, high, of)


def found_at(scored: Scored, rate: float, *, of: str = "") -> Estimate:
    """The share of members above a threshold that at most `rate` of the others pass, with its interval."""
    outs = np.sort(scored.scores[~scored.member])[::-1]
    allowed = math.floor(rate * len(outs) + 1e-9)  # a rate of .01 of 100 is one, whatever binary fractions say
    hit = scored.scores[scored.member] > outs[min(allowed, len(outs) - 1)]
    models = None if scored.models is None else scored.models[scored.member]
    low, high = share_interval(hit, scored.groups[scored.member], models)
    return Estimate(f"TPR at {100 * rate:g} % FPR", float(hit.mean()), low, high, of)


def share_interval(hit: np.ndarray, groups: np.ndarray, models: np.ndarray | None = None) -> tuple[float, float]:
    """The interval of a share of answers that come in groups."""
    n, p = len(hit), float(np.mean(hit))
    variance = _variance((hit - p) / n, groups, models)
    independent = len(np.unique(groups))
    if 0 < p < 1 and variance > 0:
        independent = min(float(n), p * (1 - p) / variance)
    return clopper_pearson(p * independent, independent)


def clopper_pearson(hits: float, trials: float) -> tuple[float, float]:
    """The exact interval of a binomial share.

    >>> [round(limit, 4) for limit in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits <= 0 else float(stats.beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits >= trials else float(stats.beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def line(scored: Scored, name: str) -> Line:
    """The ROC curve, thinned evenly on a logarithmic axis."""
    order = np.argsort(-scored.scores, kind="stable")
    ends = np.flatnonzero(np.diff(scored.scores[order], append=-np.inf))  # equal scores are one step
    found, alarms = np.cumsum(scored.member[order])[ends], np.cumsum(~scored.member[order])[ends]
    y, x = found / scored.member.sum(), alarms / (~scored.member).sum()
    kept = np.unique(np.searchsorted(x, np.geomspace(1 / (~scored.member).sum(), 1.0, POINTS), side="right") - 1)
    kept = kept[(kept >= 0) & (x[kept] > 0)]
    return Line(name, tuple(x[kept].tolist()), tuple(y[kept].tolist()))


def chance() -> Line:
    """What guessing reaches."""
    ends = (1e-4, 1.0)
    return Line("chance", ends, ends)


def too_few(scored: Scored, rates: Sequence[float] = RATES) -> list[str]:
    """A note for every rate that so few others cannot show."""
    others = int((~scored.member).sum())
    return [
        f"{others} answers about others cannot show a false alarm rate of {100 * rate:g} %: there, none of them is allowed."
        for rate in rates
        if rate * others < 1
    ]


def _below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    ordered = np.sort(others)
    strictly, at_most = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (strictly + at_most) / (2 * len(others))


def _variance(parts: np.ndarray, groups: np.ndarray, models: np.ndarray | None) -> float:
    """The variance of a sum of centred parts that belong together by group, and by model where there are several."""
    by_group = _clustered(parts, groups)
    if models is None:
        return by_group
    return max(by_group, by_group + _clustered(parts, models) - _clustered(parts, np.arange(len(parts))))


def _clustered(parts: np.ndarray, groups: np.ndarray) -> float:
    """The variance of a sum of centred parts of which those of one group belong together."""
    _, where = np.unique(groups, return_inverse=True)
    sums = np.bincount(where.ravel(), weights=parts)
    return float((sums**2).sum() * len(sums) / max(1, len(sums) - 1))


def _logit_interval(value: float, error: float, n: int) -> tuple[float, float]:
    """An interval that stays within (0, 1); where all answers are right or wrong, that of one more answer."""
    z = stats.norm.ppf((1 + LEVEL) / 2)
    inside = min(max(value, 0.5 / n), 1 - 0.5 / n)
    error = max(error, 0.5 / n)
    middle, width = math.log(inside / (1 - inside)), z * error / (inside * (1 - inside))
    low, high = (1 / (1 + math.exp(-end)) for end in (middle - width, middle + width))
    return min(low, value), max(high, value)
