"""What an audit measured, with exact limits, and the verdict: every check of an audit at one level in total.

Normal noise: sums of squares are chi-square (sigma^2 times). Draws: Clopper and Pearson 1934, from the binomial itself.
Independence: of two independent normal vectors in n dimensions the squared cosine is Beta(1/2, (n-1)/2). Evidence has a `value`,
`limits(level)`, each one-sided and wrong with probability at most `level`, and `rejects(claimed, level)`, which happens to a true
claim with probability at most `level`; `tests` is how many looks at chance it is, 0 for what is exact."""

import math
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Noise:
    """A standard deviation, from the sum of `count` squared normals of mean zero. The claim: it is no smaller.
    `excess` is the excess kurtosis of the law (integer noise is nearly normal): it takes degrees of freedom away."""

    squares: float
    count: int
    excess: float = 0.0
    tests = 1

    @property
    def value(self) -> float:
        return math.sqrt(self.squares / self.count)

    def limits(self, level: float) -> tuple[float, float]:
        freedom = self.count * 2 / (2 + self.excess)
        mean = self.squares / self.count * freedom
        return tuple(math.sqrt(mean / stats.chi2.isf(p, freedom)) for p in (level, 1 - level))  # type: ignore[return-value]

    def rejects(self, claimed: float, level: float) -> bool:
        return self.limits(level)[1] < claimed


@dataclass(frozen=True)
class LeastNoise:
    """The smallest of several standard deviations, each of `Noise`: the claim is about every one, and they share the level."""

    of: tuple[Noise, ...]
    tests = 1

    @property
    def value(self) -> float:
        return min(one.value for one in self.of)

    def limits(self, level: float) -> tuple[float, float]:
        return min(one.limits(level / len(self.of)) for one in self.of)

    def rejects(self, claimed: float, level: float) -> bool:
        return any(one.rejects(claimed, level / len(self.of)) for one in self.of)


@dataclass(frozen=True)
class Rate:
    """How often units were drawn: `hits` of `trials` (Clopper-Pearson). The claim: with no larger probability."""

    hits: float
    trials: float
    tests = 1

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def limits(self, level: float) -> tuple[float, float]:
        k, n = self.hits, self.trials
        low = 0.0 if k == 0 else float(stats.beta.ppf(level, k, n - k + 1))
        return low, 1.0 if k == n else float(stats.beta.isf(level, k + 1, n - k))

    def rejects(self, claimed: float, level: float) -> bool:
        return self.limits(level)[0] > claimed


@dataclass(frozen=True)
class Spread:
    """How much the number of drawn units varies from draw to draw, over what independent draws at the claimed rate vary by.
    The claim: no less. Batches of a fixed size vary by nothing, and have another price. `counts` are of `sizes` units at `rate`;
    the law of the statistic is simulated, by draws of its own seed. It has no limits of its own."""

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    rate: tuple[float, ...]
    tests = 1
    DRAWS = 20_000  # of which so many are counted that a level of 1 in 500 is known to a sixth

    @property
    def value(self) -> float:
        return float(_spread(np.array(self.counts), self.sizes, self.rate))

    def limits(self, level: float) -> tuple[float, float]:
        return self.value, self.value

    def least(self, level: float) -> float | None:
        """The smallest value that is not refuted; None where at this level none could be: too few draws were simulated."""
        refuted = math.floor(level * (self.DRAWS + 1) + 1e-9) - 1  # so many simulated draws may vary as little
        if refuted < 0:
            return None
        return float(np.partition(_independent(self.sizes, self.rate, self.DRAWS), refuted)[refuted])

    def rejects(self, claimed: float, level: float) -> bool:
        as_little = int((_independent(self.sizes, self.rate, self.DRAWS) <= self.value + 1e-12).sum())
        return (as_little + 1) / (self.DRAWS + 1) <= level


@lru_cache(maxsize=8)
def _independent(sizes: tuple[int, ...], rate: tuple[float, ...], draws: int) -> np.ndarray:
    drawn = np.random.default_rng(20_261_116).binomial(sizes, rate, size=(draws, len(sizes)))
    return _spread(drawn, sizes, rate)


