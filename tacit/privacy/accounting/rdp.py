"""Rényi curves of Gaussian releases, sampled or not, and the epsilon they buy: every rounding upwards. Poisson sampling at
rate q, whole orders (Mironov, Talwar, Zhang 2019, arXiv:1908.10530v1, section 3.3; both means of 1 are taken out, so that
nothing cancels): exp((a - 1) D_a) = 1 + sum over k >= 2 of C(a, k) q^k (1 - q)^(a - k) (exp(k (k - 1) / 2 z^2) - 1). Between
whole orders the chord is a bound; dp-accounting's series (0.6.0) is a closer one where its own rounding is below SERIES."""

import logging
import math
from collections.abc import Callable
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from scipy import special

# dp-accounting's series says at every order where it gives up: then the chord counts
logging.getLogger("absl").setLevel(logging.ERROR)
ORDERS = RdpAccountant().orders
WHOLE = np.unique([*range(2, 64), *(2**n for n in range(6, 13)), *(3 * 2**n for n in range(5, 11))])
SERIES = 2e-12  # what dp-accounting's series may miss of (order - 1) D: 20 times what was measured against 30 digits
SERIES_FROM, SERIES_TO, SERIES_RATES = 0.3, 1e4, (1e-9, 1 - 1e-9)  # the multipliers and rates where that was measured
UNIT = 2.0**-53
UNDERFLOW = 1e-300  # more than what underflow can take from a sum of 2^53 curves

_ORDER = np.repeat(WHOLE, WHOLE - 1)  # the terms k = 2 .. order of every whole order, one after the other
_STARTS = np.concatenate([[0], np.cumsum(WHOLE - 1)[:-1]])
_K = np.arange(len(_ORDER)) - np.repeat(_STARTS, WHOLE - 1) + 2


def log_choose(n: np.ndarray | int, k: np.ndarray) -> np.ndarray:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


_LOG_CHOOSE = log_choose(_ORDER, _K)


@lru_cache(maxsize=1024)
@np.errstate(over="ignore")
def poisson(rate: float, z: float) -> np.ndarray:
    """The curve at ORDERS of one Gaussian release of a Poisson sample (rate 1: of everything). Guarantee: add or remove one
    unit, both directions; the least of three upper bounds: without sampling, whole orders and chords, and dp-accounting's
    series with SERIES added, where that was measured. Assumes: 0 < rate <= 1 and z > 0."""
    unsampled = ORDERS / z / z / 2
    if rate == 1:
        return unsampled
    known = dict(zip(WHOLE.tolist(), (poisson_whole(rate, z) * (WHOLE - 1)).tolist(), strict=True))
    bound = np.fmin(between(known.__getitem__), unsampled)
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
    """The curve at WHOLE, which reaches further and needs no series. Guarantee: as of `poisson`."""
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


def between(scaled: Callable[[int], float], orders: np.ndarray = ORDERS) -> np.ndarray:
    """The divergences at these orders from `scaled`, (order - 1) times the divergence at whole orders from 2: by chords."""
    divergences = []
    for order in orders:
        low, part = math.floor(order), order % 1
        start = scaled(low) if low > 1 else 0.0
        divergences.append((start + part * (scaled(low + 1) - start) if part else start) / (order - 1))
    return np.array(divergences)


def epsilon(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """The least epsilon that a Rényi curve allows at `delta`: arXiv:2004.00010v4, Proposition 12; 0 where sqrt(1 - e^-KL) <=
    delta (Bretagnolle, Huber). Guarantee: an upper bound, also of a sum of curves, rounded by 1e-13 of itself; inf where
    every order is."""
    bound = divergences * (1 + 1e-13) + UNDERFLOW
    paid = -(math.log(delta) + np.log(orders)) / (orders - 1)
    epsilons = bound + np.log1p(-1 / orders) + paid + 4 * UNIT * (bound + np.abs(paid))
    if delta * delta > -math.expm1(-float(bound.min())) * (1 + 1e-13):
        return 0.0
    return max(0.0, float(np.min(epsilons)))


# Sums of integer noise shares: upper bounds of whole order a, with and without one client, in both directions.

NARROWEST = 0.25  # the variance of a discrete Gaussian share from which Theorem 1 of arXiv:2102.06387 holds


def skellam(share_variance: float, shares: int, l2_squared: int, dimension: int, a: int) -> float:
    """Corollary 4.1 of arXiv:2110.04995."""
    mu, d2 = shares * share_variance, l2_squared
    d1 = min(math.sqrt(dimension * d2), d2)  # the sum of absolute values of integers with this sum of squares
    # alpha D2^2 / 2mu + min(((2 alpha - 1) D2^2 + 6 D1) / 4mu^2, 3 D1 / 2mu)
    return a * d2 / (2 * mu) + min(((2 * a - 1) * d2 + 6 * d1) / (4 * mu**2), 3 * d1 / (2 * mu))


def discrete_gaussian(share_variance: float, shares: int, l2_squared: int, dimension: int, a: int) -> float:
    """Proposition 14 of arXiv:2102.06387."""
    d, tau = dimension, shares_apart(share_variance, shares)
    length = math.sqrt(l2_squared / (shares * share_variance))
    return min(a / 2 * length**2 + tau * d, a / 2 * (length + tau * math.sqrt(d)) ** 2)


def shares_apart(variance: float, shares: int) -> float:
    """How far (as a logarithm) a sum of discrete Gaussian shares is from one draw: Theorem 1 of arXiv:2102.06387."""
    k = np.arange(1, shares)
    return 10 * float(np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())
