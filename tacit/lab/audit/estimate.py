"""What canaries show of a run, with limits: the noise, what one canary changed and how often it was drawn; and the epsilon of that.
A canary's trace in a round is x = A n + (noise): n is how often it was drawn, and A is 1, in clips, where the clip is what is
priced. So A is a regression, the noise is the residual, and the rate is a count. Each part of the noise is tested too. Guesses
of the canaries' coins give lower bounds on epsilon from one run (arXiv:2305.08846, arXiv:2410.22235)."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr, ndtri

from tacit.errors import BadInput
from tacit.lab.audit import evidence
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import IntegerSumDpEvent, SampledGaussianSumDpEvent, SampledSumDpEvent, SideDpEvent

Inverse = Callable[[float], float]  # x -> f(1 - x), of a trade-off curve f
Subsets = Mapping[str, np.ndarray]  # which canaries are in a layer, or with a client
Place = tuple[Hashable, int | None]  # a ledger, and which of its runs it is; None where the ledger is the run's own
LARGEST = 60.0  # epsilon: beyond, a bound says nothing that anybody needs
HALVINGS, HALVINGS_OF_NOISE, HALVINGS_OF_MU = 40, 12, 8
POINTS = 60  # of a trade-off curve
INTERVAL = 1e-3  # of the losses a curve is made from
SHARES = (0.8, 0.1, 0.1)  # of a limit's level: what a canary changed (the least certain), the noise, the rate
DOUBT = (
    1 / 50
)  # of a limit's level: at that, what should be independent is called dependent, and a part said to lack noise
ONE = "a single coordinate"
GUESSED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)  # of the canaries: how many coins; the claim decides which
FEWEST = 10  # guesses
LEAST_MU, MOST_MU = 1e-4, 100.0


def no_assumption(*, canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that so many right guesses refute at `level`; 0 where they refute none."""

    def refuted(epsilon: float) -> bool:  # so many right guesses are at most so likely under (epsilon, delta)-DP
        chance, below = 1 / (1 + math.exp(-epsilon)), np.arange(1, right + 1)
        near = stats.binom.cdf(right - 1, guesses, chance) - stats.binom.cdf(right - below - 1, guesses, chance)
        most = float((near / below).max())
        return min(1.0, float(stats.binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * most) <= level

    if right == 0 or not refuted(0.0):
        return 0.0
    return _bisected(refuted, 0.0, LARGEST, HALVINGS)[0]


def _bisected(holds: Callable[[float], bool], low: float, high: float, times: int) -> tuple[float, float]:
    for _ in range(times):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def refutes(inverse: Inverse, *, canaries: int, guesses: int, right: int, level: float) -> bool:
    """Whether so many right guesses refute, at `level`, that the trade-off curve of `inverse` holds."""
    wrong, sure = level * (guesses - right) / canaries, level * right / canaries
    for i in range(right - 1, -1, -1):
        next_wrong = max(wrong, inverse(sure))
        sure += i / (guesses - i) * (next_wrong - wrong)
        wrong = next_wrong
        if sure + wrong > guesses / canaries:
            return True
    return False


def gaussian_inverse(mu: float) -> Inverse:
    """Of the curve of N(0, 1) against N(mu, 1)."""
    return lambda x: float(ndtr(ndtri(min(x, 1.0)) - mu))


def curve_inverse(epsilons: np.ndarray, deltas: np.ndarray) -> Inverse:
    """Of the curve that follows from (epsilon, delta) pairs: f(a) is at least 1 - delta - e^epsilon a and its reflection.
    Assumes: every pair holds. Fewer pairs give a lower curve, which is harder to refute, never easier."""
    grow, rest = np.exp(np.minimum(epsilons, 600)), 1 - deltas
    return lambda x: max(0.0, float((rest - grow * (1 - x)).max()), float(((x - deltas) / grow).max()))


@dataclass(frozen=True)
class Charged:
    """What one client was charged for in a run: `count` releases of one event, `steps` of them in a round, at the run's `delta`.
    Its price can be computed again, for noise and rates as they were measured."""

    event: DpEvent
    count: int
    steps: int
    delta: float

    @property
    def multiplier(self) -> float:
        """Noise over what one unit can change, as it is priced. Raises BadInput for an event that no audit can measure."""
        event = self.event.event if isinstance(self.event, dp_accounting.PoissonSampledDpEvent) else self.event
        if isinstance(event, SampledGaussianSumDpEvent):
            return event.gaussian[1]
        if isinstance(event, IntegerSumDpEvent | SampledSumDpEvent):
            return math.sqrt(event.shares * event.share_variance / event.l2_squared)
        if isinstance(event, dp_accounting.GaussianDpEvent):
            return event.noise_multiplier
        kind = type(event).__name__
        raise BadInput(f"An audit measures Gaussian noise and integer shares; this run is priced as {kind}.")

    @property
    def rate(self) -> float:
        if isinstance(self.event, SampledSumDpEvent):
            return self.event.sampling_rate
        sampled = isinstance(self.event, dp_accounting.PoissonSampledDpEvent)
        return self.event.sampling_probability if sampled else 1.0  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def rounds(self) -> int:
        return self.count // self.steps

    def at(self, factor: float, rate: float | None = None) -> DpEvent:
        """The event with so many times the noise, and perhaps another rate; sums of discrete Gaussian shares as the Gaussian that
        they are priced as."""
        rate = self.rate if rate is None else rate
        if isinstance(self.event, IntegerSumDpEvent):
            return replace(self.event, share_variance=self.event.share_variance * factor**2)
        if type(self.event) is SampledSumDpEvent:
            variance = self.event.share_variance * factor**2
            return replace(self.event, share_variance=variance, sampling_rate=min(1.0, rate))
        gaussian = dp_accounting.GaussianDpEvent(self.multiplier * factor)
        return gaussian if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)

    def epsilon(self, factor: float = 1.0, rate: float | None = None) -> float:
        """The price with so many times the noise. Without any noise no epsilon holds, and with endless noise 0 does."""
        if factor <= 0 or (rate is not None and rate <= 0) or math.isinf(factor):
            return math.inf if factor <= 0 else 0.0
        composition = price.compose([(self.at(factor, rate), self.count)])
        return price.epsilon(composition, delta=self.delta)

    def inverse(self, factor: float) -> Inverse:
        """The trade-off curve of all releases with so many times the noise: no higher than the true one."""
        if isinstance(self.at(1.0), dp_accounting.GaussianDpEvent):
            return gaussian_inverse(math.sqrt(self.count) / (self.multiplier * factor))
        return curve_inverse(*_pairs(self, factor))


