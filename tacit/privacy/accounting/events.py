"""What a release can be: a closed list of kinds, each with its price, the change it protects against, and its words in a
ledger. Reading a ledger looks a name up in the list and imports nothing; code adds a kind by `register`, no file can."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import rdp

OURS = frozenset({"event", "steps"})  # what a ledger's line says beside a kind's own words
SLACK = 2.0**-200  # in total variation: more than what a drawn K, or a whole noised query, may be away from its law
LONGEST = 100  # characters of the name of a split or a side
ROUNDED_DOWN, ROUNDED_UP = 1 - 2.0**-48, 2.0**-40


@dataclass(frozen=True)
class Kind:
    """A kind of event, for all events of its `types`; every price is for add or remove one. `gaussian` gives (q, z) of what
    costs no more than a Gaussian release with multiplier z of a Poisson sample at rate q; else `curve` gives upper bounds of
    its Rényi divergences at `rdp.ORDERS`. Guarantee asked of whoever writes one: every bound holds, and
    `from_record(to_record(event))` costs what `event` costs."""

    name: str
    types: tuple[type[DpEvent], ...]
    to_record: Callable[[Any], dict[str, Any]]
    from_record: Callable[[dict[str, Any]], DpEvent]
    gaussian: Callable[[Any], tuple[float, float]] | None = None
    curve: Callable[[Any], np.ndarray] | None = None
    slack: Callable[[Any], float] = lambda event: 0.0
    bound: str = "RDP (rounded up)"  # what a Rényi price of it is called
    alone: Callable[[Any], DpEvent] = lambda event: event

    def __post_init__(self) -> None:
        if self.gaussian is None and self.curve is None:
            raise BadInput(f"The event {self.name!r} has no price: give it `gaussian` or `curve`.")

    def divergences(self, event: DpEvent) -> np.ndarray:
        """Upper bounds of its Rényi divergences at `rdp.ORDERS`."""
        return self.curve(event) if self.curve else rdp.poisson(*self.gaussian(event))  # type: ignore[misc]


_KINDS: dict[str | type[DpEvent], Kind] = {}


def register(kind: Kind) -> None:
    """Adds a kind, for as long as the process lives. Raises: BadInput for a name or a type that has a kind already, so that
    a ledger's words never change their meaning."""
    for key in (kind.name, *kind.types):
        if key in _KINDS:
            raise BadInput(f"There is an event {getattr(key, '__name__', key)!r} already: take another name.")
    _KINDS.update(dict.fromkeys((kind.name, *kind.types), kind))


def kind_of(event: DpEvent) -> Kind:
    """The kind of an event without counts around it. Raises: BadInput for an event that has no price here; a subclass of a
    known one is another event."""
    if type(event) not in _KINDS:
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    return _KINDS[type(event)]


def kind_named(name: object) -> Kind:
    """The kind of this name in a ledger. Nothing is imported. Raises BadInput for a name that this version does not know."""
    if not isinstance(name, str) or name not in _KINDS:
        raise BadInput(f"This ledger holds an event of kind {name!r} that this version cannot price.")
    return _KINDS[name]


# Gaussian releases, sampled or not.


def rate_and_multiplier(event: DpEvent) -> tuple[float, float]:
    """(q, z) of a Gaussian release, Poisson-sampled or not. Raises: BadInput for another event, and for numbers without a
    price."""
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    check.rate(sampling_rate=rate)
    check.positive(noise_multiplier=event.noise_multiplier)
    return float(rate), float(event.noise_multiplier)


def _sampled_record(event: DpEvent) -> dict[str, Any]:
    rate, z = rate_and_multiplier(event)
    return {"noise_multiplier": z, "sampling_rate": rate}


def _sampled(record: dict[str, Any]) -> DpEvent:
    one, rate = dp_accounting.GaussianDpEvent(record["noise_multiplier"]), record["sampling_rate"]
    check.rate(sampling_rate=rate)
    event = dp_accounting.PoissonSampledDpEvent(rate, one) if rate < 1 else one
    rate_and_multiplier(event)  # refuses numbers that have no price
    return event


GAUSSIANS = (dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent)
register(Kind("sampled-gaussian", GAUSSIANS, _sampled_record, _sampled, gaussian=rate_and_multiplier))


@dataclass(frozen=True)
class RoundedGaussianDpEvent(DpEvent):
    """A query: integers under a rounded Gaussian of `noise_multiplier` times their sensitivity. It costs what the Gaussian
    costs."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)


def _fields(name: str, kind: type[Any], **price: Any) -> Kind:
    return Kind(name, (kind,), asdict, lambda record: kind(**record), **price)


register(
    _fields(
        "rounded-gaussian",
        RoundedGaussianDpEvent,
        gaussian=lambda event: (1.0, event.noise_multiplier),
        slack=lambda event: SLACK,
    )
)


# A release of another tool, of which nothing is known but its (epsilon, delta).


@dataclass(frozen=True)
class EpsilonDeltaDpEvent(DpEvent):
    """Any (epsilon, delta)-DP release. It is a post-processing of randomised response that shows the data with probability
    delta (arXiv:1311.0776, Theorem 3.4): delta is added as it is, and the rest costs at most epsilon (price.py)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        if self.delta != 0:
            check.probability(delta=self.delta)


