"""The price of a sum of integer noise shares, as Rényi divergences.

Skellam: Agarwal, Kairouz, Liu 2021 (arXiv:2110.04995), Corollary 4.1. Sum of discrete Gaussians: Kairouz,
Liu, Steinke 2021 (arXiv:2102.06387), Theorem 1 and Proposition 14. Both compare two runs whose integer sums differ by a
vector of squared length at most `l2_squared`; both hold for every coordinate count named. They are stated for whole
orders; between two of them (order - 1) times the divergence is convex, so the chord is a bound too.

A sampler that is a total variation t away from its law, or a lane that is cut with probability t, adds (1 + e^epsilon) t
to delta: those are `slack` and `cut`, and `epsilon` takes them out of the delta that it is asked for.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.privacy.accounting import sampled_rdp

RESERVES = (1e-6, 1e-3, 0.5)  # shares of delta that may be set aside for slack; the first that suffices is used
NARROWEST = 0.25  # the variance of a discrete Gaussian share from which Theorem 1 of arXiv:2102.06387 holds


@dataclass(frozen=True)
class IntegerSumDpEvent(DpEvent):
    """One release of an integer vector's sum that carries at least `shares` independent shares of `law` per coordinate.

    Two runs differ by a vector of `dimension` integers with a sum of squares of at most `l2_squared`; `share_variance` is in
    the same units, per share and coordinate. `slack` is the total variation between all shares as they were drawn and their
    law, `cut` the probability that any of them is cut to fit its lane; both are for the whole release.

    Raises: BadInput for another law, numbers that are not positive, and discrete Gaussian shares of a variance below 1/4, for
    which Theorem 1 of arXiv:2102.06387 says nothing.

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
    """An upper bound on the Rényi divergence of whole order >= 2 between the sum with and without one client.

    Guarantee: in both directions, for shares exactly of the law; `slack` and `cut` are counted in `epsilon`. Shares beyond
    those counted on are post-processing and change nothing.
    """
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
    """`divergence` at any orders above 1, by chords of (order - 1) times the divergence between whole orders.

    Guarantee: never below the true divergence, but for roundings of floats that `sampled_rdp.epsilon` makes up for.
    """

    def scaled(order: int) -> float:
        return (order - 1) * divergence(event, order) if order > 1 else 0.0

    divergences = []
    for order in orders:
        low = math.floor(order)
        part = order - low
        chord = (1 - part) * scaled(low) + (part * scaled(low + 1) if part else 0.0)
        divergences.append(chord / (order - 1))
    return np.array(divergences)


def epsilon(divergences: np.ndarray, *, slack: float, delta: float) -> float:
    """The epsilon at `delta` of a curve at `sampled_rdp.ORDERS` whose releases are a total variation of `slack` away from it.

    Guarantee: (1 + e^epsilon) slack is within the part of delta that was set aside for it, and the rest of delta pays for the
    curve. inf where the slack eats delta.

    >>> event = IntegerSumDpEvent("skellam", 900.0, shares=4, l2_squared=900, dimension=20, slack=0.0)
    >>> [round(epsilon(default_curve(event), slack=slack, delta=1e-5), 2) for slack in (0.0, 1e-9, 1e-3)]
    [2.17, 2.17, inf]
    """
    for reserve in RESERVES:
        spent = sampled_rdp.epsilon(sampled_rdp.ORDERS, divergences, delta * (1 - reserve))
        if slack == 0 or spent + math.log1p(math.exp(-spent)) + math.log(slack) <= math.log(delta * reserve):
            return spent
    return math.inf


@lru_cache(maxsize=1024)
def default_curve(event: IntegerSumDpEvent) -> np.ndarray:
    """`curve` at `sampled_rdp.ORDERS`, kept for the next time."""
    return curve(event, sampled_rdp.ORDERS)
