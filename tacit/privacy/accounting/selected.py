"""The price of the best of a random number of runs: Papernot and Steinke 2022, arXiv:2110.03620v2.
K is drawn from the truncated negative binomial distribution D(shape, gamma) of Definition 1 (shape 1: geometric, 0:
logarithmic), so that there is at least one run; every run picks one of the candidates at random, and only the best is
released. Theorem 2: if one run has Rényi divergences e(a), then for every order b the release has at order a at most e(a)
+ (1 + shape) ((1 - 1/b) e(b) + log(1/gamma) / b) + log(E K) / (a - 1). That a run picks at random among candidates costs
at most what the dearest costs, order by order: the pick does not depend on rows.
Assumes, of whoever releases: runs are independent, the best is the largest of a total order on what runs would release,
and nothing else is told: not K, not the other runs, not how long they took."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import gmpy2
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import events, rdp

DRAWN_BITS, PRECISION, SMALLEST = (
    512,
    700,
    -600,
)  # of the uniform number behind K, of its arithmetic, of a probability that counts
SLACK = 2.0**-200  # far more than what such a K is, in total variation, away from its law
MOST_SHAPE, MOST_MEAN, MOST_CANDIDATES = 1000.0, 1e6, 10_000
ROUNDED = 1 + 1e-12  # more than what a dozen roundings of floats can take from a curve


@dataclass(frozen=True)
class Repetitions:
    """How often a search is run: K from D(shape, gamma), gamma in (0, 1). One object draws it and is in the price.

    >>> Repetitions(gamma=0.1).mean
    10.0
    """

    gamma: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        check.probability(gamma=self.gamma)
        check.at_least(0, shape=self.shape)
        if not self.shape <= MOST_SHAPE:
            raise BadInput(f"Expected shape <= {MOST_SHAPE:g}, got {self.shape!r}.")

    @property
    def mean(self) -> float:
        """E K, rounded up where it is no float."""
        with gmpy2.context(precision=PRECISION):
            exact = self._mean()
            found = float(exact)
            return found if found >= exact else math.nextafter(found, math.inf)

    def _mean(self) -> Any:
        gamma, shape = gmpy2.mpfr(self.gamma), gmpy2.mpfr(self.shape)
        if self.shape == 1:
            return 1 / gamma
        if self.shape == 0:
            return (1 / gamma - 1) / -gmpy2.log(gamma)
        return shape * (1 / gamma - 1) / (1 - gamma**shape)

    def draw(self, bits: Callable[[int], int] = secrets.randbits) -> int:
        """K, by inversion of its distribution function in 700 bits; from the operating system unless `bits` says otherwise.
        Guarantee: 2^-200 in total variation from D(shape, gamma), and at least 1."""
        with gmpy2.context(precision=PRECISION):
            gamma, shape = gmpy2.mpfr(self.gamma), gmpy2.mpfr(self.shape)
            uniform = gmpy2.mpfr(bits(DRAWN_BITS)) / gmpy2.mpfr(2) ** DRAWN_BITS
            first = -1 / gmpy2.log(gamma) if self.shape == 0 else shape / (gamma**-shape - 1)
            k, mass = 1, (1 - gamma) * first
            total, least = mass, gmpy2.mpfr(2) ** SMALLEST
            while uniform >= total and mass > least:
                mass *= (1 - gamma) * (k + shape) / (k + 1)
                k, total = k + 1, total + mass
            return k

    def words(self) -> str:
        law = {0.0: "logarithmic", 1.0: "geometric"}.get(
            self.shape, f"truncated negative binomial of shape {self.shape:g}"
        )
        return f"{law}, mean {self.mean:.4g}"


def about(mean: float, *, shape: float = 1.0) -> Repetitions:
    """The law of a given mean. Raises: BadInput for a mean that is not above 1, or above a million, and for a shape that
    there is not.

    >>> round(about(10, shape=0).gamma, 4)
    0.0269
    """
    if not 1 < mean <= MOST_MEAN:
        raise BadInput(
            f"Expected a mean number of runs above 1 and at most {MOST_MEAN:g}, got {mean!r}: a single run is `tacit run`."
        )
    low, high = math.log(1e-12), math.log1p(-1e-12)
    Repetitions(0.5, shape)  # refuses the shape
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if Repetitions(math.exp(middle), shape).mean < mean else (middle, high)
    return Repetitions(1 / mean if shape == 1 else math.exp(low), shape)


@dataclass(frozen=True)
class BestOfDpEvent(DpEvent):
    """One release: the best of K runs, K by `repetitions`, of which each is `runs[j]` for a j that chance picks. `runs` are
    (event, how often it happens in a run). Guarantee: add or remove one, as those events; Theorem 2. Raises: BadInput for
    events that are no sampled Gaussian releases, and for none."""

    repetitions: Repetitions
    runs: tuple[tuple[DpEvent, int], ...] = field(repr=True)

    def __post_init__(self) -> None:
        if not 0 < len(self.runs) <= MOST_CANDIDATES:
            raise BadInput(f"Expected 1 to {MOST_CANDIDATES} candidates, got {len(self.runs)}.")
        for event, count in self.runs:
            if events.kind_of(event).name != "sampled-gaussian" or events.release_count(count) == 0:
                raise BadInput("No price is known here for the best of such runs.")


def best_of(repetitions: Repetitions, runs: list[tuple[DpEvent, int]]) -> BestOfDpEvent:
    """The event of a search among runs; equal ones are one, counts around an event are taken with it."""
    plain = {}
    for event, count in runs:
        inner, times = events.counted(event)
        plain[inner, times * count] = None
    return BestOfDpEvent(repetitions, tuple(sorted(plain, key=repr)))


@lru_cache(maxsize=1024)
def curve(event: BestOfDpEvent) -> np.ndarray:
    """Upper bounds of its Rényi divergences at `sampled_rdp.ORDERS`: Theorem 2, with the best b; orders below by monotonicity."""
    a, law = rdp.ORDERS, event.repetitions
    one = np.max([count * events.kind_of(inner).divergences(inner) for inner, count in event.runs], axis=0)
    shared = (1 + law.shape) * float(np.min((1 - 1 / a) * one - math.log(law.gamma) / a))
    bound = one + shared + math.log(law.mean) / (a - 1)
    return np.minimum.accumulate(bound[::-1])[::-1] * ROUNDED  # a divergence never falls with its order


def _record(event: BestOfDpEvent) -> dict[str, Any]:
    law, kind = event.repetitions, events.kind_named("sampled-gaussian")
    return {
        "gamma": law.gamma,
        "shape": law.shape,
        "runs": [{**kind.to_record(inner), "rounds": count} for inner, count in event.runs],
    }


def _read(record: dict[str, Any]) -> BestOfDpEvent:
    kind, runs = events.kind_named("sampled-gaussian"), []
    for run in record["runs"]:
        count = events.release_count(run["rounds"])
        runs.append((kind.from_record({key: value for key, value in run.items() if key != "rounds"}), count))
    return BestOfDpEvent(Repetitions(float(record["gamma"]), float(record["shape"])), tuple(runs))


events.register(
    events.Kind(
        "best-of-runs",
        (BestOfDpEvent,),
        _record,
        _read,
        curve=curve,
        slack=lambda event: SLACK,
        bound="RDP of the best of a random number of runs (arXiv:2110.03620, Theorem 2)",
    )
)
