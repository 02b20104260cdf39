"""What a release can be: a closed list of kinds, each with its price, the change it protects against, and its words in a
ledger. A `DpEvent` (dp-accounting) describes a release; its `Kind` says the rest. Reading a ledger looks a name up in the
list and imports nothing; code adds a kind by `register`, and nothing that stands in a file can."""

import math
import secrets
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal

import dp_accounting
import gmpy2
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import rdp

# The event of a query: integers that carry a rounded Gaussian. It costs what the Gaussian costs.

SLACK = 2.0**-190  # total variation of a whole query; its mechanism refuses to be further from its law


@dataclass(frozen=True)
class RoundedGaussianDpEvent(DpEvent):
    """One release of a vector of integers under a rounded Gaussian of `noise_multiplier` times the vector's sensitivity.

    >>> RoundedGaussianDpEvent(2.0).gaussian
    (1.0, 2.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    @property
    def gaussian(self) -> tuple[float, float]:
        """(q, z): every record is in it, and the noise is z times what one can change."""
        return 1.0, self.noise_multiplier


Relation = Literal["add or remove one", "replace one"]
OURS = frozenset({"event", "steps"})  # what a ledger's line says beside a kind's own words
MOST_RELEASES = 2**53  # counts up to here are exact as floats


def _itself(event: DpEvent) -> DpEvent:
    return event


@dataclass(frozen=True)
class Kind:
    """A kind of event, for all events of its `types`; kinds of one `relation` have a price together, others have none.
    `gaussian` gives (q, z) of what costs no more than a Gaussian release with multiplier z of a Poisson sample at rate q.
    What is no such thing gives a `curve`, upper bounds of its Rényi divergences at `rdp.ORDERS`. `slack` is how far, in
    total variation, a release may be from that; `alone` is the same release to whoever sees one client's report alone.
    Guarantee asked of whoever writes one: every bound holds, and `from_record(to_record(event))` costs what `event` costs."""

    name: str
    types: tuple[type[DpEvent], ...]
    to_record: Callable[[Any], dict[str, Any]]
    from_record: Callable[[dict[str, Any]], DpEvent]
    gaussian: Callable[[Any], tuple[float, float]] | None = None
    curve: Callable[[Any], np.ndarray] | None = None
    slack: Callable[[Any], float] | None = None
    relation: Relation = "add or remove one"
    bound: str = "RDP (rounded up)"  # what a Rényi price of it is called
    alone: Callable[[Any], DpEvent] = _itself

    def __post_init__(self) -> None:
        if self.gaussian is None and self.curve is None:
            raise BadInput(f"The event {self.name!r} has no price: give it `gaussian` or `curve`.")

    def divergences(self, event: DpEvent) -> np.ndarray:
        """Upper bounds of its Rényi divergences at `rdp.ORDERS`."""
        return self.curve(event) if self.curve else rdp.poisson(*self.gaussian(event))  # type: ignore[misc]


_KINDS: dict[str | type[DpEvent], Kind] = {}


def register(kind: Kind) -> None:
    """Adds a kind, for as long as the process lives. Guarantee: a ledger's words never change their meaning. Raises: BadInput
    for a name or a type that has a kind already."""
    for key in (kind.name, *kind.types):
        if key in _KINDS:
            raise BadInput(f"There is an event {getattr(key, '__name__', key)!r} already: take another name.")
    _KINDS.update(dict.fromkeys((kind.name, *kind.types), kind))


def kind_of(event: DpEvent) -> Kind:
    """The kind of an event without counts around it. Raises: BadInput for an event that has no price here; a subclass of a
    known one is another event.

    >>> kind_of(dp_accounting.GaussianDpEvent(1.0)).name
    'sampled-gaussian'
    """
    if type(event) not in _KINDS:
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    return _KINDS[type(event)]


def kind_named(name: object) -> Kind:
    """The kind of this name in a ledger. Nothing is imported. Raises BadInput for a name that this version does not know."""
    if not isinstance(name, str) or name not in _KINDS:
        raise BadInput(f"This ledger holds an event of kind {name!r} that this version cannot price.")
    return _KINDS[name]


def counted(event: DpEvent) -> tuple[DpEvent, int]:
    """An event without the self-compositions around it, and how often it happens. Raises: BadInput for a count that is no
    whole number, negative, or beyond 2^53.

    >>> counted(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 7))
    (GaussianDpEvent(noise_multiplier=1.0), 7)
    """
    times = 1
    while isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, times = event.event, release_count(times * release_count(event.count))
    return event, times


def release_count(count: int) -> int:
    """A number of releases. Raises: BadInput unless it is whole, from 0 to 2^53: a negative one would pay charges back.

    >>> release_count(-1)
    Traceback (most recent call last):
    tacit.errors.BadInput: Expected a whole number of releases between 0 and 2^53, got -1.
    """
    if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= MOST_RELEASES:
        raise BadInput(f"Expected a whole number of releases between 0 and 2^53, got {count!r}.")
    return int(count)


def relation(event: DpEvent) -> Relation:
    """The change that an event's price is for, counts around it or not. Raises BadInput for an event that has no price.

    >>> relation(dp_accounting.SampledWithoutReplacementDpEvent(50, 10, dp_accounting.GaussianDpEvent(1.0)))
    'replace one'
    """
    return kind_of(counted(event)[0]).relation


def refuse_mixed(relations: AbstractSet[str]) -> None:
    """Refuses to add prices for different changes: "replace one" and "add or remove one" are different promises. Raises:
    BadInput, which says to use another ledger."""
    if len(relations) > 1:
        raise BadInput(
            "Fixed-size cohorts (replace one) and other releases (add or remove one) have no common price:"
            " use another privacy.ledger."
        )


def alone(event: DpEvent) -> DpEvent:
    """What an event is, counts around it or not, to whoever sees one client's report alone: of a sum of shares, one share.
    Raises: BadInput for an event that has no price."""
    inner, times = counted(event)
    return dp_accounting.SelfComposedDpEvent(kind_of(inner).alone(inner), times)


def _sampled_record(event: DpEvent) -> dict[str, Any]:
    rate, z = rdp.rate_and_multiplier(event)
    return {"noise_multiplier": z, "sampling_rate": rate}


def _sampled(record: dict[str, Any]) -> DpEvent:
    one, rate = dp_accounting.GaussianDpEvent(record["noise_multiplier"]), record["sampling_rate"]
    check.rate(sampling_rate=rate)
    event = dp_accounting.PoissonSampledDpEvent(rate, one) if rate < 1 else one
    rdp.rate_and_multiplier(event)  # refuses numbers that have no price
    return event


def _fixed_record(event: dp_accounting.SampledWithoutReplacementDpEvent) -> dict[str, Any]:
    _, z = rdp.share_and_multiplier(event)
    return {"noise_multiplier": z, "population": event.source_dataset_size, "cohort": event.sample_size}


def _fixed(record: dict[str, Any]) -> DpEvent:
    one = dp_accounting.GaussianDpEvent(record["noise_multiplier"])
    event = dp_accounting.SampledWithoutReplacementDpEvent(record["population"], record["cohort"], one)
    rdp.share_and_multiplier(event)  # refuses numbers that have no price
    return event


register(
    Kind(
        "sampled-gaussian",
        (dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent),
        _sampled_record,
        _sampled,
        gaussian=rdp.rate_and_multiplier,
    )
)
register(
    Kind(
        "fixed-cohort-gaussian",
        (dp_accounting.SampledWithoutReplacementDpEvent,),
        _fixed_record,
        _fixed,
        curve=lambda event: rdp.without_replacement(*rdp.share_and_multiplier(event)),
        relation="replace one",
    )
)
register(
    Kind(
        "integer-sum",
        (rdp.IntegerSumDpEvent,),
        asdict,
        lambda record: rdp.IntegerSumDpEvent(**record),
        curve=rdp.default_curve,
        slack=lambda event: event.slack + event.cut,
        bound="RDP (arXiv:2110.04995, arXiv:2102.06387)",
        alone=rdp.IntegerSumDpEvent.alone,
    )
)
register(
    Kind(
        "rounded-gaussian",
        (RoundedGaussianDpEvent,),
        asdict,
        lambda record: RoundedGaussianDpEvent(**record),
        gaussian=lambda event: event.gaussian,
        slack=lambda event: SLACK,
    )
)


# The price of the best of a random number of runs: Papernot and Steinke 2022, arXiv:2110.03620v2.
# K is drawn from the truncated negative binomial distribution D(shape, gamma) of Definition 1 (shape 1: geometric, 0:
# logarithmic), so that there is at least one run; every run picks one of the candidates at random, and only the best is
# released. Theorem 2: if one run has Rényi divergences e(a), then for every order b the release has at order a at most e(a)
# + (1 + shape) ((1 - 1/b) e(b) + log(1/gamma) / b) + log(E K) / (a - 1). That a run picks at random among candidates costs
# at most what the dearest costs, order by order: the pick does not depend on rows.
# Assumes, of whoever releases: runs are independent, the best is the largest of a total order on what runs would release,
# and nothing else is told: not K, not the other runs, not how long they took.

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
            if kind_of(event).name != "sampled-gaussian" or release_count(count) == 0:
                raise BadInput("No price is known here for the best of such runs.")


def best_of(repetitions: Repetitions, runs: list[tuple[DpEvent, int]]) -> BestOfDpEvent:
    """The event of a search among runs; equal ones are one, counts around an event are taken with it."""
    plain = {}
    for event, count in runs:
        inner, times = counted(event)
        plain[inner, times * count] = None
    return BestOfDpEvent(repetitions, tuple(sorted(plain, key=repr)))


@lru_cache(maxsize=1024)
def curve(event: BestOfDpEvent) -> np.ndarray:
    """Upper bounds of its Rényi divergences at `sampled_rdp.ORDERS`: Theorem 2, with the best b; orders below by monotonicity."""
    a, law = rdp.ORDERS, event.repetitions
    one = np.max([count * kind_of(inner).divergences(inner) for inner, count in event.runs], axis=0)
    shared = (1 + law.shape) * float(np.min((1 - 1 / a) * one - math.log(law.gamma) / a))
    bound = one + shared + math.log(law.mean) / (a - 1)
    return np.minimum.accumulate(bound[::-1])[::-1] * ROUNDED  # a divergence never falls with its order


def _best_record(event: BestOfDpEvent) -> dict[str, Any]:
    law, kind = event.repetitions, kind_named("sampled-gaussian")
    return {
        "gamma": law.gamma,
        "shape": law.shape,
        "runs": [{**kind.to_record(inner), "rounds": count} for inner, count in event.runs],
    }


def _best(record: dict[str, Any]) -> BestOfDpEvent:
    kind, runs = kind_named("sampled-gaussian"), []
    for run in record["runs"]:
        count = release_count(run["rounds"])
        runs.append((kind.from_record({key: value for key, value in run.items() if key != "rounds"}), count))
    return BestOfDpEvent(Repetitions(float(record["gamma"]), float(record["shape"])), tuple(runs))


register(
    Kind(
        "best-of-runs",
        (BestOfDpEvent,),
        _best_record,
        _best,
        curve=curve,
        slack=lambda event: SLACK,
        bound="RDP of the best of a random number of runs (arXiv:2110.03620, Theorem 2)",
    )
)
