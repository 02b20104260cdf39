"""The exact price of Gaussian releases, rounded up: delta(epsilon) of a mu-GDP mechanism and its inverse.

Balle & Wang 2018 (arXiv:1805.06530v2), Theorem 8; Dong, Roth, Su 2019 (arXiv:1905.02383v3), Corollary 2.13 and
Corollary 3.3: Gaussian releases with multipliers z_i compose to mu^2 = sum 1 / z_i^2 and
    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).
With x = epsilon/mu - mu/2, y = epsilon/mu + mu/2 and the Mills ratio m(t) = Phi(-t) / phi(t), phi(x) = e^epsilon phi(y), so
    delta(epsilon) = phi(x) (m(x) - m(y)),
two positive numbers that neither overflow nor underflow. Every rounding is bounded and taken upwards.
"""

import math
from collections.abc import Iterable

import numpy as np
from scipy import special

from tacit import check

ROUNDING = 2.0**-53
SPECIAL = 1e-14  # scipy's erfcx and ndtr are within 2e-15 of the truth, relatively, for every argument used here
FAN = 64  # points that are tried at once when delta is inverted
ROUNDS = 12  # 64^12 = 2^72: until two neighbouring floats enclose the answer


def mu_of(parts: Iterable[tuple[float, float]]) -> float:
    """The mu of Gaussian releases given as (noise multiplier, how often), rounded up.

    Guarantee: never below sqrt(sum of count / z^2), Corollary 3.3 of arXiv:1905.02383v3. Nothing released has mu 0.

    >>> round(mu_of([(2.0, 4)]), 6)
    1.0
    """
    return math.hypot(*(math.sqrt(count) / z for z, count in parts)) * (1 + SPECIAL)


def log_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """log delta(epsilon) for epsilon >= 0, rounded up.

    Guarantee: never below the truth. x and y are off by at most `spread`; d log m / dt is between -1 and 0 for t >= 0 and d
    log phi / dx is -x.

    Assumes: mu > 0.

    >>> float(np.exp(log_delta(np.array([0.0, 4.3772]), 1.0)).round(6)[1])
    1e-05
    """
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    spread = 4 * ROUNDING * y
    relative = SPECIAL + spread
    density = 8 * ROUNDING * (1 + x * x) + 2 * np.abs(x) * spread
    log_phi = -x * x / 2 - math.log(2 * math.pi) / 2
    right = np.maximum(x, 0.0)
    mills = log_phi + np.log(_mills(right) * (1 + relative) - _mills(y) * (1 - relative)) + density
    below = special.ndtr(-x) * (1 + relative) - np.exp(log_phi - density) * _mills(y) * (1 - relative)
    return np.minimum(np.where(x >= 0, mills, np.log(np.where(x >= 0, 1.0, below))), 0.0)


def _mills(t: np.ndarray) -> np.ndarray:
    return math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))


def epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 that `delta` allows, to a few units in the last place.

    Guarantee: never below it; inf where mu is so large that no float holds it.

    Raises: BadInput for a delta that is not between 0 and 1.

    >>> round(epsilon(1.0, 1e-5), 4)
    4.3772
    """
    check.probability(delta=delta)
    if mu == 0:
        return 0.0
    # here x^2 = -2 log delta, so delta(high) <= Phi(-x) <= delta / 2: it holds without being tried
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if not math.isfinite(high):
        return math.inf
    target = math.log(delta) * (1 + 2 * ROUNDING)
    for _ in range(ROUNDS):
        tried = np.linspace(low, high, FAN + 1)
        allowed = log_delta(tried, mu) <= target
        first = int(np.argmax(allowed)) if allowed.any() else FAN
        low, high = float(tried[max(first - 1, 0)]), float(tried[first])
        if first == 0:
            break
    return high
