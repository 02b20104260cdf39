"""One sampled Gaussian release as a privacy loss distribution on a grid, rounded up.

Connect the dots (Doroshenko et al. 2022, arXiv:2207.04380v1, Algorithm 1) keeps the privacy curve's values on the grid and
draws straight lines (in e^epsilon) between them; the curve is convex, so the lines are above it.

The curve is known in closed form. With delta_0 that of the Gaussian with mu = 1/z (gdp.py), removing one unit
from a sample drawn at rate q has, for t >= 0 (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647v2, Theorem 2),
    delta(t)  = q delta_0(log(1 + (e^t - 1)/q)),
    delta(-t) = 1 - e^-t + q e^s delta_0(-s),  s = log(1 + (e^-t - 1)/q), or nothing beyond 1 - e^-t where q <= 1 - e^-t.
Only the `excess` over max(0, 1 - e^epsilon), the curve of releasing nothing, is computed: it has no cancellation, so its
masses keep their relative precision however small they are. Adding one unit is the same pair of laws turned around.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.accounting import gdp

LONG = np.longdouble
ROUNDING = float(np.finfo(LONG).eps) / 2  # 2^-64 on x86; where long doubles are doubles every bound below grows with it
TAIL = 10.0  # standard deviations of the noise that are on the grid at least; what lies beyond is an infinite loss
OUTWARD = 1 - 16 * gdp.ROUNDING  # of a grid point and its image: eight roundings at most, twice covered
TINY = 1e-300  # more than what underflow can take away


@dataclass(frozen=True)
class Losses:
    """Masses on the losses (first + i) * interval and at infinity.

    Guarantee: the privacy curve of these masses, delta(epsilon) = infinite + sum of mass (1 - e^(epsilon - loss)) over losses
    above epsilon, is nowhere below the true one. Their sum may pass 1 by what was rounded up.
    """

    first: int
    masses: np.ndarray
    infinite: float


@lru_cache(maxsize=64)
def sampled_gaussian(rate: float, z: float, interval: float, tail: float = TAIL) -> tuple[Losses, Losses]:
    """The losses of removing and of adding one unit, `tail` standard deviations of them on the grid.

    Guarantee: as of `Losses`, for both, whatever the interval: a coarser grid only lies higher.

    Assumes: 0 < rate <= 1 and z > 0.

    >>> remove, add = sampled_gaussian(0.1, 2.0, 0.01)
    >>> bool(1 <= remove.masses.sum() + remove.infinite < 1 + 1e-9)
    True
    """
    first, last = _ends(rate, z, interval, tail)
    losses = np.arange(first, last + 1) * interval
    excess = _excess(losses, rate=rate, mu=gdp.mu_of([(z, 1)])).astype(LONG)
    grown, growth = np.exp(LONG(interval)), np.expm1(LONG(interval))
    steps = np.diff(excess)
    after, before = np.append(steps, LONG(0)), np.append(LONG(0), steps)
    masses = (after - grown * before) / growth
    masses[0] -= excess[0]
    masses[-first] += 1  # where the loss is 0: the curve of releasing nothing
    # each mass comes of five roundings of numbers this large
    rounded = 5 * ROUNDING * ((np.abs(after) + grown * np.abs(before)) / growth + np.abs(masses) + excess)
    masses = np.maximum(masses, 0) + rounded  # more mass is a higher curve
    weights = np.exp(-np.arange(first, last + 1).astype(LONG) * LONG(interval))
    turned = masses * weights * (1 + ROUNDING * (8 + 2 * np.abs(losses)))
    beyond = 2 * float(excess[0] * weights[0]) + TINY
    return Losses(first, masses, float(excess[-1]) + TINY), Losses(-last, np.flip(turned), beyond)


def _ends(rate: float, z: float, interval: float, tail: float) -> tuple[int, int]:
    widest = 0.5 / z / z + tail / z
    high = float(np.logaddexp(math.log1p(-rate), math.log(rate) + widest)) if rate < 1 else widest
    low = math.log1p(rate * math.expm1(-widest)) if rate < 1 else -widest
    return math.floor(low / interval) - 1, math.ceil(high / interval) + 1


def _excess(losses: np.ndarray, *, rate: float, mu: float) -> np.ndarray:
    """How far the curve of removing one unit is above max(0, 1 - e^epsilon), rounded up."""
    t = np.abs(losses)
    above, grows = losses >= 0, np.exp(-t)
    small = np.minimum(t, 1.0)
    # log(1 + (e^t - 1)/q), towards 0, where delta_0 is larger
    up = np.where(t > 1, t - math.log(rate) + np.log1p((rate - 1) * grows), np.log1p(np.expm1(small) / rate * OUTWARD))
    reached = np.maximum(np.expm1(-t) / rate * OUTWARD, -1.0)
    with np.errstate(divide="ignore"):
        down = np.log1p(reached) if rate < 1 else -t
    moved = np.where(above, up, -down) * OUTWARD
    held = np.isfinite(moved) & (above | (t * OUTWARD < -np.log1p(-rate) if rate < 1 else True))
    moved = np.where(held, moved, 0.0)
    excess = rate * np.exp(gdp.log_delta(moved, mu)) * np.where(above, 1.0, np.exp(-moved)) / OUTWARD**2
    return np.where(held, excess, 0.0)
