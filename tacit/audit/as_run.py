"""What was measured: the noise, what a canary changed and how often it was drawn, as run, with limits; and the epsilon of that.

A canary's trace in a round is x = A n + (noise): n is how often it was drawn, known to the auditor, and A is 1, in clips, where the
clip is what is priced. So A is a regression, the noise is what is left, and the rate is a count. Noise is asked for in every part
by itself too: a layer, a client, a round or a single coordinate without it would hardly be seen in the mean over all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy import stats

from tacit.audit.evidence import Noise, Rate
from tacit.audit.priced import Charged

SHARES = (0.8, 0.1, 0.1)  # of a limit's level: what a canary changed (the least certain), the noise, the rate
DOUBT = 1 / 50  # of a limit's level: at that, what should be independent is said not to be, and a part to lack noise
ONE = "a single coordinate"
Parts = Mapping[str, np.ndarray]  # which canaries are in a layer, or with a client


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
    quiet: str = ""  # which part carries less noise than is priced, whatever all of them carry together


def measured(traces: Traces, charged: Charged, *, level: float, parts: Parts = MappingProxyType({})) -> Measured:
    """The limits are wrong, each, with probability at most `level`; by chance rounds are called dependent in 1 of 25 of that, and a
    part quiet in 1 of 50.
    """
    x, n = traces.seen.astype(float), traces.drawn.astype(float)
    squares = float((n * n).sum())
    change = float((x * n).sum()) / squares if squares else 0.0
    left = x - change * n
    freedom = left.size - (squares > 0)  # one was spent on what a canary changes
    noise = Noise(float((left**2).sum()) / charged.steps, max(1, freedom))
    known = squares > 0 and freedom > 0
    hits, trials = int(n[:, traces.coins].sum()), charged.steps * n[:, traces.coins].size
    seen_rate = Rate(hits, trials).value if trials else charged.rate  # where no coin fell for a canary nothing is drawn
    limits, rates, error = limits_of(change, squares if known else 0.0, noise, hits, trials, charged, level=level)
    z, claimed = noise.value / change if change > 0 and known else math.inf, charged.multiplier
    alike, repeated = _alike(left), _repeated(n[:, traces.coins], charged)
    return Measured(
        multiplier=z,
        multiplier_limits=limits,
        rate=seen_rate,
        epsilon=charged.epsilon(z / claimed, _sound(seen_rate)),
        low=charged.epsilon(limits[1] / claimed, _sound(rates[0])),
        high=charged.epsilon(limits[0] / claimed, _sound(rates[1])),
        alike=alike,
        repeated=repeated,
        dependent=min(alike, repeated) < DOUBT * level,
        quiet=_quiet(x - n, claimed * math.sqrt(charged.steps) * min(1.0, change - error), parts, level=DOUBT * level),
    )


def limits_of(
    change: float, squares: float, noise: Noise, hits: int, trials: int, charged: Charged, *, level: float
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """The limits of the multiplier and of the rate, and how far what a canary changed may be off: of no `squares`, anything."""
    own, of_noise, of_rate = (share * level for share in SHARES)
    spread = float(stats.t.isf(own, noise.count)) * noise.value if squares else math.inf
    error = spread * math.sqrt(charged.steps / squares) if squares else math.inf
    quiet, loud = noise.limits(of_noise)
    multipliers = quiet / (change + error), loud / (change - error) if change > error else math.inf
    rates = (1.0, 1.0) if charged.rate >= 1 and hits == trials else Rate(hits, trials).limits(of_rate)
    return multipliers, rates, error


def _quiet(left: np.ndarray, std: float, parts: Parts, *, level: float) -> str:
    """The part whose noise is surely smaller than `std`, or nothing. Where a canary changed next to nothing, neither is said."""
    if not std > 0:
        return ""
    squares = (left / std) ** 2
    columns = {name: (squares[:, mine].sum(), squares[:, mine].size) for name, mine in parts.items() if mine.any()}
    rows = {f"round {r}": (row.sum(), row.size) for r, row in enumerate(squares, 1)}
    single = squares.sum(0)
    every = columns | rows | {ONE: (single.min(), len(left))}
    tests = len(columns) + len(rows) + len(single)
    unlikely = {name: float(stats.chi2.cdf(total, size)) for name, (total, size) in every.items()}
    refuted = [name for name in every if unlikely[name] * tests < level]
    if not refuted:
        return ""
    least = min(refuted, key=lambda name: (name == ONE, unlikely[name]))  # the name that says more, where there is one
    total, size = every[least]
    most = Noise(float(total), size).limits(level / tests)[1]
    return f"the noise of {least} is at most {most:.2g} of what is priced"


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
    variance = trials * q * (1 - q)
    spread = ((drawn.sum(0) - trials * q) ** 2).sum() / variance
    fewer = 2 / (
        2 + max(0.0, (1 - 6 * q * (1 - q)) / variance)
    )  # rare draws vary more in their squares than normal ones
    return float(stats.chi2.sf(spread * fewer, drawn.shape[1] * fewer))
