"""A mechanism: one object owns who is in a step, the noise on it, and the whole price, so that they cannot differ. It is frozen
and printable: its repr is part of the key of its noise, so every number that the noise depends on is a field. What changes is the
state: named tensors, for a checkpoint. Correlated noise keeps there what it draws on again: as secret as the data, never sent."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.crypto.grid import Quantised
from tacit.errors import BadInput
from tacit.random import Stream
from tacit.types import Bounded, Private, Shared

NoiseState = Mapping[str, torch.Tensor]
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)


class Mechanism(Protocol[Taken, Given]):
    """Takes what was bounded and gives what carries its noise: `Bounded` to `Private`, or integers to a client's share.
    Guarantee, of every implementation: `sample` and `noise`, called in turn from `init()` for the steps that `event` pays
    for, are private at its price, even if vectors depend on what was released before. All randomness is the stream's."""

    def init(self) -> NoiseState:
        """The state before the first step of what `event` pays for. It draws nothing."""
        ...

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The indices, among `size` units, of those in the next step; nothing but chance and the state decides. Raises:
        BadInput for another number of units than was priced, where the price depends on it."""
        ...

    def noise(self, state: NoiseState, stream: Stream, bounded: Taken) -> tuple[NoiseState, Given]:
        """Noises the step. Raises BadInput for a vector of another sensitivity than was priced."""
        ...

    def event(self) -> DpEvent:
        """The price of all steps from `init` on, of a kind that a ledger knows (tacit/privacy/accounting/events.py)."""
        ...


class TrainingMechanism(Mechanism[Bounded, Private], Protocol):
    """A mechanism of `steps` steps in the training of one client: one `event` pays for all of them. Assumes, of its caller:
    every step's sum is of vectors clipped to `clip` and of exactly the units that `sample` drew, it is noised even where
    none was drawn, and nothing but noised sums leaves the client."""

    @property
    def clip(self) -> float: ...  # the norm that a unit's vector is clipped to: the sensitivity of a step's sum
    @property
    def sampling_rate(
        self,
    ) -> float: ...  # the expected share of the units in a step: a sum is divided by it and their number
    @property
    def steps(self) -> int: ...  # how often `noise` is called
    @property
    def noise_std(self) -> float: ...  # of what is drawn in a step
    @property
    def noise_growth(
        self,
    ) -> float: ...  # the noise on the sum of all steps, in `noise_std`: sqrt(steps) if independent


ShareMechanism = Mechanism[Quantised, Shared]  # each client adds its share: private is the sum of enough of them


class CohortMechanism(ABC):
    """A mechanism of one round at a trusted server: who is drawn, how each update is bounded, the noise on their sum.
    Assumes, of its caller: a secret cohort is told to nobody, in a public one nobody is in a sum out of turn and a round is
    released once; weights are at most 1, and what is divided by is public."""

    single_release: ClassVar[bool] = (
        False  # noise goes on from round to round: `round_of` says before which round it is
    )

    noise_multiplier: float
    clip: float  # the norm of a client's update: how far one client can move the sum
    cohorts: Any  # the sampler that draws a round, and prices it
    count_std: float | None = None  # of the noise on how many updates were within the clip, where that is released

    @abstractmethod
    def init(self) -> NoiseState: ...

    @abstractmethod
    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]: ...

    @abstractmethod
    def _noised(self, state: NoiseState, stream: Stream, total: torch.Tensor) -> tuple[NoiseState, Private]: ...

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Noises the sum of a round, once, in the precision that the sum has. Raises BadInput for a sum of another sensitivity."""
        if bounded.sensitivity != self.sensitivity:
            raise BadInput(
                f"This noise is made for sensitivity {self.sensitivity}, got a sum of {bounded.sensitivity}."
            )
        return self._noised(state, stream, bounded.vector)

    def event(self, index: int | None = None) -> DpEvent:
        """The price of a round to one client, or to whoever pays most for it."""
        if index is None:
            return self.cohorts.event(self.noise_multiplier)
        return self.cohorts.event_of(index, self.noise_multiplier)

    def at(self, clip: float) -> Self:
        """The same with another clip: noise and clip move together, so the price stays. Raises BadInput unless it is above 0."""
        return replace(self, clip=clip)  # type: ignore[type-var]

    def with_noise(self, multiplier: float) -> Self:
        """The same with another noise multiplier, and the price that goes with it. Raises BadInput unless it is above 0."""
        return replace(self, noise_multiplier=multiplier)  # type: ignore[type-var]

    @property
    def sensitivity(self) -> float:
        return self.clip

    def bound(self, update: torch.Tensor) -> Bounded:
        """One client's update, clipped; the very tensor where it was short enough. Raises BadInput for one that is not finite."""
        return bound(update, clip=self.clip)

    def bound_rows(self, updates: torch.Tensor) -> torch.Tensor:
        """What each of several updates is multiplied by (`row_scales`)."""
        return row_scales(updates, clip=self.clip)

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates within the clip, with its noise. Raises TypeError where the price holds no such count."""
        raise TypeError("this mechanism was not priced for a count")

    def round_of(self, state: NoiseState) -> int:
        """The round that the state is before, where noise goes on from round to round. Raises BadInput where it cannot."""
        raise TypeError("this noise begins anew in every round")


# Whole updates scaled to a norm of at most C, and added up exactly: for client-level DP, local or central.

HUGE = 1e30  # beyond this ratio C/norm nears float32's smallest numbers, where rounding could leave more than C
NORMAL = 1e-37  # a smaller factor loses digits in float32
FAST_FROM = 1 << 14  # coordinates from which the rows' way to the norm is faster
ROW = 512
ROUNDING = 2.0**-15  # twice the relative error of a row's norm: (512 / 2 + 1) units of 2^-24, doubled
MARGIN = 2.0**-14  # scaled a little shorter, so that a second look finds it within C
IN_DOUBLE = 2.0**-24  # twice the relative error of a norm of 2^29 coordinates in double precision
SHORTER = (
    2.0**-22
)  # scaled in double precision: more than IN_DOUBLE, a second look and rounding to float32 (2^-24) together
SMALLEST = 1e-12  # below, squares leave float32
STEP_BITS = 26  # of the largest coordinate, in steps
TOGETHER = 31  # of which so many fit 31 bits: they are added up as such before a double takes them, in half the time
MOST_SUMMED = 1 << (52 - STEP_BITS)  # a double holds 53 bits, so that twice as much is exact too


class ExactSum:
    """A sum of at most `most` vectors of norm at most `clip`, each weighed by at most 1, in whole steps of clip / 2^26.
    Guarantee: it is the same whatever the order and the parts, and a vector moves it by exactly its own steps, whose norm is
    not above the vector's: a weight below 1 and cutting towards zero only shorten. Doubles hold every such sum."""

    def __init__(self, like: torch.Tensor, *, clip: float, most: int):
        check.at_least(SMALLEST, clip=clip)
        if most > MOST_SUMMED:
            raise BadInput(f"Expected at most {MOST_SUMMED:,} clients in a sum, got {most:,}.")
        self.step = 2.0 ** (math.frexp(clip)[1] - STEP_BITS)  # a power of two, so that nothing is rounded by it
        self.steps = torch.zeros_like(like, dtype=torch.float64)
        self.newest, self.waiting = torch.zeros_like(like, dtype=torch.int32), 0

    def add(self, vector: torch.Tensor, *, weight: float) -> None:
        """Adds what has a norm of at most the clip."""
        self.newest.add_(vector.mul(weight / self.step).to(torch.int32))  # towards zero
        self.waiting += 1
        if self.waiting == TOGETHER:
            self._settle()

    def add_rows(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """The same for several (vector, coordinate) at once, without a look at the device; what is not finite counts as zero."""
        factors, kernel = weights / self.step, _kernel() if rows.is_cuda else None
        if kernel is not None and rows.stride(1) == 1:
            kernel(self.steps, rows, factors)
        else:
            self.steps.add_((rows * factors[:, None]).nan_to_num_(0.0, 0.0, 0.0).trunc_().sum(0, dtype=torch.float64))

    def value(self) -> torch.Tensor:
        """The sum as doubles."""
        self._settle()
        return self.steps * self.step

    def _settle(self) -> None:
        self.steps.add_(self.newest)
        self.newest.zero_()
        self.waiting = 0


@lru_cache(maxsize=1)
def _kernel() -> Any:
    try:
        from tacit.privacy.clip_triton import add_steps
    except ImportError:
        return None
    return add_steps


def bound(vector: torch.Tensor, *, clip: float) -> Bounded:
    """Scales a whole update to norm at most C; what is within C comes back as it is, the very tensor. Guarantee: the
    Euclidean norm of what is returned is at most C, as real numbers, and its `sensitivity` is C. Raises: BadInput for an
    update that is not finite.

    >>> bound(torch.tensor([3.0, 4.0]), clip=1.0).vector
    tensor([0.6000, 0.8000])
    """
    norm = norm_bound(vector)
    if norm <= clip:
        return Bounded(vector, clip)
    if vector.numel() >= FAST_FROM and norm < clip * HUGE:
        return Bounded(vector * (clip / norm * (1 - MARGIN)), clip)
    norm = in_double(vector)
    if not math.isfinite(norm):
        raise BadInput("the update is not finite")
    if norm <= clip:
        return Bounded(vector, clip)
    return Bounded((vector.double() * (clip / norm * (1 - SHORTER))).to(vector.dtype), clip)


def row_scales(rows: torch.Tensor, *, clip: float) -> torch.Tensor:
    """What each of several updates (client, parameter) is multiplied by to have norm at most C, without a look at the device.
    Guarantee: as `bound`, for every row alone. 0 stands for a row that is not finite, or too long to be scaled in float32."""
    norms = row_norm_bounds(rows)
    scales = torch.where(norms <= clip, 1.0, clip / norms * (1 - MARGIN))
    return torch.where(scales > NORMAL, scales, 0.0).nan_to_num(0.0).to(rows.dtype)


def row_norm_bounds(rows: torch.Tensor) -> torch.Tensor:
    """Of each of several vectors an upper bound on its norm, in double precision and where they lie: `norm_bound` without a
    look. What leaves float32 by its squares counts as infinite; what is so small that they vanish, as SMALLEST."""
    size = rows.shape[1] // ROW * ROW
    if rows.shape[1] < FAST_FROM or rows.dtype != torch.float32:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) * (1 + IN_DOUBLE)
    parts = torch.linalg.vector_norm(rows[:, :size].unflatten(1, (-1, ROW)), dim=2)
    both = torch.cat([parts, rows[:, size:]], dim=1)
    return torch.linalg.vector_norm(both, dim=1, dtype=torch.float64) * (1 + ROUNDING) + SMALLEST


def norm_bound(vector: torch.Tensor) -> float:
    """An upper bound on the Euclidean norm, at most 5e-5 of it too large; NaN or infinity for what is not finite. Squares are
    added in float32 in rows of 512, whose error is below 512 units of the last place, and the rows in float64."""
    in_rows = vector.numel() // ROW * ROW
    if vector.numel() >= FAST_FROM and vector.dtype == torch.float32:
        flat = vector.reshape(-1)
        rows = torch.linalg.vector_norm(flat[:in_rows].view(-1, ROW), dim=1)
        parts = [part.detach().cpu().numpy().astype(np.float64) for part in (rows, flat[in_rows:])]
        norm = math.sqrt(sum(float(part @ part) for part in parts)) * (1 + ROUNDING)
        if SMALLEST < norm < math.inf:
            return norm
    return in_double(vector)


def in_double(vector: torch.Tensor) -> float:
    """An upper bound on the norm by one copy in double precision; no number or infinity where the vector is not finite."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) * (1 + IN_DOUBLE)
