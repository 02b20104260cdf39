"""What an audit measured, with exact limits, and the verdict: every check of an audit at one level in total.
Sums of squares of normals are chi-square (sigma^2 times). Draws: Clopper and Pearson 1934. Of two independent normal vectors in
n dimensions the squared cosine is Beta(1/2, (n-1)/2). Limits are one-sided, each wrong with probability at most `level`."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats
from torch import nn

from tacit.training.flat import blocks

LEVEL = 0.05  # of all checks of a first look
AGAIN = 0.05  # of a second look at those that failed
NOT_JUDGED = "shown, not judged"
COORDINATES = 20_000  # numbers that noise is judged by: .95 of it lies 10 standard errors below
MOST_CLIENTS = 6
FEWEST_ROUNDS = 4  # of one client, so that rounds can be compared
MOST_ROUNDS = 600
DRAWS = 20_000  # simulated, of which so many are counted that a level of 1 in 500 is known to a sixth
TOLERANCE = 0.01  # of an exact claim


@dataclass(frozen=True)
class Evidence:
    """Something measured, made by the functions below: each says what is claimed. `rejects(claimed, level)` happens to a true claim
    with probability at most `level`; `threshold(claimed, level, unit)` says what a value without limits is held against."""

    value: float
    limits: Callable[[float], tuple[float, float]]
    rejects: Callable[[float, float], bool]
    tests: int = 1  # looks at chance: 0 for what is exact
    threshold: Callable[[float, float, float], str] = lambda *_: ""


def noise(squares: float, count: int, excess: float = 0.0) -> Evidence:
    """A standard deviation, from the sum of `count` squared normals of mean zero. The claim: it is no smaller.
    `excess` is the excess kurtosis of the law (integer noise is nearly normal): it takes degrees of freedom away."""
    freedom = count * 2 / (2 + excess)

    def limits(level: float) -> tuple[float, float]:
        low, high = (math.sqrt(squares / count * freedom / stats.chi2.isf(p, freedom)) for p in (level, 1 - level))
        return low, high

    return Evidence(math.sqrt(squares / count), limits, lambda claimed, level: limits(level)[1] < claimed)


def least(of: Sequence[Evidence]) -> Evidence:
    """The smallest of several standard deviations, each of `noise`: the claim is about every one, and they share the level."""
    return Evidence(
        min(one.value for one in of),
        lambda level: min(one.limits(level / len(of)) for one in of),
        lambda claimed, level: any(one.rejects(claimed, level / len(of)) for one in of),
    )


def rate(hits: float, trials: float) -> Evidence:
    """How often units were drawn: `hits` of `trials` (Clopper-Pearson). The claim: with no larger probability."""

    def limits(level: float) -> tuple[float, float]:
        low = 0.0 if hits == 0 else float(stats.beta.ppf(level, hits, trials - hits + 1))
        return low, 1.0 if hits == trials else float(stats.beta.isf(level, hits + 1, trials - hits))

    return Evidence(hits / trials if trials else 0.0, limits, lambda claimed, level: limits(level)[0] > claimed)


def spread(counts: Sequence[int], sizes: tuple[int, ...], rates: tuple[float, ...]) -> Evidence:
    """How much the number of drawn units varies from draw to draw, over what independent draws at the claimed rate vary by.
    The claim: no less. Batches of a fixed size vary by nothing, and have another price. `counts` are of `sizes` units at `rates`;
    the law of the statistic is simulated, by draws of its own seed. It has no limits of its own."""
    value, law = float(_spread(np.array(counts), sizes, rates)), _independent(sizes, rates)
    as_little = (int((law <= value + 1e-12).sum()) + 1) / (DRAWS + 1)

    def threshold(_: float, level: float, unit: float) -> str:
        refuted = math.floor(level * (DRAWS + 1) + 1e-9) - 1  # so many simulated draws may vary as little
        return NOT_JUDGED if refuted < 0 else f"≥ {np.partition(law, refuted)[refuted] * unit:.3g}"

    return Evidence(value, lambda _: (value, value), lambda _, level: as_little <= level, threshold=threshold)


@lru_cache(maxsize=8)
def _independent(sizes: tuple[int, ...], rates: tuple[float, ...]) -> np.ndarray:
    drawn = np.random.default_rng(20_261_116).binomial(sizes, rates, size=(DRAWS, len(sizes)))
    return _spread(drawn, sizes, rates)


def _spread(counts: np.ndarray, sizes: tuple[int, ...], rates: tuple[float, ...]) -> np.ndarray:
    n, q = np.array(sizes), np.array(rates)
    return ((counts - n * q) ** 2 / (n * q * (1 - q))).mean(-1)


def likeness(cosine: float, length: int, pairs: int) -> Evidence:
    """The largest cosine between `pairs` of noise vectors of `length` coordinates. The claim: they are independent, so near 0."""

    def limits(level: float) -> tuple[float, float]:  # what independent noise stays below
        return 0.0, math.sqrt(float(stats.beta.isf(level / pairs, 0.5, (length - 1) / 2)))

    return Evidence(abs(cosine), limits, lambda _, level: abs(cosine) > limits(level)[1])


def exact(value: float, slack: float = 0.0) -> Evidence:
    """A number that no chance is in, but for rounding. The claim: it is no larger; `slack` is beside 1 % of the claim."""

    def most(claimed: float) -> float:
        return claimed * (1 + TOLERANCE) + slack

    def threshold(claimed: float, _: float, unit: float) -> str:
        return f"≤ {most(claimed) * unit:.4g}"

    return Evidence(value, lambda _: (value, value), lambda claimed, _: value > most(claimed), 0, threshold)


@dataclass(frozen=True)
class Check:
    """One number of one trainer (or of the server), as claimed and as measured. `fault` says in words what a rejection means."""

    where: str
    quantity: str
    claimed: float
    evidence: Evidence = field(repr=False)
    fault: str
    part: str = ""  # a layer, or nothing for all
    unit: float = 1.0  # what both numbers are multiplied by to be shown

    @property
    def name(self) -> tuple[str, str, str]:
        return self.where, self.quantity, self.part


@dataclass(frozen=True)
class Judged:
    """A check with its limits, at its share of the level."""

    check: Check
    low: float
    high: float
    rejected: bool
    against: str = ""  # the threshold of a number that has no limits of its own

    @property
    def verdict(self) -> str:
        return "rejected" if self.rejected else "–" if self.against == NOT_JUDGED else "stands"

    @property
    def sentence(self) -> str:
        check, unit = self.check, self.check.unit
        of = f" in {check.part}" if check.part else ""
        limits = "" if check.evidence.tests == 0 else f" ({self.low * unit:.4g} to {self.high * unit:.4g})"
        numbers = f"{check.quantity} {check.evidence.value * unit:.4g}{limits}, claimed {check.claimed * unit:.4g}"
        return f"{check.where}: {check.fault}{of}: {numbers}"

    def record(self) -> dict[str, Any]:
        check = self.check
        numbers = {"claimed": check.claimed, "as_run": check.evidence.value, "low": self.low, "high": self.high}
        about = dict(zip(("where", "quantity", "part"), check.name, strict=True))
        about |= {name: number * check.unit for name, number in numbers.items()}
        return about | {"exact": check.evidence.tests == 0, "held_against": self.against, "rejected": self.rejected}


@dataclass(frozen=True)
class Audit:
    """The audit of one experiment, and what could not be tried, with the reason."""

    name: str
    judged: tuple[Judged, ...] = field(repr=False)
    untried: tuple[str, ...] = ()
    bug: str | None = None
    level: float = LEVEL
    withdrawn: tuple[Judged, ...] = field(default=(), repr=False)  # failed at the first look, and not at the second

    @property
    def false_alarm(self) -> float:
        """The probability, at most, that any claim of clean code is rejected: it would have to fail in two independent looks."""
        return self.level * AGAIN

    @property
    def rejected(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.judged if one.rejected)

    @property
    def alarming(self) -> bool:
        return bool(self.rejected)

    @property
    def notes(self) -> tuple[str, ...]:
        once = "failed at a first look, as one true claim may in twenty audits, and not at a second, independent one"
        back = tuple(f"Not rejected: {one.sentence} {once}." for one in self.withdrawn)
        return (*(f"Not tried: {text}." for text in self.untried), *back)

    @property
    def sentence(self) -> str:
        if self.rejected:
            first, *more = self.rejected
            return f"The claim is rejected: {first.sentence}{f' (and {len(more)} more)' if more else ''}."
        if self.bug is not None:
            return f"The planted bug was not found: {len(self.judged)} checks, none rejected."
        return (
            f"The claim stands: {len(self.judged)} checks, none rejected (of clean code one would be with probability at most"
            f" {self.false_alarm:.2g})."
        )

    def record(self) -> dict[str, Any]:
        return {
            "experiment": self.name,
            "planted": self.bug,
            "level": self.level,
            "false_alarm": self.false_alarm,
            "rejected": self.alarming,
            "sentence": self.sentence,
            "checks": [one.record() for one in self.judged],
            "untried": list(self.untried),
            "withdrawn": [one.record() for one in self.withdrawn],
        }


def judge(checks: Sequence[Check], *, level: float = LEVEL) -> tuple[Judged, ...]:
    """Every check at its share of the level: those with chance in them share it evenly."""
    share = level / max(1, sum(check.evidence.tests for check in checks))

    def one(c: Check) -> Judged:
        against = c.evidence.threshold(c.claimed, share, c.unit)
        return Judged(c, *c.evidence.limits(share), c.evidence.rejects(c.claimed, share), against)

    return tuple(map(one, checks))


def unsure(judged: Sequence[Judged]) -> bool:
    """Whether claims failed that may all have failed by chance: what fails without chance in it is a fact."""
    failed = [one.check.evidence.tests for one in judged if one.rejected]
    return bool(failed) and min(failed) > 0


def confirmed(first: Sequence[Judged], second: Sequence[Check], *, level: float = AGAIN) -> tuple[Judged, ...]:
    """A first look with what a second one, of other randomness, did not reject again taken back.
    Guarantee: where every claim holds, one stays rejected with probability at most the first look's level times `level`. What the
    second look has no measurement of stays rejected."""
    failed = {one.check.name for one in first if one.rejected}
    again = {one.check.name: one.rejected for one in judge([c for c in second if c.name in failed], level=level)}
    return tuple(replace(one, rejected=one.rejected and again.get(one.check.name, True)) for one in first)


# Noise as it was released, for all layers in total and for each: checks of numbers whose claimed deviation is 1.


@dataclass(frozen=True)
class Layer:
    name: str
    place: slice


def layers_of(model: nn.Module) -> list[Layer]:
    """The trainable parameters. A frozen one is released as it was: it carries no noise and needs none."""
    pairs = zip(blocks(model), model.parameters(), strict=True)
    return [Layer(block.name, slice(block.start, block.stop)) for block, own in pairs if own.requires_grad]


def _size(layers: Sequence[Layer]) -> int:
    return sum(layer.place.stop - layer.place.start for layer in layers)


def clients_for(layers: Sequence[Layer]) -> int:
    """How many clients: two of a large model, more of a small one."""
    return min(MOST_CLIENTS, max(2, -(-COORDINATES // (FEWEST_ROUNDS * _size(layers)))))


def rounds_for(clients: int, layers: Sequence[Layer]) -> int:
    """How many rounds of so many clients give enough numbers."""
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, -(-COORDINATES // (clients * _size(layers)))))


def checks(
    where: str, released: np.ndarray, layers: Sequence[Layer], *, multiplier: float, excess: float = 0.0
) -> Iterator[Check]:
    """Checks of noise (rounds, clients, coordinates), each number over the deviation that is claimed for it.
    `multiplier` is what the ratio is shown by: the noise multiplier where all clients have one, else 1. Every vector is
    compared with every other one of the same client, and with those of other clients in the same round."""
    quantity = "noise multiplier" if multiplier != 1 else "noise over priced"

    def of(part: np.ndarray) -> Evidence:
        numbers = part.astype(np.float64).ravel()
        return noise(float(numbers @ numbers), numbers.size, excess)

    def check(evidence: Evidence, part: str = "") -> Check:
        return Check(where, quantity, 1.0, evidence, "less noise than is priced", part, multiplier)

    kept = np.concatenate([released[..., layer.place] for layer in layers], axis=-1)
    cosines = np.concatenate([alike(rows) for rows in (*kept.swapaxes(0, 1), *kept)])
    if len(cosines):
        evidence = likeness(float(np.abs(cosines).max()), kept.shape[-1], len(cosines))
        yield Check(where, "likeness of noises", 0.0, evidence, "the same noise in two releases")
    yield check(of(kept))
    if len(layers) > 1:
        yield from (check(of(released[..., layer.place]), layer.name) for layer in layers)
    if released.shape[1] > 1:
        yield check(least([of(rows) for rows in kept.swapaxes(0, 1)]), "least client")


def alike(rows: np.ndarray) -> np.ndarray:
    """The cosines between all rows of noise (row, coordinate); none where there is nothing to compare."""
    if rows.shape[1] < 2:
        return np.empty(0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(norms > 0, norms, 1.0)
    return (unit @ unit.T)[np.triu_indices(len(rows), 1)]
