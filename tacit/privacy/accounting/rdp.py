"""Rényi curves of Gaussian releases, sampled or not, and the epsilon they buy: every rounding upwards.

Poisson sampling at rate q, whole orders (Mironov, Talwar, Zhang 2019, arXiv:1908.10530v1, section 3.3; the means of the
binomial and of the likelihood ratio, both 1, are taken out, so that only positive terms are left and nothing cancels):
    exp((a - 1) D_a) = 1 + sum over k >= 2 of C(a, k) q^k (1 - q)^(a - k) (exp(k (k - 1) / 2 z^2) - 1).
Without replacement, replacing one unit: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087v3), Theorem 27, whose finite
differences are taken in as many digits as they lose. Between whole orders (order - 1) times the divergence is convex, so the
chord is a bound; dp-accounting's series for any order (0.6.0) is a closer one where its own rounding is below SERIES.
(dp-accounting's own sums for whole orders round to less than the truth, even below 0, where q/z is small.)"""

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import dp_accounting
import gmpy2
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import special

from tacit import check
from tacit.errors import BadInput

# dp-accounting's series says at every order where it gives up: then the chord counts
logging.getLogger("absl").setLevel(logging.ERROR)
ORDERS = RdpAccountant().orders
WHOLE = np.unique([*range(2, 64), *(2**n for n in range(6, 13)), *(3 * 2**n for n in range(5, 11))])
SERIES = 2e-12  # what dp-accounting's series may miss of (order - 1) D: 20 times what was measured against 30 digits
SERIES_FROM, SERIES_TO, SERIES_RATES = 0.3, 1e4, (1e-9, 1 - 1e-9)  # the multipliers and rates where that was measured
DIFFERENCES = 256  # the highest order at which Theorem 27's differences are taken; above, its simpler bound
UNIT = 2.0**-53
UNDERFLOW = 1e-300  # more than what underflow can take from a sum of 2^53 curves

_ORDER = np.repeat(WHOLE, WHOLE - 1)  # the terms k = 2 .. order of every whole order, one after the other
_STARTS = np.concatenate([[0], np.cumsum(WHOLE - 1)[:-1]])
_K = np.arange(len(_ORDER)) - np.repeat(_STARTS, WHOLE - 1) + 2


def log_choose(n: np.ndarray | int, k: np.ndarray) -> np.ndarray:
    """log of the binomial coefficient."""
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


_LOG_CHOOSE = log_choose(_ORDER, _K)


def rate_and_multiplier(event: DpEvent) -> tuple[float, float]:
    """(q, z) of a Gaussian release, Poisson-sampled or not. Raises: BadInput for another event, a rate outside (0, 1], and a
    multiplier that is not above 0.

    >>> rate_and_multiplier(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)))
    (0.1, 2.0)
    """
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    check.rate(sampling_rate=rate)
    check.positive(noise_multiplier=event.noise_multiplier)
    return float(rate), float(event.noise_multiplier)


def share_and_multiplier(event: dp_accounting.SampledWithoutReplacementDpEvent) -> tuple[float, float]:
    """(share drawn, z) of a Gaussian release of a cohort of fixed size. Raises: BadInput for a cohort larger than its
    population or empty, and for what is not one Gaussian release of it."""
    check.at_least(1, cohort=event.sample_size)
    check.at_least(event.sample_size, population=event.source_dataset_size)
    rate, z = rate_and_multiplier(event.event)
    if rate < 1:
        raise BadInput("No price is known here for a cohort of fixed size that is sampled again.")
    return event.sample_size / event.source_dataset_size, z


@lru_cache(maxsize=1024)
@np.errstate(over="ignore")
def poisson(rate: float, z: float) -> np.ndarray:
    """The curve at ORDERS of one Gaussian release of a Poisson sample (rate 1: of everything). Guarantee: add or remove one
    unit, both directions; at each order the least of three upper bounds: without sampling, by whole orders and chords, and
    dp-accounting's series with SERIES added, where that was measured. Answers are kept: the same array comes back.
    Assumes: 0 < rate <= 1 and z > 0."""
    unsampled = ORDERS / z / z / 2
    if rate == 1:
        return unsampled
    known = dict(zip(WHOLE.tolist(), (poisson_whole(rate, z) * (WHOLE - 1)).tolist(), strict=True))
    bound = np.fmin(_between(known.__getitem__), unsampled)
    lowest, highest = SERIES_RATES
    if z < SERIES_FROM or rate > highest:
        return bound
    # a smaller rate or more noise costs no more
    event = dp_accounting.PoissonSampledDpEvent(max(rate, lowest), dp_accounting.GaussianDpEvent(min(z, SERIES_TO)))
    series = RdpAccountant().compose(event).rdp
    return np.where(ORDERS % 1 == 0, bound, np.fmin(bound, series + SERIES / (ORDERS - 1)))


