"""What guesses of coins show: lower bounds on epsilon from one run.

`no_assumption`: Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846), Theorem 5.2: of an (epsilon, delta)-DP algorithm, whatever it is.
`within_curve`: Mahloujifar, Melis, Chaudhuri 2024 (arXiv:2410.22235), Algorithm 3: the same game against a whole trade-off curve,
so that more is shown, of the mechanisms that have one of these curves.

The game: m canaries, a fair coin each. Somebody guesses `guesses` of the coins, having seen what was released, and is right in
`right` of them. How many are guessed is settled beforehand.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

LARGEST = 60.0  # epsilon: beyond, a bound says nothing that anybody needs
HALVINGS = 40

Inverse = Callable[[float], float]  # x -> f(1 - x), of a trade-off curve f


def no_assumption(*, canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that so many right guesses refute at `level`; 0 where they refute none.

    >>> round(no_assumption(canaries=1000, guesses=100, right=95, delta=1e-5, level=0.05), 2)
    2.17
    """

    def refuted(epsilon: float) -> bool:
        return _likelihood(canaries, guesses, right, epsilon, delta) <= level

    return _largest(refuted)


def _likelihood(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most so likely are so many right guesses under (epsilon, delta)-DP."""
    if right == 0:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    below = np.arange(1, right + 1)
    near = stats.binom.cdf(right - 1, guesses, chance) - stats.binom.cdf(right - below - 1, guesses, chance)
    most = float((near / below).max())
    return min(1.0, float(stats.binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * most)


def refutes(inverse: Inverse, *, canaries: int, guesses: int, right: int, level: float) -> bool:
    """Whether so many right guesses refute, at `level`, that the trade-off curve of `inverse` holds."""
    wrong, sure = level * (guesses - right) / canaries, level * right / canaries
    whole = guesses / canaries
    for i in range(right - 1, -1, -1):
        next_wrong = max(wrong, inverse(sure))
        sure += i / (guesses - i) * (next_wrong - wrong)
        wrong = next_wrong
        if sure + wrong > whole:
            return True
    return False


def gaussian_inverse(mu: float) -> Inverse:
    """Of the curve of N(0, 1) against N(mu, 1)."""
    from scipy.special import ndtr, ndtri

    return lambda x: float(ndtr(ndtri(min(x, 1.0)) - mu))


def curve_inverse(epsilons: np.ndarray, deltas: np.ndarray) -> Inverse:
    """Of the curve that follows from (epsilon, delta) pairs: f(a) is at least 1 - delta - e^epsilon a and its reflection.

    Assumes: every pair holds. Fewer pairs give a lower curve, which is harder to refute, never easier.
    """
    grow, rest = np.exp(np.minimum(epsilons, 600)), 1 - deltas

    def inverse(x: float) -> float:
        return max(0.0, float((rest - grow * (1 - x)).max()), float(((x - deltas) / grow).max()))

    return inverse


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest epsilon that is refuted, where a smaller one is refuted by the same."""
    low, high = 0.0, LARGEST
    if not refuted(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