@cache
def _pairs(charged: Charged, factor: float) -> tuple[np.ndarray, np.ndarray]:
    # (epsilon, delta) pairs that hold for all releases in total
    event = charged.at(factor)
    if isinstance(event, IntegerSumDpEvent | SampledSumDpEvent):
        deltas = np.geomspace(1e-9, 0.5, POINTS)
        composition = price.compose([(event, charged.count)])
        return np.array([price.epsilon(composition, delta=float(d)) for d in deltas]), deltas
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=INTERVAL).compose(event, charged.count)
    epsilons = np.linspace(0.0, accountant.get_epsilon(1e-9), POINTS)
    return epsilons, np.array([accountant.get_delta(float(e)) for e in epsilons])


def claim_of(event: DpEvent, rounds: int = 1, *, delta: float = math.nan) -> Charged:
    """What so many rounds of this price were charged for. Raises BadInput for what no audit can measure."""
    event, steps = price.counted(event)
    charged = Charged(event.event if isinstance(event, SideDpEvent) else event, steps * rounds, steps, delta)
    charged.multiplier  # noqa: B018 - refuses what has none
    return charged


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
    quiet: str = ""  # which part carries less noise than is priced, whatever all of them carry in total


def measured(traces: Traces, charged: Charged, *, level: float, subsets: Subsets = MappingProxyType({})) -> Measured:
    """The limits are wrong, each, with probability at most `level`; by chance rounds are called dependent in 1 of 25 of that, and a
    part quiet in 1 of 50."""
    x, n = traces.seen.astype(float), traces.drawn.astype(float)
    squares = float((n * n).sum())
    change = float((x * n).sum()) / squares if squares else 0.0
    residual = x - change * n
    freedom = residual.size - (squares > 0)  # one was spent on what a canary changes
    noise = evidence.noise(float((residual**2).sum()) / charged.steps, max(1, freedom))
    drawn = n[:, traces.coins]
    hits, trials = int(drawn.sum()), charged.steps * drawn.size
    rate = (
        evidence.rate(hits, trials).value if trials else charged.rate
    )  # where no coin fell for a canary nothing is drawn
    identified, claimed = squares > 0 and freedom > 0, charged.multiplier
    of_change, of_noise, of_rate = (share * level for share in SHARES)
    spread = float(stats.t.isf(of_change, max(1, freedom))) * noise.value if identified else math.inf
    error = spread * math.sqrt(charged.steps / squares) if identified else math.inf
    least, most = noise.limits(of_noise)
    limits = least / (change + error), most / (change - error) if change > error else math.inf
    rates = (1.0, 1.0) if charged.rate >= 1 and hits == trials else evidence.rate(hits, trials).limits(of_rate)
    z = noise.value / change if change > 0 and identified else math.inf
    alike, repeated = _alike(residual), _repeated(drawn, charged)
    std = claimed * math.sqrt(charged.steps) * min(1.0, change - error)
    return Measured(
        multiplier=z,
        multiplier_limits=limits,
        rate=rate,
        epsilon=charged.epsilon(z / claimed, rate),
        low=charged.epsilon(limits[1] / claimed, rates[0]),
        high=charged.epsilon(limits[0] / claimed, rates[1]),
        alike=alike,
        repeated=repeated,
        dependent=min(alike, repeated) < DOUBT * level,
        quiet=_quiet(x - n, std, subsets, level=DOUBT * level),
    )