@lru_cache(maxsize=1024)
@np.errstate(over="ignore", divide="ignore")
def poisson_whole(rate: float, z: float) -> np.ndarray:
    """The curve at WHOLE, which reaches further and needs no series. Guarantee: as of `poisson`.

    >>> bool(poisson_whole(1.0, 2.0)[0] == 2 / 2.0**2 / 2), bool(poisson_whole(0.01, 2.0)[0] < 1e-4)
    (True, True)
    """
    if rate == 1:
        return WHOLE / z / z / 2
    x = _K * (_K - 1) / 2 / z / z
    size = x + np.log(-np.expm1(-x))  # log(e^x - 1)
    terms = _LOG_CHOOSE + _K * math.log(rate) + (_ORDER - _K) * math.log1p(-rate) + size
    largest = WHOLE * (WHOLE - 1) / 2 / z / z - WHOLE * (math.log(rate) + math.log1p(-rate))
    return _log_one_plus(terms, _STARTS, WHOLE, largest) / (WHOLE - 1)


@np.errstate(over="ignore", divide="ignore")
def _log_one_plus(terms: np.ndarray, starts: np.ndarray, orders: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """log(1 + sum exp(terms)) of each order, rounded up by what terms made of numbers up to `largest` may be off."""
    off = 16 * UNIT * (largest + 3 * special.gammaln(orders + 1) + orders)
    peak = np.maximum.reduceat(terms, starts)
    sizes = np.diff(np.append(starts, len(terms)))
    shown = np.where(np.isfinite(peak), peak, 0.0)
    total = np.log(np.add.reduceat(np.exp(terms - np.repeat(shown, sizes)), starts)) + shown
    return np.logaddexp(0.0, total + off) * (1 + 8 * UNIT)


@lru_cache(maxsize=1024)
@np.errstate(over="ignore")
def without_replacement(rate: float, z: float) -> np.ndarray:
    """The curve at ORDERS, replacing one, of a Gaussian release of a sample of fixed size, `rate` of everybody. Guarantee:
    Theorem 27 of arXiv:1808.00087v3 at whole orders, rounded up, chords between them. The multiplier z is noise over what
    replacing one unit changes in the sum: twice the clip."""
    if rate == 1:
        return ORDERS / z / z / 2
    return _between(lambda order: _without_replacement(rate, z, order))


def _without_replacement(rate: float, z: float, order: int) -> float:
    i = np.arange(2, order + 1)
    x = i * (i - 1) / 2 / z / z
    inner = math.log(2) + x
    if order <= DIFFERENCES:
        moments = _log_moments(z)
        inner = np.minimum(inner, math.log(4) + (moments[i // 2] + moments[(i + 1) // 2]) / 2)
    terms = inner + i * math.log(rate) + log_choose(order, i)
    largest = np.array([float(x[-1]) - order * math.log(rate)])
    return float(_log_one_plus(terms, np.array([0]), np.array([order]), largest)[0])


@lru_cache(maxsize=64)
def _log_moments(z: float) -> np.ndarray:
    """log of Theorem 27's 2n-th finite difference, E(p/q - 1)^2n, at index n."""
    # in bits: the difference of order l is about z^-l of its terms
    lost = DIFFERENCES * (2 + max(0, math.ceil(math.log2(z))))
    with gmpy2.context(precision=128 + lost):
        values = [gmpy2.exp(gmpy2.mpfr(k * (k - 1)) / 2 / gmpy2.mpfr(z) ** 2) for k in range(DIFFERENCES + 1)]
        logs = [0.0]
        for order in range(1, DIFFERENCES + 1):
            values = [after - before for before, after in itertools.pairwise(values)]
            if order % 2 == 0:
                logs.append(float(gmpy2.log(values[0])))
    return np.array(logs)


def _between(scaled: Callable[[int], float]) -> np.ndarray:
    """The divergences at ORDERS from `scaled`, (order - 1) times the divergence at whole orders: by chords."""
    divergences = []
    for order in ORDERS:
        low, part = math.floor(order), order % 1
        start = scaled(low) if low > 1 else 0.0
        divergences.append((start + part * (scaled(low + 1) - start) if part else start) / (order - 1))
    return np.array(divergences)


def epsilon(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """The least epsilon that a Rényi curve (a sum of the above) allows at `delta`, over its orders. Canonne, Kamath, Steinke
    2020 (arXiv:2004.00010v4), Proposition 12; 0 where sqrt(1 - e^-KL) <= delta (Bretagnolle, Huber). Guarantee: an upper
    bound for every curve that is one at these orders; sums of curves may have been rounded by 1e-13 of themselves. inf
    where every order is. Assumes: all orders are above 1, and 0 < delta < 1."""
    bound = divergences * (1 + 1e-13) + UNDERFLOW
    paid = -(math.log(delta) + np.log(orders)) / (orders - 1)
    epsilons = bound + np.log1p(-1 / orders) + paid + 4 * UNIT * (bound + np.abs(paid))
    if delta * delta > -math.expm1(-float(bound.min())) * (1 + 1e-13):
        return 0.0
    return max(0.0, float(np.min(epsilons)))


# The price of a sum of integer noise shares, as Rényi divergences.

RESERVES = (1e-6, 1e-3, 0.5)  # shares of delta that may be set aside for slack; the first that suffices is used
NARROWEST = 0.25  # the variance of a discrete Gaussian share from which Theorem 1 of arXiv:2102.06387 holds


@dataclass(frozen=True)
class IntegerSumDpEvent(DpEvent):
    """One release of an integer vector's sum that carries at least `shares` independent shares of `law` per coordinate. Two
    runs differ by a vector of `dimension` integers with a sum of squares of at most `l2_squared`; `share_variance` is per
    share and coordinate. `slack` is the total variation between all shares as drawn and their law, `cut` the probability
    that any is cut to its lane. Raises: BadInput for discrete Gaussian shares of a variance below 1/4 (Theorem 1 of
    arXiv:2102.06387 says nothing there).

    >>> IntegerSumDpEvent("skellam", 900.0, shares=4, l2_squared=9, dimension=20, slack=0.0).alone().shares
    1
    """

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
            check.at_least(NARROWEST, share_variance=self.share_variance)

    def alone(self) -> "IntegerSumDpEvent":
        """One of the reports seen by itself: it has one share, and its cut is post-processing."""
        return replace(self, shares=1, cut=0.0)


def divergence(event: IntegerSumDpEvent, order: int) -> float:
    """An upper bound on the Rényi divergence of whole order >= 2 between the sum with and without one client. Guarantee: in
    both directions, for shares exactly of the law; `slack` and `cut` are counted in `epsilon`. Shares beyond those counted
    on are post-processing and change nothing."""
    return (_skellam if event.law == "skellam" else _discrete_gaussian)(event, order)


def _skellam(event: IntegerSumDpEvent, a: int) -> float:
    mu, d2, d1 = event.shares * event.share_variance, event.l2_squared, l1_bound(event)
    # Corollary 4.1: alpha D2^2 / 2mu + min(((2 alpha - 1) D2^2 + 6 D1) / 4mu^2, 3 D1 / 2mu)
    return a * d2 / (2 * mu) + min(((2 * a - 1) * d2 + 6 * d1) / (4 * mu**2), 3 * d1 / (2 * mu))


def _discrete_gaussian(event: IntegerSumDpEvent, a: int) -> float:
    d, total = event.dimension, event.shares * event.share_variance
    # Theorem 1: tau = 10 sum over k < n of exp(-2 pi^2 sigma^2 k / (k + 1))
    k = np.arange(1, event.shares)
    tau = 10 * float(np.exp(-2 * math.pi**2 * event.share_variance * k / (k + 1)).sum())
    length = math.sqrt(event.l2_squared / total)
    # Proposition 14
    return min(a / 2 * length**2 + tau * d, a / 2 * (length + tau * math.sqrt(d)) ** 2)


def l1_bound(event: IntegerSumDpEvent) -> float:
    """The sum of absolute values of integers with this sum of squares: at most sqrt(d) D2, and at most D2^2."""
    return min(math.sqrt(event.dimension * event.l2_squared), event.l2_squared)


def curve(event: IntegerSumDpEvent, orders: np.ndarray) -> np.ndarray:
    """`divergence` at any orders above 1, by chords of (order - 1) times the divergence between whole orders. Guarantee:
    never below the true divergence, but for roundings of floats that `sampled_rdp.epsilon` makes up for."""

    def scaled(order: int) -> float:
        return (order - 1) * divergence(event, order) if order > 1 else 0.0

    divergences = []
    for order in orders:
        low = math.floor(order)
        part = order - low
        chord = (1 - part) * scaled(low) + (part * scaled(low + 1) if part else 0.0)
        divergences.append(chord / (order - 1))
    return np.array(divergences)


def epsilon_renyi(divergences: np.ndarray, *, slack: float, delta: float) -> float:
    """The epsilon at `delta` of a curve at ORDERS whose releases are a total variation of `slack` away from it. Guarantee: (1
    + e^epsilon) slack is within a part of delta set aside, and the rest pays for the curve; inf where slack eats delta.

    >>> event = IntegerSumDpEvent("skellam", 900.0, shares=4, l2_squared=900, dimension=20, slack=0.0)
    >>> [round(epsilon_renyi(default_curve(event), slack=slack, delta=1e-5), 2) for slack in (0.0, 1e-9, 1e-3)]
    [2.17, 2.17, inf]
    """
    for reserve in RESERVES:
        spent = epsilon(ORDERS, divergences, delta * (1 - reserve))
        if slack == 0 or spent + math.log1p(math.exp(-spent)) + math.log(slack) <= math.log(delta * reserve):
            return spent
    return math.inf


@lru_cache(maxsize=1024)
def default_curve(event: IntegerSumDpEvent) -> np.ndarray:
    """`curve` at ORDERS, kept for the next time."""
    return curve(event, ORDERS)
