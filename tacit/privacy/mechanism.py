"""A mechanism: one object owns who is in a step, the noise on it, and the whole price, so that the three cannot differ.
state = mechanism.init() for every step: state, drawn = mechanism.sample(state, stream, size) state, noised =
mechanism.noise(state, stream, bounded) mechanism.event() # the price of all of it It is frozen and printable: its repr is
part of the key of its noise, so every number that the noise depends on is a field. What changes is the state: named
tensors, for a checkpoint. Independent noise has an empty one; correlated noise keeps there what it draws on again: as
secret as the data, and never sent."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

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
    for, are private at its price, whatever the bounded vectors are and even if each depends on what was released before.
    All randomness is the stream's: the same stream, state and vector give the same bits."""

    def init(self) -> NoiseState:
        """The state before the first step of what `event` pays for. It draws nothing."""
        ...

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The indices, among `size` units, of those that are in the next step; nothing but chance and the state decides.
        Raises: BadInput for another number of units than was priced, where the price depends on it."""
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
    def clip(self) -> float:
        """The norm C that a unit's vector is clipped to: the sensitivity of a step's sum."""
        ...

    @property
    def sampling_rate(self) -> float:
        """The expected share of the units in a step; the sum is divided by it times their number."""
        ...

    @property
    def steps(self) -> int:
        """How often `noise` is called."""
        ...

    @property
    def noise_std(self) -> float:
        """The standard deviation of what is drawn in a step."""
        ...

    @property
    def noise_growth(self) -> float:
        """The standard deviation of the noise on the sum of all steps, in units of `noise_std`: sqrt(steps) if independent."""
        ...


class CohortMechanism(Mechanism[Bounded, Private], Protocol):
    """A mechanism of one round at a trusted server: who is drawn, how each update is bounded, the noise on their sum.
    Assumes, of its caller: the cohort is told to nobody, weights are at most 1, and what is divided by is public."""

    @property
    def clip(self) -> float:
        """The norm that a client's update is clipped to."""
        ...

    @property
    def sensitivity(self) -> float:
        """How far one client can move the sum."""
        ...

    def at(self, clip: float) -> "CohortMechanism":
        """The same with another clip; the price stays."""
        ...

    def bound(self, update: torch.Tensor) -> Bounded:
        """One client's update, clipped; the very tensor where it was short enough."""
        ...

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates within the clip, with its noise. Raises TypeError where the price holds no such count."""
        ...


class TurnMechanism(CohortMechanism, Protocol):
    """A cohort's mechanism whose clients take turns in public, and whose noise goes on from round to round. Assumes, of its
    caller: nobody is in a sum out of turn, and a round is released once."""

    def round_of(self, state: NoiseState) -> int:
        """The round that the state is before. Raises BadInput for a state that this noise cannot go on from."""
        ...


class ShareMechanism(Mechanism[Quantised, Shared], Protocol):
    """A mechanism of which each client adds its share: private is the sum of enough of them. Assumes, of its caller: a sum of
    fewer than `fewest` reports is never opened, and of one round only one."""

    @property
    def fewest(self) -> int:
        """How few reports a sum may be opened of."""
        ...


class AdaptiveClip(Protocol):
    """How the clip of the next round follows from what the mechanism releases about this one."""

    def next(self, mechanism: CohortMechanism, within: Sequence[bool], stream: Stream) -> float:
        """The next clip; `within` says of every answer whether it was within this one."""
        ...


# Whole updates scaled to a norm of at most C, and added up exactly: what client-level DP, local or central, is made
# for.

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
LEAST_CLIP, MOST_CLIP = 1e-9, 1e9  # how far a clip adapts: beyond, the noise that goes with it leaves float32
STEP_BITS = 26  # of the largest coordinate, in steps
TOGETHER = 31  # of which so many fit 31 bits: they are added up as such before a double takes them, in half the time
MOST_SUMMED = 1 << (52 - STEP_BITS)  # a double holds 53 bits, so that twice as much is exact too


class ExactSum:
    """A sum of at most `most` vectors of norm at most `clip`, each weighed by at most 1, in whole steps of clip / 2^26.
    Guarantee: it is the same whatever the order and the parts, and a vector moves it by exactly its own steps, whose norm
    is not above the vector's: a weight below 1 and cutting towards zero only shorten. Doubles hold every such sum.

    >>> total = ExactSum(torch.zeros(2), clip=1.0, most=3)
    >>> for update in (torch.tensor([0.5, -0.25]), torch.tensor([1e-20, 0.0])):
    ...     total.add(update, weight=1.0)
    >>> total.value()
    tensor([ 0.5000, -0.2500], dtype=torch.float64)
    """

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
    """The fused kernel; None where Triton is not installed."""
    try:
        from tacit.privacy.clip_triton import add_steps
    except ImportError:
        return None
    return add_steps


def bound(vector: torch.Tensor, *, clip: float) -> Bounded:
    """Scales a whole update to norm at most C; what is within C comes back as it is, the very tensor. Guarantee: the
    Euclidean norm of what is returned is at most C, as real numbers, and its `sensitivity` is C. A vector scaled once is
    left alone the next time. Raises: BadInput for an update that is not finite: it has no norm.

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
    Guarantee: as `bound`, for every row alone. 0 stands for a row that is not finite, or too long to be scaled in float32.

    >>> row_scales(torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]]), clip=1.0).round(decimals=3)
    tensor([0.2000, 1.0000, 0.0000])
    """
    norms = row_norm_bounds(rows)
    scales = torch.where(norms <= clip, 1.0, clip / norms * (1 - MARGIN))
    return torch.where(scales > NORMAL, scales, 0.0).nan_to_num(0.0).to(rows.dtype)


def row_norm_bounds(rows: torch.Tensor) -> torch.Tensor:
    """Of each of several vectors an upper bound on its norm, in double precision and where they lie: `norm_bound` without a
    look. What leaves float32 by its squares counts as infinite; what is so small that they vanish, as SMALLEST.

    >>> row_norm_bounds(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).round(decimals=5)
    tensor([5., 1.], dtype=torch.float64)
    """
    size = rows.shape[1] // ROW * ROW
    if rows.shape[1] < FAST_FROM or rows.dtype != torch.float32:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) * (1 + IN_DOUBLE)
    parts = torch.linalg.vector_norm(rows[:, :size].unflatten(1, (-1, ROW)), dim=2)
    both = torch.cat([parts, rows[:, size:]], dim=1)
    return torch.linalg.vector_norm(both, dim=1, dtype=torch.float64) * (1 + ROUNDING) + SMALLEST


def norm_bound(vector: torch.Tensor) -> float:
    """An upper bound on the Euclidean norm, at most 5e-5 of it too large; NaN or infinity for what is not finite. Squares are
    added in float32 in rows of 512, whose error is below 512 units of the last place, and the rows in float64. Short
    vectors, and what leaves float32, are measured in double precision.

    >>> round(norm_bound(torch.tensor([3.0, 4.0])), 5)
    5.0
    """
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
