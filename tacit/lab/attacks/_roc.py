"""How well a score tells members from others: estimates with 95 % intervals, ROC curves; and pictures of reconstructions.
AUC with DeLong's variance and shares by Clopper and Pearson, both clustered by whose answers they are, and by model."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tacit.errors import BadInput
from tacit.lab.audit import evidence
from tacit.lab.compare.findings import AUC, Line, Strip
from tacit.lab.compare.findings import Number as Estimate

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2
RATES = (0.001, 0.01)  # false alarm rates that papers report
POINTS = 200  # of a line that people look at
CHANCE = "chance"  # a line of this name is what guessing reaches
DIAGONAL = Line(CHANCE, (1e-4, 1.0), (1e-4, 1.0))
MOST_PICTURES = 10


@dataclass(frozen=True, eq=False)
class Scored:
    """Answers of one attack: a score, the truth, and the groups of each: whose answer it is, and perhaps of which model."""

    scores: np.ndarray
    member: np.ndarray
    groups: np.ndarray
    models: np.ndarray | None = None

    @classmethod
    def of(
        cls, scores: np.ndarray, member: np.ndarray, groups: np.ndarray | None = None, models: np.ndarray | None = None
    ) -> "Scored":
        """Flat arrays of whatever shape they come in. Raises BadInput where there are no members, or nobody else."""
        flat, truth, shape = np.asarray(scores, float).ravel(), np.asarray(member, bool).ravel(), np.shape(scores)
        whose = np.arange(len(flat)) if groups is None else np.broadcast_to(groups, shape).ravel()
        if truth.all() or not truth.any():
            raise BadInput("Expected members and others to tell apart.")
        return cls(flat, truth, whose, None if models is None else np.broadcast_to(models, shape).ravel())

    def only(self, some: np.ndarray) -> "Scored":
        """Some of the answers. Raises BadInput, as `of`."""
        models = None if self.models is None else self.models[some]
        return Scored.of(self.scores[some], self.member[some], self.groups[some], models)


def auc(scored: Scored, *, of: str = "") -> Estimate:
    """The probability that a member scores above somebody else, ties counting half, with its interval."""
    ins, outs = scored.scores[scored.member], scored.scores[~scored.member]
    above, under = _below(ins, outs), 1 - _below(outs, ins)  # of each member, and of each other
    value, n = float(above.mean()), len(scored.scores)
    parts = np.empty(n)
    parts[scored.member] = (above - value) / len(ins)
    parts[~scored.member] = (under - value) / len(outs)
    inside = min(max(value, 0.5 / n), 1 - 0.5 / n)
    error = max(math.sqrt(_variance(parts, scored.groups, scored.models)), 0.5 / n)
    middle = math.log(inside / (1 - inside))  # the interval is normal on the logit scale
    width = float(stats.norm.isf(TAIL)) * error / (inside * (1 - inside))
    low, high = (1 / (1 + math.exp(-end)) for end in (middle - width, middle + width))
    return Estimate(AUC, value, min(low, value), max(high, value), of)


def tpr_at(scored: Scored, rate: float, *, of: str = "") -> Estimate:
    """The share of members above a threshold that at most `rate` of the others pass, with its interval."""
    outs = np.sort(scored.scores[~scored.member])[::-1]
    allowed = math.floor(rate * len(outs) + 1e-9)  # a rate of .01 of 100 is one, whatever binary fractions say
    hit = scored.scores[scored.member] > outs[min(allowed, len(outs) - 1)]
    models = None if scored.models is None else scored.models[scored.member]
    groups, n, p = scored.groups[scored.member], len(hit), float(hit.mean())
    variance, independent = _variance((hit - p) / n, groups, models), float(len(np.unique(groups)))
    if 0 < p < 1 and variance > 0:
        independent = min(float(n), p * (1 - p) / variance)
    return Estimate(f"TPR at {100 * rate:g} % FPR", p, *evidence.rate(p * independent, independent).limits(TAIL), of)


def line(scored: Scored, name: str) -> Line:
    """The ROC curve, thinned evenly on a logarithmic axis."""
    order = np.argsort(-scored.scores, kind="stable")
    ends = np.flatnonzero(np.diff(scored.scores[order], append=-np.inf))  # equal scores are one step
    hits, alarms = np.cumsum(scored.member[order])[ends], np.cumsum(~scored.member[order])[ends]
    y, x = hits / scored.member.sum(), alarms / (~scored.member).sum()
    kept = np.unique(np.searchsorted(x, np.geomspace(1 / (~scored.member).sum(), 1.0, POINTS), side="right") - 1)
    kept = kept[(kept >= 0) & (x[kept] > 0)]
    return Line(name, tuple(x[kept].tolist()), tuple(y[kept].tolist()))


def banded(name: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Line:
    """Estimates as a line, with their intervals as its band."""
    low, high = (tuple(float(getattr(one, end) or 0.0) for one in estimates) for end in ("low", "high"))
    return Line(name, tuple(map(float, x)), tuple(one.value for one in estimates), low, high)


def too_few(scored: Scored) -> list[str]:
    """A note for every rate that so few others cannot show."""
    others = int((~scored.member).sum())
    cannot = f"{others} answers about others cannot show a false alarm rate of"
    return [f"{cannot} {100 * rate:g} %: there, none of them is allowed." for rate in RATES if rate * others < 1]


def _below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    # the share of others below each value, ties counting half
    ordered = np.sort(others)
    strictly, at_most = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (strictly + at_most) / (2 * len(others))


def _variance(parts: np.ndarray, groups: np.ndarray, models: np.ndarray | None) -> float:
    # of a sum of centred parts that belong together by group, and by model where there are several
    def clustered(by: np.ndarray) -> float:
        _, where = np.unique(by, return_inverse=True)
        sums = np.bincount(where.ravel(), weights=parts)
        return float((sums**2).sum() * len(sums) / max(1, len(sums) - 1))

    by_group = clustered(groups)
    if models is None:
        return by_group
    return max(by_group, by_group + clustered(models) - clustered(np.arange(len(parts))))


def strip_of(rows: Mapping[str, np.ndarray], shape: tuple[int, ...], *, low: float, high: float) -> Strip:
    """The first pictures of rows (picture, number) by their names; `low` is white, `high` black."""
    count = min(MOST_PICTURES, *(len(part) for part in rows.values()))

    def text(picture: np.ndarray) -> str:
        shades = np.clip((picture - low) / max(high - low, 1e-12), 0, 1)
        return base64.b64encode((255 * shades).round().astype(np.uint8).tobytes()).decode()

    colours, height, width = shape
    return Strip((colours, height, width), tuple((name, tuple(map(text, part[:count]))) for name, part in rows.items()))
