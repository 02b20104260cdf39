"""Banded matrix factorisation: which combination of rounds is noised, so that the models carry as little noise as possible.

Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023 (BandMF, arXiv:2306.08153), Algorithm 9 for the noise;
the strategy has constant bands, as in McKenna 2024 (arXiv:2405.15913): for 200 rounds within 1 % of the best banded one.

The sums x_0 .. x_(n-1) of the rounds are noised as C x + z, with independent z, and A x is what a model needs: what the server's
optimiser makes of all sums so far. The noise on it is A C^-1 z. C is lower triangular, C[t, t - j] = c_j / norm_t for j < b, and
every column has norm 1. Columns that are b or more apart have no row in common.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, signal

from tacit import check
from tacit.errors import BadInput

STEPS = 1000  # of L-BFGS; it needs about 20
GRID = 2.0**20  # coefficients are multiples of 1 / GRID: machines whose last bits differ find the same ones


@dataclass(frozen=True)
class Banded:
    """C for `rounds` rounds, by its `coefficients` c_0 = 1, c_1, .., c_(b-1) before its columns are normalised.

    Guarantee: every column of C has norm 1, and columns `bands` or more apart are orthogonal. So vectors of norm at most S in any
    rounds that far apart, k of them, move C x by at most sqrt(k) S in Frobenius norm, whatever their signs and directions.

    Raises: BadInput for no coefficients, a first one that is not 1, one that is not finite, and fewer rounds than bands.

    >>> Banded((1.0, 0.5), rounds=3).dense().round(3).tolist()
    [[0.894, 0.0, 0.0], [0.447, 0.894, 0.0], [0.0, 0.447, 1.0]]
    """

    coefficients: tuple[float, ...]
    rounds: int

    def __post_init__(self) -> None:
        if not self.coefficients or self.coefficients[0] != 1 or not np.isfinite(self.coefficients).all():
            raise BadInput(f"Expected finite coefficients that begin with 1, got {self.coefficients}.")
        if self.rounds < self.bands:
            raise BadInput(
                f"Noise of {self.bands} bands takes {self.bands} rounds to be whole, and there are {self.rounds}: raise"
                " train.rounds, or set privacy.bands lower."
            )

    @property
    def bands(self) -> int:
        """b: in how many rounds the sum of one round is noised."""
        return len(self.coefficients)

    def norm(self, round: int) -> float:
        """What the column of a round is divided by: the last ones are shorter, because the run ends."""
        return math.hypot(*self.coefficients[: self.rounds - round])

    def dense(self) -> np.ndarray:
        """C as it stands in the paper: the slow twin."""
        C = np.zeros((self.rounds, self.rounds))
        for column in range(self.rounds):
            own = self.coefficients[: self.rounds - column]
            C[column : column + len(own), column] = np.array(own) / self.norm(column)
        return C

    def stds(self) -> np.ndarray:
        """The standard deviation of C^-1 z in each round, where z has 1.

        >>> Banded((1.0, 0.5), rounds=2).stds().round(3).tolist()
        [1.118, 1.118]
        """
        return _stds(self)

    def error(self, workload: np.ndarray | None = None) -> float:
        """The root-mean-square over rounds of the noise on A x; without a workload, on the sum of all rounds so far.

        >>> round(Banded((1.0,), rounds=200).error(), 3)  # independent noise: the root of the mean of 1 .. 200
        10.025
        """
        A = toeplitz(np.ones(self.rounds) if workload is None else workload)
        return float(np.linalg.norm(A @ np.linalg.inv(self.dense()))) / math.sqrt(self.rounds)


@lru_cache(maxsize=64)
def _stds(strategy: Banded) -> np.ndarray:
    first = np.asarray(signal.lfilter([1.0], strategy.coefficients, np.eye(1, strategy.rounds)[0]))  # column of T^-1
    return np.array([strategy.norm(t) for t in range(strategy.rounds)]) * np.sqrt(np.cumsum(np.square(first)))


def toeplitz(column: np.ndarray) -> np.ndarray:
    """The lower triangular matrix whose diagonals are constant, by its first column."""
    lag = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(lag >= 0, column[lag], 0.0)


def momentum_workload(rounds: int, momentum: float) -> np.ndarray:
    """What a sum moves the model by in its own round and after so many more: 1 + momentum + momentum^2 + ...

    >>> momentum_workload(3, 0.0).tolist(), momentum_workload(3, 0.5).tolist()
    ([1.0, 1.0, 1.0], [1.0, 1.5, 1.75])
    """
    return np.cumsum(float(momentum) ** np.arange(rounds))


@lru_cache(maxsize=64)
def banded(rounds: int, bands: int, momentum: float = 0.0) -> Banded:
    """The constant bands with the least noise on what the server's optimiser makes of the sums, mean squared over rounds.

    With B = A T^-1, T the bands before columns are normalised, B has constant diagonals B_i whose generating function is
    a(x) / c(x), so that ||B||^2 = sum (n - i) B_i^2 and dB_i / dc_j = -G_(i-j), G of a(x) / c(x)^2: O(n b), minimised by L-BFGS
    from the first b coefficients of (1 - x)^(-1/2).

    Guarantee: the same numbers give the same coefficients. What is promised does not depend on how good they are.

    Raises: BadInput for fewer than one band, and for fewer rounds than bands.

    >>> round(banded(200, 10).error(), 3)
    3.807
    """
    check.at_least(1, **{"privacy.bands": bands})
    start = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, bands))])
    if bands == 1 or rounds < bands:
        return Banded(tuple(start), rounds)
    a, weights = momentum_workload(rounds, momentum), np.arange(rounds, 0, -1)

    def loss(tail: np.ndarray) -> tuple[float, np.ndarray]:
        c = np.concatenate([[1.0], tail])
        B = signal.lfilter([1.0], c, a)
        G = signal.lfilter([1.0], c, B)
        weighted, length = weights * B, c @ c
        squares = weighted @ B
        slopes = np.array([-2 * (weighted[j:] @ G[: rounds - j]) for j in range(1, bands)])
        return math.log(length * squares), slopes / squares + 2 * tail / length

    found = optimize.minimize(
        loss, start[1:], jac=True, method="L-BFGS-B", options={"maxiter": STEPS, "ftol": 1e-14, "gtol": 1e-9}
    )
    if not found.fun <= loss(start[1:])[0]:  # not a number, or astray: the start is a factorisation too
        return Banded(tuple(start), rounds)
    return Banded((1.0, *(np.rint(found.x * GRID) / GRID).tolist()), rounds)