@np.errstate(over="ignore")
def response_curve(event: EpsilonDeltaDpEvent) -> np.ndarray:
    """Upper bounds of the Rényi divergences, at `rdp.ORDERS`, of randomised response that tells the truth with probability
    e^epsilon / (1 + e^epsilon): log((e^(a epsilon) + e^((1 - a) epsilon)) / (1 + e^epsilon)) / (a - 1), and never above
    epsilon."""
    a, spent = rdp.ORDERS, event.epsilon
    moments = np.logaddexp(a * spent, (1 - a) * spent) - np.logaddexp(0.0, spent)
    off = ROUNDED_UP * (1 + a * spent)  # far more than eight roundings of numbers this large
    return np.minimum((moments + off) / (a - 1), spent)


register(_fields("epsilon-delta", EpsilonDeltaDpEvent, curve=response_curve, bound="RDP of randomised response"))


# Sums of integers, of which each client adds a share of the noise.


@dataclass(frozen=True)
class IntegerSumDpEvent(DpEvent):
    """One opened sum of integer vectors with at least `shares` shares of `law` per coordinate. Two runs differ by `dimension`
    integers with a sum of squares of at most `l2_squared`. `slack` is the total variation between the shares as drawn and
    their law, `cut` the probability that any is cut to its lane. Raises: BadInput for shares too narrow to have a price."""

    law: str
    share_variance: float
    shares: int
    l2_squared: int
    dimension: int
    slack: float
    cut: float = 0.0

    def __post_init__(self) -> None:
        check.one_of(("skellam", "discrete-gaussian"), law=self.law)
        check.positive(share_variance=self.share_variance, l2_squared=self.l2_squared)
        check.at_least(1, shares=self.shares, dimension=self.dimension)
        check.at_least(0, slack=self.slack, cut=self.cut)
        if self.law == "discrete-gaussian":
            check.at_least(rdp.NARROWEST, share_variance=self.share_variance)

    def alone(self) -> "IntegerSumDpEvent":
        """One of the reports seen by itself: it has one share, and its cut is post-processing."""
        return replace(self, shares=1, cut=0.0)

    def divergence(self, order: int) -> float:
        """An upper bound on the Rényi divergence of whole order >= 2, in both directions, for shares exactly of the law.
        Shares beyond those counted on are post-processing and change nothing."""
        sizes = self.share_variance, self.shares, self.l2_squared, self.dimension
        return (rdp.skellam if self.law == "skellam" else rdp.discrete_gaussian)(*sizes, order)


@lru_cache(maxsize=1024)
def integer_curve(event: IntegerSumDpEvent) -> np.ndarray:
    """Upper bounds of the Rényi divergences at `rdp.ORDERS`, by chords between whole orders."""
    return rdp.between(lambda order: (order - 1) * event.divergence(order))


# One record in such a sum, sampled at its client's own rate (docs/derivations.md has the proofs). Discrete Gaussian shares are a
# post-processing of the continuous sampled Gaussian with multiplier sqrt(s2 - W) / sensitivity, but for dimension * tau, as slack.
# Skellam shares have no such form: whole orders, with Corollary 4.1 of arXiv:2110.04995 for each moment.

W = 4.0  # of the variance goes into the step from continuous to discrete: tau(W) is below 1e-33
NARROWEST_SAMPLED = (
    8.0  # the variance of a share from which Theorem 1's factor is negligible (below 1e-33 a coordinate)
)


def tau(w: float) -> float:
    """How far (as a logarithm) a discrete Gaussian may be from one that is drawn, with parameter w, around a continuous one:
    theta = 2 sum over m of exp(-2 pi^2 w m^2) bounds what the normaliser varies by, once around Y and once around the mean."""
    theta = 2.0 * math.exp(-2 * math.pi**2 * w) * (1 + 2.0**-50)
    return theta / (1 - theta) + theta


