"""Guessing the coins of canaries from their traces, and what the right guesses show."""

import math
from functools import cache

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from tacit.audit.as_run import Traces
from tacit.audit.one_run import gaussian_inverse, no_assumption, refutes
from tacit.audit.priced import Charged

# of the canaries: how many coins are guessed; which of them, the claim decides
PARTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
HALVINGS = 12
FEWEST = 10  # guesses
LEAST_MU, MOST_MU = 1e-4, 100.0


def scores(traces: Traces, charged: Charged) -> np.ndarray:
    """The log likelihood ratio of having taken part, under the mechanism that was priced, of every canary."""
    z, q, steps = charged.multiplier, charged.rate, charged.steps
    times = np.arange(steps + 1)
    weights = stats.binom.logpmf(times, steps, q) if q < 1 else np.where(times == steps, 0.0, -np.inf)
    found = np.zeros(traces.seen.shape[1])
    for row in traces.seen.astype(float):  # a round at a time: (round, canary, step) in one piece would be gigabytes
        terms = weights + (2 * times * row[:, None] - times**2) / (2 * steps * z**2)
        most = terms.max(-1, keepdims=True)
        found += most[:, 0] + np.log(np.exp(terms - most).sum(-1))
    return found


def right_guesses(found: np.ndarray, coins: np.ndarray, guesses: int) -> int:
    """How many of the surest guesses are right: of a fair coin the log odds are the score itself, so its size is how sure one is.

    How many are made is settled beforehand; which, and how many of them say "in", the scores may decide: guesses are a function of
    what was released.
    """
    surest = np.argsort(-np.abs(found), kind="stable")[:guesses]
    return int(((found[surest] > 0) == coins[surest]).sum())


def shown(traces: Traces, charged: Charged, *, level: float) -> tuple[float, float]:
    """The epsilons that are shown: without any assumption, and among mechanisms like the one that was priced."""
    found, m = scores(traces, charged), len(traces.coins)
    plain, curved = guess_counts(m, charged.epsilon(), charged.delta)
    at = {"canaries": m, "level": level}
    first = no_assumption(guesses=plain, right=right_guesses(found, traces.coins, plain), delta=charged.delta, **at)
    right = right_guesses(found, traces.coins, curved)
    # the most noise that is refuted: with less noise still, the epsilon is larger, and less is refuted
    low, high = 1 / 16, 16.0
    if not refutes(charged.inverse(high), guesses=curved, right=right, **at):
        return first, 0.0
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if refutes(charged.inverse(middle), guesses=curved, right=right, **at) else (middle, high)
        )
    return first, charged.epsilon(high)


@cache
def guess_counts(canaries: int, epsilon: float, delta: float) -> tuple[int, int]:
    """How many coins to guess, by either bound: the best where scores are those of a Gaussian with the claimed epsilon, and luck is
    one standard deviation short.

    It follows from the claim and the number of canaries alone: nothing that was seen decides about it.
    """
    mu = gaussian_mu(epsilon, delta)
    best = [(0.0, canaries), (0.0, canaries)]
    for part in PARTS:
        guesses = min(canaries, max(FEWEST, round(canaries * part)))
        sure = _sure(mu, guesses / canaries)
        right = max(0, int(guesses * sure - math.sqrt(guesses * sure * (1 - sure))))
        at = {"canaries": canaries, "guesses": guesses, "right": right, "level": 0.05}
        found = no_assumption(delta=delta, **at), _largest_mu(mu, **at)
        best = [max(one, (value, guesses)) for one, value in zip(best, found, strict=True)]
    return best[0][1], best[1][1]


def _largest_mu(mu: float, **at: float) -> float:
    low, high = 0.0, 2 * mu
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(gaussian_inverse(middle), **at) else (low, middle)  # type: ignore[arg-type]
    return low


def _sure(mu: float, part: float) -> float:
    """The share of right guesses among the surest `part`, of N(0, 1) and N(mu, 1)."""

    def beyond(t: float) -> float:
        return float(stats.norm.sf(t - mu / 2) + stats.norm.sf(t + mu / 2))

    t = brentq(lambda t: beyond(t) - part, 0.0, MOST_MU) if part < 1 else 0.0
    return float(stats.norm.sf(t - mu / 2)) / beyond(t)  # type: ignore[arg-type]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon at delta (Dong, Roth, Su, arXiv:1905.02383, Corollary 2.13).

    None is below 1e-4 or above 100, where nobody guesses, or everybody.

    >>> round(gaussian_mu(4.37, 1e-5), 2)
    1.0
    """

    def off(mu: float) -> float:
        first = stats.norm.logcdf(mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(min(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu), 0.0)) - delta

    if off(LEAST_MU) >= 0 or off(MOST_MU) <= 0:
        return LEAST_MU if off(LEAST_MU) >= 0 else MOST_MU
    return float(brentq(off, LEAST_MU, MOST_MU))  # type: ignore[arg-type]
