"""The price of one record in a sum of integers: sampled at its client's own rate, under shares of integer noise of many clients.

Discrete Gaussian shares (docs/derivations.md has the proof in full). Given Y ~ N(m, s2 - W) draw X from the discrete Gaussian of
parameter W around Y. X has the discrete law of parameter s2 around m up to factors exp(+-tau(W)) a coordinate, by Poisson
summation, for every whole m. So a discrete release is a post-processing of the continuous sampled Gaussian with multiplier
sqrt(s2 - W) / sensitivity, but for a total variation of dimension * tau, which counts as slack. A sum of n shares of variance v is
the discrete law of n v up to Theorem 1 of arXiv:2102.06387.

Skellam shares have no such form: whole orders, E_Q[h^a] = sum of C(a, k) (1 - q)^(a - k) q^k E_Q[(P/Q)^k], with Corollary 4.1 of
arXiv:2110.04995 for each moment; the other direction is never dearer (Theorem 5 of arXiv:1908.10530v1, for every law with
f(-x) = f(x))."""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.privacy.accounting import events, rdp

W = 4.0  # of the variance goes into the step from continuous to discrete: tau(W) is below 1e-33
NARROWEST = 8.0  # the variance of a share from which Theorem 1's factor is negligible (below 1e-33 a coordinate)
ROUNDED_DOWN, ROUNDED_UP = 1 - 2.0**-48, 2.0**-40


def tau(w: float) -> float:
    """How far (as a logarithm) a discrete Gaussian may be from one that is drawn, with parameter w, around a continuous one.

    theta = 2 sum over m of exp(-2 pi^2 w m^2) bounds what the normaliser varies by, once around Y and once around the mean.
    """
    theta = 2.0 * math.exp(-2 * math.pi**2 * w) * (1 + 2.0**-50)
    return theta / (1 - theta) + theta


def shares_apart(variance: float, shares: int) -> float:
    """How far (as a logarithm) a sum of discrete Gaussian shares is from one draw: Theorem 1 of arXiv:2102.06387."""
    k = np.arange(1, shares)
    return 10 * float(np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())


@dataclass(frozen=True)
class SampledSumDpEvent(DpEvent):
    """One opened sum in which a record takes part with probability `sampling_rate`, under at least `shares` Skellam shares.

    One record moves the sum by integers with a sum of squares of at most `l2_squared`, but for `slack`: the probability that
    rounding moves it further, that a share is cut to its lane, and the distance of the samplers from their law.

    Raises: BadInput for numbers out of range.
    """

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
        check.at_least(NARROWEST, share_variance=self.share_variance)

    @property
    def gaussian(self) -> tuple[float, float]:
        """(q, z) of the continuous sampled Gaussian that this release is a post-processing of, rounded down."""
        variance = self.shares * self.share_variance - W
        return self.sampling_rate, math.sqrt(variance / self.l2_squared) * ROUNDED_DOWN

    @property
    def total_slack(self) -> float:
        """How far, in total variation, the release may be from what it is priced as."""
        return self.slack + math.expm1(self.dimension * (tau(W) + shares_apart(self.share_variance, self.shares)))


SUMS = {"skellam": SampledSumDpEvent, "discrete-gaussian": SampledGaussianSumDpEvent}


@lru_cache(maxsize=1024)
def skellam_curve(event: SampledSumDpEvent) -> np.ndarray:
    """Upper bounds of the Rényi divergences at `rdp.ORDERS`, both directions: whole orders, and chords between them."""
    whole = rdp.IntegerSumDpEvent("skellam", event.share_variance, event.shares, event.l2_squared, event.dimension, 0.0)
    moments = np.array(
        [0.0, 0.0, *((k - 1) * rdp.divergence(whole, k) for k in range(2, math.ceil(rdp.ORDERS[-1]) + 1))]
    )
    q = event.sampling_rate

    def scaled(order: int) -> float:
        if order < 2 or q == 1:
            return float(moments[order])
        k = np.arange(order + 1)
        terms = rdp.log_choose(order, k) + k * math.log(q) + (order - k) * math.log1p(-q) + moments[: order + 1]
        return float(np.logaddexp.reduce(terms)) * (1 + ROUNDED_UP) + ROUNDED_UP * float(np.abs(terms).max())

    return rdp._between(scaled)


def _kind(name: str, kind: type[SampledSumDpEvent], **price: Any) -> events.Kind:
    return events.Kind(name, (kind,), asdict, lambda record: kind(**record), alone=kind.alone, **price)


events.register(
    _kind(
        "sampled-skellam-sum",
        SampledSumDpEvent,
        curve=skellam_curve,
        slack=lambda event: event.slack,
        bound="RDP (arXiv:2110.04995, whole orders)",
    )
)
events.register(
    _kind(
        "sampled-gaussian-sum",
        SampledGaussianSumDpEvent,
        gaussian=lambda event: event.gaussian,
        slack=lambda event: event.total_slack,
    )
)
