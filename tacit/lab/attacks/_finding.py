"""How well a score tells members from others, and how near a reconstruction comes: estimates with 95 % intervals, lines, pictures.

AUC with DeLong's variance and shares by Clopper and Pearson, both clustered by whose answers they are, and by model."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from tacit.errors import BadInput
from tacit.lab.compare.findings import AUC, BADGE, Line, Strip
from tacit.lab.compare.findings import Number as Estimate

LEVEL = 0.95
RATES = (0.001, 0.01)  # false alarm rates that papers report
POINTS = 200  # of a line that people look at
MOST_PICTURES = 10
SIDE = 0.8  # inches


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
    return Estimate(AUC, value, low, high, of)


def found_at(scored: Scored, rate: float, *, of: str = "") -> Estimate:
    """The share of members above a threshold that at most `rate` of the others pass, with its interval."""
    outs = np.sort(scored.scores[~scored.member])[::-1]
    allowed = math.floor(rate * len(outs) + 1e-9)  # a rate of .01 of 100 is one, whatever binary fractions say
    hit = scored.scores[scored.member] > outs[min(allowed, len(outs) - 1)]
    models = None if scored.models is None else scored.models[scored.member]
    low, high = share_interval(hit, scored.groups[scored.member], models)
    return Estimate(f"TPR at {100 * rate:g} % FPR", float(hit.mean()), low, high, of)


def share_interval(hit: np.ndarray, groups: np.ndarray, models: np.ndarray | None = None) -> tuple[float, float]:
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
    z = stats.norm.ppf((1 + LEVEL) / 2)
    inside = min(max(value, 0.5 / n), 1 - 0.5 / n)
    error = max(error, 0.5 / n)
    middle, width = math.log(inside / (1 - inside)), z * error / (inside * (1 - inside))
    low, high = (1 / (1 + math.exp(-end)) for end in (middle - width, middle + width))
    return min(low, value), max(high, value)


def are_pictures(shape: tuple[int, ...]) -> bool:
    """Whether rows are pictures: (1 or 3 colours, height, width).

    >>> are_pictures((1, 28, 28)), are_pictures((13,))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


def strip_of(rows: Mapping[str, np.ndarray], shape: tuple[int, ...], *, low: float, high: float) -> Strip:
    """The first pictures of rows (picture, number) by their names; `low` is white, `high` black.

    >>> strip_of({"records": np.array([[0.0, 1.0]])}, (1, 1, 2), low=0.0, high=1.0).rows
    (('records', ('AP8=',)),)
    """
    count = min(MOST_PICTURES, *(len(part) for part in rows.values()))

    def text(picture: np.ndarray) -> str:
        shown = np.clip((picture - low) / max(high - low, 1e-12), 0, 1)
        return base64.b64encode((255 * shown).round().astype(np.uint8).tobytes()).decode()

    colours, height, width = shape
    return Strip((colours, height, width), tuple((name, tuple(map(text, part[:count]))) for name, part in rows.items()))


def draw_strip(path: Path, strip: Strip) -> None:
    count = len(strip.rows[0][1])
    figure = Figure(figsize=(SIDE * (count + 1.5), SIDE * len(strip.rows) + 0.4), layout="constrained")
    cells = figure.subplots(len(strip.rows), count, squeeze=False)
    for line, (name, pictures) in zip(cells, strip.rows, strict=True):
        for axes, picture in zip(line, pictures, strict=True):
            shown = np.frombuffer(base64.b64decode(picture), np.uint8).reshape(strip.shape).transpose(1, 2, 0)
            axes.imshow(shown.squeeze(), cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, parse_math=False)
    figure.suptitle(f"The nearest of all reconstructions ({BADGE})", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