@dataclass(frozen=True)
class SampledSumDpEvent(DpEvent):
    """One opened sum in which a record takes part with probability `sampling_rate`, under at least `shares` Skellam shares.
    It moves the sum by integers with a sum of squares of at most `l2_squared`, but for `slack`: that rounding moves it
    further, that a share is cut to its lane, and the distance of the samplers from their law."""

    share_variance: float
    shares: int
    l2_squared: int
    dimension: int
    sampling_rate: float
    slack: float

    def __post_init__(self) -> None:
        check.positive(share_variance=self.share_variance, l2_squared=self.l2_squared)
        check.at_least(1, shares=self.shares, dimension=self.dimension)
        check.rate(sampling_rate=self.sampling_rate)
        check.at_least(0, slack=self.slack)

    def alone(self) -> Self:
        """One report seen by itself."""
        return replace(self, shares=1)


class SampledGaussianSumDpEvent(SampledSumDpEvent):
    """The same under discrete Gaussian shares. Raises: BadInput for a variance below 8, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(NARROWEST_SAMPLED, share_variance=self.share_variance)

    @property
    def gaussian(self) -> tuple[float, float]:
        """(q, z) of the continuous sampled Gaussian that this release is a post-processing of, rounded down."""
        variance = self.shares * self.share_variance - W
        return self.sampling_rate, math.sqrt(variance / self.l2_squared) * ROUNDED_DOWN

    @property
    def total_slack(self) -> float:
        """How far, in total variation, the release may be from what it is priced as."""
        apart = tau(W) + rdp.shares_apart(self.share_variance, self.shares)
        return self.slack + math.expm1(self.dimension * apart)


SUMS = {"skellam": SampledSumDpEvent, "discrete-gaussian": SampledGaussianSumDpEvent}


@lru_cache(maxsize=1024)
def skellam_curve(event: SampledSumDpEvent) -> np.ndarray:
    """Upper bounds of the Rényi divergences at `rdp.ORDERS`, both directions: whole orders, and chords between them."""
    sizes = event.share_variance, event.shares, event.l2_squared, event.dimension
    orders = range(2, math.ceil(rdp.ORDERS[-1]) + 1)
    moments = np.array([0.0, 0.0, *((k - 1) * rdp.skellam(*sizes, k) for k in orders)])
    q = event.sampling_rate

    def scaled(order: int) -> float:
        if q == 1:
            return float(moments[order])
        k = np.arange(order + 1)
        terms = rdp.log_choose(order, k) + k * math.log(q) + (order - k) * math.log1p(-q) + moments[: order + 1]
        return float(np.logaddexp.reduce(terms)) * (1 + ROUNDED_UP) + ROUNDED_UP * float(np.abs(terms).max())

    return rdp.between(scaled)


for kind in (
    _fields(
        "integer-sum",
        IntegerSumDpEvent,
        curve=integer_curve,
        slack=lambda event: event.slack + event.cut,
        bound="RDP (arXiv:2110.04995, arXiv:2102.06387)",
        alone=IntegerSumDpEvent.alone,
    ),
    _fields(
        "sampled-skellam-sum",
        SampledSumDpEvent,
        curve=skellam_curve,
        slack=lambda event: event.slack,
        bound="RDP (arXiv:2110.04995, whole orders)",
        alone=SampledSumDpEvent.alone,
    ),
    _fields(
        "sampled-gaussian-sum",
        SampledGaussianSumDpEvent,
        gaussian=lambda event: event.gaussian,
        slack=lambda event: event.total_slack,
        alone=SampledGaussianSumDpEvent.alone,
    ),
):
    register(kind)


# Releases about some of a client's records only: parallel composition, where a coin of each record's own decides which.


@dataclass(frozen=True)
class SideDpEvent(DpEvent):
    """A release about the records on one `side` of a `split`, which names the coin that every record has tossed. Raises:
    BadInput for a release that is itself about a side, has counts around it, or is priced by Rényi curves alone."""

    split: str
    side: str
    event: DpEvent

    def __post_init__(self) -> None:
        for word in (self.split, self.side):
            if not isinstance(word, str) or not 0 < len(word) <= LONGEST:
                raise BadInput("Expected a split and a side to have a name.")
        if isinstance(self.event, SideDpEvent | dp_accounting.SelfComposedDpEvent):
            raise BadInput("A release about one side is a single release, and about that side alone.")
        if self._kind.gaussian is None:
            raise BadInput("No price is known here for such a release about some of the records.")

    @property
    def _kind(self) -> Kind:
        return kind_of(self.event)


def _side_record(event: SideDpEvent) -> dict[str, Any]:
    kind = event._kind
    return {"split": event.split, "side": event.side, "of": kind.name, **kind.to_record(event.event)}


def _side(record: dict[str, Any]) -> SideDpEvent:
    split, side, name = (record.pop(key) for key in ("split", "side", "of"))
    return SideDpEvent(split, side, kind_named(name).from_record(record))


register(
    Kind(
        "one-side",
        (SideDpEvent,),
        _side_record,
        _side,
        gaussian=lambda event: event._kind.gaussian(event.event),
        slack=lambda event: event._kind.slack(event.event),
    )
)
