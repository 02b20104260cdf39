"""What was measured: the noise, what a canary changed and how often it was drawn, as run, with limits; and the epsilon of that.

A canary's trace in a round is x = A n + (noise): n is how often it was drawn, known to the auditor, and A is 1, in clips, where the
clip is what is priced. So A is a regression, the noise is what is left, and the rate is a count.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tacit.audit.evidence import Noise, Rate
from tacit.audit.priced import Charged

SHARES = (0.8, 0.1, 0.1)  # of a limit's level: what a canary changed (the least certain), the noise, the rate
DOUBT = 1 / 50  # of a limit's level: at that, traces that should be independent are said not to be


@dataclass(frozen=True)
class Traces:
    """What became of a group's canaries: `seen` and `drawn` (round, canary), in clips and in draws; `coins` say who took part."""

    seen: np.ndarray
    drawn: np.ndarray
    coins: np.ndarray


@dataclass(frozen=True)
class Measured:
    """The multiplier and the rate as run, and the epsilon that the accountant gives for them, with one-sided limits."""

    multiplier: float
    multiplier_limits: tuple[float, float]
    rate: float
    epsilon: float
    low: float
    high: float
    alike: float  # how unlikely it is that independent noise in successive rounds is so much alike
    repeated: float  # how unlikely it is that independent draws vary so much from canary to canary
    dependent: bool  # whether noise or draws of different rounds hang together, which no price allows for


def measured(traces: Traces, charged: Charged, *, level: float) -> Measured:
    """The limits are wrong, each, with probability at most `level`; rounds are called dependent by chance in 1 of 25 of that."""
    x, n = traces.seen.astype(float), traces.drawn.astype(float)
    squares = float((n * n).sum())
    change = float((x * n).sum()) / squares if squares else 0.0
    left = x - change * n
    noise = Noise(float((left**2).sum()) / charged.steps, left.size)
    own, of_noise, of_rate = (share * level for share in SHARES)
    error = float(stats.norm.isf(own)) * noise.value * math.sqrt(charged.steps / squares) if squares else math.inf
    quiet, loud = noise.limits(of_noise)
    limits = quiet / (change + error), loud / (change - error) if change > error else math.inf
    hits, trials = int(n[:, traces.coins].sum()), charged.steps * n[:, traces.coins].size
    seen_rate = Rate(hits, trials)
    rates = (1.0, 1.0) if charged.rate >= 1 and hits == trials else seen_rate.limits(of_rate)
    z, claimed = noise.value / change if change > 0 else math.inf, charged.multiplier
    alike, repeated = _alike(left), _repeated(n[:, traces.coins], charged)
    return Measured(
        multiplier=z,
        multiplier_limits=limits,
        rate=seen_rate.value,
        epsilon=charged.epsilon(z / claimed, _sound(seen_rate.value)),
        low=charged.epsilon(limits[1] / claimed, _sound(rates[0])),
        high=charged.epsilon(limits[0] / claimed, _sound(rates[1])),
        alike=alike,
        repeated=repeated,
        dependent=min(alike, repeated) < DOUBT * level,
    )


def _sound(rate: float) -> float:
    return min(max(rate, 0.0), 1.0)


def _alike(left: np.ndarray) -> float:
    """The likelihood, under independence, of noise that is so much alike from one round to the next."""
    if len(left) < 2:
        return 1.0
    products = (left[:-1] * left[1:]).sum()
    scale = math.sqrt(float((left[:-1] ** 2).sum() * (left[1:] ** 2).sum()))
    size = left[1:].size
    return float(stats.norm.sf(products / scale * math.sqrt(size))) if scale else 0.0


def _repeated(drawn: np.ndarray, charged: Charged) -> float:
    """The likelihood, under independence, of so large a difference between canaries in how often they were drawn in all."""
    trials, q = charged.steps * len(drawn), charged.rate
    if q >= 1 or drawn.shape[1] < 2 or trials * q * (1 - q) < 1:
        return 1.0
    spread = ((drawn.sum(0) - trials * q) ** 2).sum() / (trials * q * (1 - q))
    return float(stats.chi2.sf(spread, drawn.shape[1]))
