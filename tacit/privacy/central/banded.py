"""Public cohorts with noise that goes on from round to round: BandMF, Choquette-Choo et al. 2023 (arXiv:2306.08153; Algorithm
9 for the noise), where sums may depend on what was released before (arXiv:2202.08312). A client's slots are at least b rounds
apart, so each is one Gaussian release with multiplier z (docs/derivations.md); nothing is claimed for chance."""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from scipy import optimize, signal

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.mechanism import CohortMechanism, NoiseState
from tacit.privacy.samplers import Cyclic
from tacit.random import Stream
from tacit.types import Private
from tacit.wire import digest_of

# Banded matrix factorisation: which combination of rounds is noised, so that the models carry as little noise as
# possible.

STEPS = 1000  # of L-BFGS; it needs about 20
GRID = 2.0**20  # coefficients are multiples of 1 / GRID: machines whose last bits differ find the same ones


@dataclass(frozen=True)
class Banded:
    """C for `rounds` rounds, by its `coefficients` c_0 = 1, c_1, .., c_(b-1) before its columns are normalised. Guarantee:
    every column of C has norm 1, and columns `bands` or more apart are orthogonal: vectors of norm at most S in k rounds that
    far apart move C x by at most sqrt(k) S in Frobenius norm.

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
        """The standard deviation of C^-1 z in each round, where z has 1."""
        return _stds(self)


@lru_cache(maxsize=64)
def _stds(strategy: Banded) -> np.ndarray:
    first = np.asarray(signal.lfilter([1.0], strategy.coefficients, np.eye(1, strategy.rounds)[0]))  # column of T^-1
    return np.array([strategy.norm(t) for t in range(strategy.rounds)]) * np.sqrt(np.cumsum(np.square(first)))


def momentum_workload(rounds: int, momentum: float) -> np.ndarray:
    """What a sum moves the model by in its own round and after so many more: 1 + momentum + momentum^2 + ..."""
    return np.cumsum(float(momentum) ** np.arange(rounds))


@lru_cache(maxsize=64)
def banded(rounds: int, bands: int, momentum: float = 0.0) -> Banded:
    """The constant bands with the least noise on what the server's optimiser makes of the sums, mean squared over rounds.
    With B = A T^-1, T the bands before columns are normalised, ||B||^2 = sum (n - i) B_i^2, where B_i are those of a(x) /
    c(x), and dB_i / dc_j = -G_(i-j), G of a(x) / c(x)^2: O(n b), by L-BFGS from (1 - x)^(-1/2). No promise depends on how
    good they are."""
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


ROUND, PAST, STRATEGY, TURNS = "round", "past", "strategy", "turns"
DAMAGED = (
    "Some of the noise that this run goes on with is missing or damaged: put its newest checkpoint back, or start anew with"
    " --force, which keeps the old files."
)


@dataclass(frozen=True)
class BandedGaussian(CohortMechanism):
    """In round t: sum the vectors of norm at most S of the clients in group t mod `cycle`, add S z times row t of C^-1 w. The
    state holds the round, the last b - 1 rows of the noise (newest first), the coefficients, and a digest of whose slot is
    when; it is as secret as an update. Guarantee: every slot of a client costs `event()`, even if vectors depend on what was
    released. Assumes: a round is released once, with the state that the round before it left. Raises: BadInput for a cycle
    shorter than the bands."""

    single_release: ClassVar[bool] = True

    noise_multiplier: float
    clip: float
    strategy: Banded
    groups: tuple[int, ...] = field(repr=False)  # no noise depends on them; the plan's digest holds them
    cycle: int

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        self.cohorts  # noqa: B018 - refuses what is no cycle
        if self.cycle < self.strategy.bands:
            raise BadInput(
                f"Noise of {self.strategy.bands} bands is for clients that take part once in {self.strategy.bands} rounds, and"
                f" here they do in {self.cycle}: set privacy.bands to {self.cycle} at most, or train.clients_per_round lower."
            )

    @cached_property
    def cohorts(self) -> Cyclic:  # type: ignore[override]
        """Whose slot each round is, and at which price."""
        return Cyclic(len(self.groups), max(1, -(-len(self.groups) // max(1, self.cycle))), self.groups, self.cycle)

    def init(self) -> NoiseState:
        coefficients = torch.tensor(self.strategy.coefficients, dtype=torch.float64)
        return {
            ROUND: torch.tensor(0),
            STRATEGY: coefficients,
            TURNS: torch.tensor(list(self._schedule), dtype=torch.uint8),
        }

    @property
    def _schedule(self) -> bytes:
        """Whose turn each round is, marked: noise that has begun with one schedule hides nobody of another."""
        return _marked(self.groups, self.cycle, self.strategy.rounds)

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The clients whose turn it is; no chance. Raises BadInput for another number of clients than was priced."""
        if size != len(self.groups):
            raise BadInput(f"This cycle is made for {len(self.groups)} clients, got {size}.")
        return state, self.cohorts.draw(stream, int(state[ROUND]))

    def _noised(self, state: NoiseState, stream: Stream, total: torch.Tensor) -> tuple[NoiseState, Private]:
        """After the last round nothing of the noise is kept. Raises: BadInput for a round beyond the last, and a state of another
        factorisation."""
        t, c = self.round_of(state), self.strategy.coefficients
        past = state[PAST] if t and len(c) > 1 else torch.zeros(0, total.numel(), device=total.device)
        if past.shape[1] != total.numel():
            raise BadInput(DAMAGED)
        y = stream.normal_like(total).flatten()  # y_t = w_t - sum c_j y_(t-j), as c_0 is 1
        for row, own in zip(past, c[1:], strict=False):
            y = y.sub(row, alpha=own)
        scale = self.noise_multiplier * self.clip * self.strategy.norm(t)
        noised = total.add(y.view_as(total), alpha=scale)
        kept = {ROUND: torch.tensor(t + 1), STRATEGY: state[STRATEGY], TURNS: state[TURNS]}
        if t + 1 < self.strategy.rounds and len(c) > 1:
            kept[PAST] = torch.cat([y[None], past[: len(c) - 2]])
        return kept, Private(noised, self.noise_multiplier * self.clip * float(self.strategy.stds()[t]))

    def round_of(self, state: NoiseState) -> int:
        """The round that comes next by the noise's own count. Raises BadInput where this noise cannot go on from the state."""
        if not {ROUND, STRATEGY} <= set(state):
            raise BadInput(DAMAGED)
        t, bands = int(state[ROUND]), self.strategy.bands
        if t >= self.strategy.rounds:
            raise BadInput(f"This noise is made for {self.strategy.rounds} rounds, and all of them have been released.")
        if state[STRATEGY].tolist() != list(self.strategy.coefficients) or (bands > 1 and t and PAST not in state):
            raise BadInput(
                "This run's noise began with another factorisation, and cannot go on with this one: resume it with the version of"
                " Tacit and of scipy that it began with, or start anew with --force, which keeps the old files."
            )
        rows = state[PAST].shape[0] if PAST in state and state[PAST].dim() == 2 else 0
        if t < 0 or rows != min(t, bands - 1) or (rows and not bool(torch.isfinite(state[PAST]).all())):
            raise BadInput(DAMAGED)
        if TURNS not in state or bytes(state[TURNS].tolist()) != self._schedule:
            raise BadInput(
                "This run's noise began with other turns, in which clients may have taken part that would now be asked again too"
                " soon: put clients, rounds and train.clients_per_round back as they were, or start anew with --force, which"
                " keeps the old files."
            )
        return t


@lru_cache(maxsize=4)
def _marked(groups: tuple[int, ...], cycle: int, rounds: int) -> bytes:
    return bytes.fromhex(digest_of("turns", np.array(groups, dtype=np.int64).tobytes(), repr((cycle, rounds))))
