"""From a budget to the noise that keeps it: the smallest multiplier whose price is within (epsilon, delta). What is returned
was itself priced: no promise rests on interpolation. Few budgets are solved one by one to 0.1 %; many share a grid of
multipliers 1 % apart, each node priced at most once (10,000 distinct budgets in seconds)."""

import math
from collections.abc import Callable
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import price

TOLERANCE = 1e-3
GRID = math.log(1.01)
FEW = 48  # up to here, solving one by one is cheaper than the grid
SMALLEST, LARGEST = 1e-2, 1e6  # multipliers searched


@lru_cache(maxsize=100_000)
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: str = "pld",
    beside: price.Composition = (),
) -> float:
    """The smallest z, to 0.1 %, for which `steps` sampled Gaussian releases cost at most `epsilon`, with those `beside` them.
    Guarantee: price(z) <= epsilon for the very z that is returned. Raises: BadInput where no multiplier from 0.01 to 1e6
    can do it.

    >>> round(noise_multiplier(epsilon=3, delta=1e-5, sampling_rate=0.05, steps=150), 2)
    1.19
    """
    check.positive(epsilon=epsilon)
    cost = _cost(delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant, beside=beside)
    return _solve_down(cost, epsilon)


def smallest(cost: Callable[[float], float], *, epsilon: float) -> float:
    """The smallest z, to 0.1 %, with cost(z) <= epsilon, for any cost that falls with the noise; infinite is no price.
    Guarantee: cost(z) <= epsilon was computed for the z that is returned. Raises: BadInput where no z up to 1e6 keeps
    epsilon.

    >>> round(smallest(lambda z: 2 / z, epsilon=0.5), 2)
    4.0
    """
    check.positive(epsilon=epsilon)
    return _solve_down(cost, epsilon)


def noise_multipliers(
    epsilons: np.ndarray, *, delta: float, sampling_rate: float, steps: int, accountant: str = "pld"
) -> np.ndarray:
    """`noise_multiplier` for each of many budgets; with more than 48 different ones, at most 1 % larger than needed.
    Guarantee: price(z_i) <= epsilon_i for every i, each computed. Raises: as `noise_multiplier`; NaN and infinity are no
    budgets."""
    targets, inverse = np.unique(np.asarray(epsilons, dtype=float), return_inverse=True)
    ends = targets[[0, -1]] if len(targets) else ()  # the least, and the last: where NaN and infinity are sorted to
    for target in ends:
        check.positive(epsilon=float(target))
    if len(targets) <= FEW:
        settings = {"delta": delta, "sampling_rate": sampling_rate, "steps": steps, "accountant": accountant}
        solved = [noise_multiplier(epsilon=float(target), **settings) for target in targets]
        return np.array(solved)[inverse]
    cost = _cost(delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant)
    return _on_grid(cost, targets)[inverse]


def _cost(
    *, delta: float, sampling_rate: float, steps: int, accountant: str, beside: price.Composition = ()
) -> Callable[[float], float]:
    check.probability(delta=delta)
    check.rate(sampling_rate=sampling_rate)
    check.at_least(1, steps=steps)

    def cost(z: float) -> float:
        one: DpEvent = dp_accounting.GaussianDpEvent(z)
        if sampling_rate < 1:
            one = dp_accounting.PoissonSampledDpEvent(sampling_rate, one)
        return price.epsilon((*beside, (one, steps)), delta=delta, accountant=accountant)

    return cost


def _solve_down(cost: Callable[[float], float], target: float) -> float:
    """The smallest z in range with cost(z) <= target, for a falling cost: secant steps in log-log inside a bracket."""
    low, high = _bracket(cost, target)
    at_low, at_high = cost(low), cost(high)
    while high / low > 1 + TOLERANCE:
        slope = math.log(at_high / at_low) / math.log(high / low) if 0 < at_high < at_low < math.inf else 0.0
        guess = low * math.exp(math.log(target / at_low) / slope) if slope < 0 else math.sqrt(low * high)
        # a step just past the secant's root, kept off both ends, closes the bracket from both sides
        guess *= 1 + TOLERANCE / 2 if guess * (1 + TOLERANCE / 2) < high else 1 - TOLERANCE / 2
        margin = (high / low) ** 0.05
        guess = min(max(guess, low * min(margin, 1 + TOLERANCE / 2)), high / min(margin, 1 + TOLERANCE / 2))
        at_guess = cost(guess)
        if at_guess <= target:
            high, at_high = guess, at_guess
        else:
            low, at_low = guess, at_guess
        if at_high <= target and at_high > target * (1 - TOLERANCE / 4):
            break
    return high


def _bracket(cost: Callable[[float], float], target: float) -> tuple[float, float]:
    low, high = 0.5, 1.0
    while cost(high) > target:
        low, high = high, high * 2
        if high > LARGEST:
            raise BadInput(f"No noise up to a multiplier of {LARGEST:g} keeps epsilon = {target:g}: use fewer steps.")
    while low > SMALLEST and cost(low) <= target:
        low, high = low / 2, low
    return low, high


def _on_grid(cost: Callable[[float], float], targets: np.ndarray) -> np.ndarray:
    """The first grid node that keeps each target (rising), by bisection of the node range only where targets lie."""

    def node(k: int) -> float:
        return math.exp(GRID * k)

    first = math.floor(math.log(_solve_down(cost, float(targets[-1]))) / GRID) - 1
    last = math.ceil(math.log(_solve_down(cost, float(targets[0]))) / GRID) + 1
    while cost(node(last)) > targets[0]:  # the grid's last node keeps every target because it was priced, too
        last += 1
    nodes = np.full(len(targets), last)
    # each entry: nodes low < high, and the targets t with cost(high) <= t < cost(low)
    work = [(first, last, 0, len(targets))]
    while work:
        low, high, start, stop = work.pop()
        if start == stop:
            continue
        if high - low == 1:
            nodes[start:stop] = high
            continue
        middle = (low + high) // 2
        cut = int(np.searchsorted(targets[start:stop], cost(node(middle)))) + start
        work += [(low, middle, cut, stop), (middle, high, start, cut)]
    return np.array([node(int(k)) for k in nodes])


@lru_cache(maxsize=100_000)
def affordable(
    event: DpEvent,
    *,
    epsilon: float,
    delta: float,
    spent: price.Composition = (),
    accountant: str = "pld",
    most: int = 10**7,
    hint: int = 1,
) -> int:
    """How many more times `event` can be released after `spent` without passing `epsilon`; at most `most`, 0 where `spent`
    has passed it. Guarantee: the price of `spent` and so many releases is at most `epsilon`; with one more it is not,
    unless `most` is reached. `hint` saves prices, and changes nothing else. Assumes: all was fixed before the first
    release (else: ledger/filter.py).

    >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    >>> affordable(step, epsilon=4.18, delta=1e-5, hint=150)
    150
    """

    def fits(times: int) -> bool:
        spending = price.compose([*spent, (event, times)])
        return times == 0 or price.epsilon(spending, delta=delta, accountant=accountant) <= epsilon

    if epsilon == math.inf:
        return most
    low, high, stride = 0, most + 1, 1
    probe = min(max(hint, 1), most)
    while low < probe < high:  # gallop away from the hint until the answer is between low and high
        if fits(probe):
            low, probe = probe, min(probe + stride, most)
        else:
            high, probe = probe, max(probe - stride, 1)
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
