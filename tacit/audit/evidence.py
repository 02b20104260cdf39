"""What was seen, with exact limits: the estimators of an audit.

Normal noise: sums of squares are chi-square (sigma^2 times). Draws: Clopper and Pearson 1934, from the binomial itself.
Independence: of two independent normal vectors in n dimensions the squared cosine is Beta(1/2, (n-1)/2). Each limit is one-sided
at the level it is asked for, so that "low" alone is wrong with at most that probability, and so is "high".
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy import stats


class Evidence(Protocol):
    """Something measured: a value with its limits, and how unlikely it is where a claim holds."""

    tests: int  # how many looks at chance it is: 0 for what is exact

    @property
    def value(self) -> float:
        """The estimate."""
        ...

    def limits(self, level: float) -> tuple[float, float]:
        """The lower and the upper limit, each wrong with probability at most `level`."""
        ...

    def rejects(self, claimed: float, level: float) -> bool:
        """Whether the claim is refuted, where that happens to a true claim with probability at most `level`."""
        ...


@dataclass(frozen=True)
class Noise:
    """A standard deviation, from the sum of `count` squared normals of mean zero. The claim: it is no smaller.

    `excess` is the excess kurtosis of the law (integer noise is nearly normal): it takes degrees of freedom away.

    >>> [round(limit, 3) for limit in Noise(squares=400.0, count=400).limits(0.025)]
    [0.935, 1.074]
    """

    squares: float
    count: int
    excess: float = 0.0
    tests = 1

    @property
    def value(self) -> float:
        """The estimate."""
        return math.sqrt(self.squares / self.count)

    def limits(self, level: float) -> tuple[float, float]:
        """Chi-square limits."""
        freedom = self.count * 2 / (2 + self.excess)
        mean = self.squares / self.count * freedom
        return tuple(math.sqrt(mean / stats.chi2.isf(p, freedom)) for p in (level, 1 - level))  # type: ignore[return-value]

    def rejects(self, claimed: float, level: float) -> bool:
        """Even the upper limit is below the claim."""
        return self.limits(level)[1] < claimed


@dataclass(frozen=True)
class LeastNoise:
    """The smallest of several standard deviations, each of `Noise`: the claim is about every one of them."""

    of: tuple[Noise, ...]
    tests = 1

    @property
    def value(self) -> float:
        """The smallest estimate."""
        return min(one.value for one in self.of)

    def limits(self, level: float) -> tuple[float, float]:
        """Of the smallest, at the level that all of them share."""
        return min(one.limits(level / len(self.of)) for one in self.of)

    def rejects(self, claimed: float, level: float) -> bool:
        """One of them is refuted at its share of the level."""
        return any(one.rejects(claimed, level / len(self.of)) for one in self.of)


@dataclass(frozen=True)
class Rate:
    """How often units were drawn: `hits` of `trials`. The claim: with no larger probability.

    >>> round(Rate(hits=0, trials=100).limits(0.05)[1], 4)
    0.0295
    """

    hits: int
    trials: int
    tests = 1

    @property
    def value(self) -> float:
        """The share that was drawn."""
        return self.hits / self.trials

    def limits(self, level: float) -> tuple[float, float]:
        """Clopper-Pearson limits."""
        k, n = self.hits, self.trials
        low = 0.0 if k == 0 else float(stats.beta.ppf(level, k, n - k + 1))
        high = 1.0 if k == n else float(stats.beta.isf(level, k + 1, n - k))
        return low, high

    def rejects(self, claimed: float, level: float) -> bool:
        """Even the lower limit is above the claim."""
        return self.limits(level)[0] > claimed


@dataclass(frozen=True)
class Spread:
    """How much the number of drawn units varies from draw to draw, over what independent draws at the claimed rate vary by.

    The claim: no less. Batches of a fixed size vary by nothing, and have another price. `counts` are of `sizes` units at `rate`;
    the law of the statistic is simulated, by draws of its own seed.
    """

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    rate: tuple[float, ...]
    tests = 1
    DRAWS = 20_000  # of which so many are counted that a level of 1 in 500 is known to a sixth

    @property
    def value(self) -> float:
        """The mean squared deviation from the expected number, over the binomial variance."""
        return float(_spread(np.array(self.counts), self.sizes, self.rate))

    def limits(self, level: float) -> tuple[float, float]:
        """None are claimed: the ratio itself."""
        return self.value, self.value

    def least(self, level: float) -> float | None:
        """The smallest value that is not refuted; None where at this level none could be: too few draws were simulated.

        >>> draws = Spread((5, 5), (10, 10), (0.5, 0.5))
        >>> draws.least(1e-9) is None, draws.rejects(1.0, 0.5), draws.least(0.5) > draws.value
        (True, True, True)
        """
        refuted = math.floor(level * (self.DRAWS + 1) + 1e-9) - 1  # so many simulated draws may vary as little
        if refuted < 0:
            return None
        return float(np.partition(_independent(self.sizes, self.rate, self.DRAWS), refuted)[refuted])

    def rejects(self, claimed: float, level: float) -> bool:
        """Fewer than `level` of simulated draws vary as little."""
        as_little = int((_independent(self.sizes, self.rate, self.DRAWS) <= self.value + 1e-12).sum())
        return (as_little + 1) / (self.DRAWS + 1) <= level


@lru_cache(maxsize=8)
def _independent(sizes: tuple[int, ...], rate: tuple[float, ...], draws: int) -> np.ndarray:
    """The spread of so many simulated independent draws: of one seed, so that equal questions have one answer."""
    drawn = np.random.default_rng(20_261_116).binomial(sizes, rate, size=(draws, len(sizes)))
    return _spread(drawn, sizes, rate)


def _spread(counts: np.ndarray, sizes: tuple[int, ...], rate: tuple[float, ...]) -> np.ndarray:
    n, q = np.array(sizes), np.array(rate)
    return ((counts - n * q) ** 2 / (n * q * (1 - q))).mean(-1)


@dataclass(frozen=True)
class Likeness:
    """The largest cosine between `pairs` of noise vectors of `length` coordinates. The claim: they are independent, so near 0.

    >>> Likeness(0.1, length=650, pairs=6).rejects(0.0, 0.01), Likeness(1.0, length=650, pairs=6).rejects(0.0, 0.01)
    (False, True)
    """

    cosine: float
    length: int
    pairs: int
    tests = 1

    @property
    def value(self) -> float:
        """The largest cosine, without its sign."""
        return abs(self.cosine)

    def limits(self, level: float) -> tuple[float, float]:
        """What independent noise stays below."""
        most = stats.beta.isf(level / self.pairs, 0.5, (self.length - 1) / 2)
        return 0.0, math.sqrt(float(most))

    def rejects(self, claimed: float, level: float) -> bool:
        """More alike than independent noise is."""
        return self.value > self.limits(level)[1]


@dataclass(frozen=True)
class Exact:
    """A number that no chance is in, but for rounding. The claim: it is no larger."""

    value: float
    tolerance: float = 0.01  # of the claim
    slack: float = 0.0  # beside it
    tests = 0

    def limits(self, level: float) -> tuple[float, float]:
        """The number itself."""
        return self.value, self.value

    def rejects(self, claimed: float, level: float) -> bool:
        """Beyond the claim by more than rounding explains."""
        return self.value > claimed * (1 + self.tolerance) + self.slack


NOT_JUDGED = "shown, not judged"


def held_against(evidence: Evidence, claimed: float, *, level: float, unit: float = 1.0) -> str:
    """What a number without limits of its own is held against, in words; empty for one with limits, which the claim lies within.

    >>> held_against(Exact(2.0), 1.0, level=0.05), held_against(Exact(0.0, slack=0.05), 0.0, level=0.05)
    ('≤ 1.01', '≤ 0.05')
    """
    if isinstance(evidence, Spread):
        least = evidence.least(level)
        return NOT_JUDGED if least is None else f"≥ {least * unit:.3g}"
    if not isinstance(evidence, Exact):
        return ""
    return f"≤ {(claimed * (1 + evidence.tolerance) + evidence.slack) * unit:.4g}"