def _quiet(residual: np.ndarray, std: float, subsets: Subsets, *, level: float) -> str:
    # the part whose noise is surely smaller than `std`; where a canary changed next to nothing, none is named
    if not std > 0:
        return ""
    squares = (residual / std) ** 2
    sums = {name: (squares[:, mine].sum(), squares[:, mine].size) for name, mine in subsets.items() if mine.any()}
    sums |= {f"round {r}": (row.sum(), row.size) for r, row in enumerate(squares, 1)}
    single = squares.sum(0)
    tests = len(sums) + len(single)
    sums[ONE] = (single.min(), len(residual))
    unlikely = {name: float(stats.chi2.cdf(total, size)) for name, (total, size) in sums.items()}
    refuted = [name for name in sums if unlikely[name] * tests < level]
    if not refuted:
        return ""
    quietest = min(
        refuted, key=lambda name: (name == ONE, unlikely[name])
    )  # the name that says more, where there is one
    total, size = sums[quietest]
    most = evidence.noise(float(total), size).limits(level / tests)[1]
    return f"the noise of {quietest} is at most {most:.2g} of what is priced"


def _alike(residual: np.ndarray) -> float:
    # how likely independent noise is so much alike from one round to the next
    if len(residual) < 2:
        return 1.0
    products = (residual[:-1] * residual[1:]).sum()
    scale = math.sqrt(float((residual[:-1] ** 2).sum() * (residual[1:] ** 2).sum()))
    return float(stats.norm.sf(products / scale * math.sqrt(residual[1:].size))) if scale else 0.0


def _repeated(drawn: np.ndarray, charged: Charged) -> float:
    # how likely canaries differ so much in how often independent draws drew them in all
    trials, q = charged.steps * len(drawn), charged.rate
    variance = trials * q * (1 - q)
    if q >= 1 or drawn.shape[1] < 2 or variance < 1:
        return 1.0
    spread = ((drawn.sum(0) - trials * q) ** 2).sum() / variance
    fewer = 2 / (2 + max(0.0, (1 - 6 * q * (1 - q)) / variance))  # squares of rare draws vary more than normal ones
    return float(stats.chi2.sf(spread * fewer, drawn.shape[1] * fewer))


def scores(traces: Traces, charged: Charged) -> np.ndarray:
    """The log likelihood ratio of having taken part, under the mechanism that was priced, of every canary."""
    z, q, steps = charged.multiplier, charged.rate, charged.steps
    times = np.arange(steps + 1)
    weights = stats.binom.logpmf(times, steps, q) if q < 1 else np.where(times == steps, 0.0, -np.inf)
    ratios = np.zeros(traces.seen.shape[1])
    for row in traces.seen.astype(float):  # a round at a time: (round, canary, step) in one piece would be gigabytes
        likely = weights + (2 * times * row[:, None] - times**2) / (2 * steps * z**2)
        ratios += np.asarray(logsumexp(likely, axis=-1))
    return ratios