def _spread(counts: np.ndarray, sizes: tuple[int, ...], rate: tuple[float, ...]) -> np.ndarray:
    n, q = np.array(sizes), np.array(rate)
    return ((counts - n * q) ** 2 / (n * q * (1 - q))).mean(-1)


@dataclass(frozen=True)
class Likeness:
    """The largest cosine between `pairs` of noise vectors of `length` coordinates. The claim: they are independent, so near 0."""

    cosine: float
    length: int
    pairs: int
    tests = 1

    @property
    def value(self) -> float:
        return abs(self.cosine)

    def limits(self, level: float) -> tuple[float, float]:
        most = stats.beta.isf(level / self.pairs, 0.5, (self.length - 1) / 2)
        return 0.0, math.sqrt(float(most))  # what independent noise stays below

    def rejects(self, claimed: float, level: float) -> bool:
        return self.value > self.limits(level)[1]


@dataclass(frozen=True)
class Exact:
    """A number that no chance is in, but for rounding. The claim: it is no larger."""

    value: float
    tolerance: float = 0.01  # of the claim
    slack: float = 0.0  # beside it
    tests = 0

    def most(self, claimed: float) -> float:
        return claimed * (1 + self.tolerance) + self.slack

    def limits(self, level: float) -> tuple[float, float]:
        return self.value, self.value

    def rejects(self, claimed: float, level: float) -> bool:
        return self.value > self.most(claimed)


Evidence = Noise | LeastNoise | Rate | Spread | Likeness | Exact


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
        against = ""
        if isinstance(c.evidence, Spread):
            least = c.evidence.least(share)
            against = NOT_JUDGED if least is None else f"≥ {least * c.unit:.3g}"
        elif isinstance(c.evidence, Exact):
            against = f"≤ {c.evidence.most(c.claimed) * c.unit:.4g}"
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
    where: str, noise: np.ndarray, layers: Sequence[Layer], *, multiplier: float, excess: float = 0.0
) -> Iterator[Check]:
    """Checks of noise (rounds, clients, coordinates), each number over the deviation that is claimed for it.
    `multiplier` is what the ratio is shown by: the noise multiplier where all clients have one, else 1. Every vector is
    compared with every other one of the same client, and with those of other clients in the same round."""
    quantity = "noise multiplier" if multiplier != 1 else "noise over priced"

    def noise_of(part: np.ndarray) -> Noise:
        numbers = part.astype(np.float64).ravel()
        return Noise(float(numbers @ numbers), numbers.size, excess)

    def check(evidence: Evidence, part: str = "") -> Check:
        return Check(where, quantity, 1.0, evidence, "less noise than is priced", part, multiplier)

    kept = np.concatenate([noise[..., layer.place] for layer in layers], axis=-1)
    pairs = [alike(rows) for rows in (*kept.swapaxes(0, 1), *kept)]
    if compared := [one for one in pairs if one is not None]:
        worst = max(compared, key=lambda one: one.value)
        evidence = replace(worst, pairs=sum(one.pairs for one in compared))
        yield Check(where, "likeness of noises", 0.0, evidence, "the same noise in two releases")
    yield check(noise_of(kept))
    if len(layers) > 1:
        yield from (check(noise_of(noise[..., layer.place]), layer.name) for layer in layers)
    if noise.shape[1] > 1:
        yield check(LeastNoise(tuple(map(noise_of, kept.swapaxes(0, 1)))), "least client")


def alike(noise: np.ndarray) -> Likeness | None:
    """The most alike two rows of noise (rows, coordinates); None where there is nothing to compare."""
    rows, length = noise.shape
    if rows < 2 or length < 2:
        return None
    norms = np.linalg.norm(noise, axis=1, keepdims=True)
    unit = noise / np.where(norms > 0, norms, 1.0)
    cosines = (unit @ unit.T)[np.triu_indices(rows, 1)]
    return Likeness(float(cosines[np.abs(cosines).argmax()]), length, len(cosines))