def right_guesses(scores: np.ndarray, coins: np.ndarray, guesses: int) -> int:
    """How many of the surest guesses are right: of a fair coin the log odds are the score itself, so its size is how sure one is.
    How many are made is settled beforehand; which, and how many of them say "in", the scores may decide: guesses are a function of
    what was released."""
    surest = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    return int(((scores[surest] > 0) == coins[surest]).sum())


def shown(traces: Traces, charged: Charged, *, level: float) -> tuple[float, float]:
    """The epsilons that are shown: without any assumption, and among mechanisms like the one that was priced."""
    ratios, m = scores(traces, charged), len(traces.coins)
    plain, curved = guess_counts(m, charged.epsilon(), charged.delta)
    at = {"canaries": m, "level": level}
    right = right_guesses(ratios, traces.coins, plain)
    first = no_assumption(guesses=plain, right=right, delta=charged.delta, **at)
    right = right_guesses(ratios, traces.coins, curved)

    def stands(log: float) -> bool:
        return not refutes(charged.inverse(2.0**log), guesses=curved, right=right, **at)

    # the most noise that is refuted: with less noise still, the epsilon is larger, and less is refuted
    if stands(4.0):
        return first, 0.0
    return first, charged.epsilon(2.0 ** _bisected(stands, -4.0, 4.0, HALVINGS_OF_NOISE)[1])


@cache
def guess_counts(canaries: int, epsilon: float, delta: float) -> tuple[int, int]:
    """How many coins to guess, by either bound: the best where scores are those of a Gaussian with the claimed epsilon, and luck is
    one standard deviation short.
    It follows from the claim and the number of canaries alone: nothing that was seen decides about it."""
    mu = gaussian_mu(epsilon, delta)
    best = [(0.0, canaries), (0.0, canaries)]
    for part in GUESSED:
        guesses = min(canaries, max(FEWEST, round(canaries * part)))
        sure = _sure(mu, guesses / canaries)
        right = max(0, int(guesses * sure - math.sqrt(guesses * sure * (1 - sure))))
        at = {"canaries": canaries, "guesses": guesses, "right": right, "level": 0.05}

        def refuted(smaller: float, at: dict[str, Any] = at) -> bool:
            return refutes(gaussian_inverse(smaller), **at)

        bounds = no_assumption(delta=delta, **at), _bisected(refuted, 0.0, 2 * mu, HALVINGS_OF_MU)[0]
        best = [max(one, (value, guesses)) for one, value in zip(best, bounds, strict=True)]
    return best[0][1], best[1][1]


def _sure(mu: float, part: float) -> float:
    # the share of right guesses among the surest `part`, of N(0, 1) and N(mu, 1)
    def beyond(t: float) -> float:
        return float(stats.norm.sf(t - mu / 2) + stats.norm.sf(t + mu / 2))

    t = brentq(lambda t: beyond(t) - part, 0.0, MOST_MU) if part < 1 else 0.0
    return float(stats.norm.sf(t - mu / 2)) / beyond(t)  # type: ignore[arg-type]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon at delta (Dong, Roth, Su, arXiv:1905.02383, Corollary 2.13).
    None is below 1e-4 or above 100, where nobody guesses, or everybody."""

    def off(mu: float) -> float:
        first = stats.norm.logcdf(mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(min(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu), 0.0)) - delta

    if off(LEAST_MU) >= 0 or off(MOST_MU) <= 0:
        return LEAST_MU if off(LEAST_MU) >= 0 else MOST_MU
    return float(brentq(off, LEAST_MU, MOST_MU))  # type: ignore[arg-type]


def share(places: Iterable[Place], *, earlier: int = 0) -> float:
    """The share of the level of runs at these places, after `earlier` looks at other choices with one of them: all audits of a
    ledger's runs in total use no more than the whole."""
    shares: dict[Hashable, float] = defaultdict(float)
    for ledger, place in places:
        shares[ledger] += 1.0 if place is None else 1 / (place * (place + 1))
    return min(1.0, *shares.values()) / 2**earlier
