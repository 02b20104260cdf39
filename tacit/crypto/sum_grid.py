"""Sums of clipped gradients as integers: what one record moves, after a rounding that is fair on average.

`Grid` (tacit/crypto/grid.py) bounds a whole client and draws a rounding again that came out too long. Here one record's part of a
sum is bounded instead, and no rounding depends on how long it came out: clamp each coordinate, then floor(x / step + u)
with fresh uniform u. docs/derivations.md has the bound."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tacit import check
from tacit.errors import BadInput
from tacit.random import Stream

LOG_BETA = 100 * math.log(2)  # either bound fails with probability at most 2^-100 a sum
FINENESS = 5.0  # sqrt(d) steps are a fifth of the clip: 2 % more noise at 8,000 coordinates, .6 % at a million
SPARE = 10.0  # standard deviations of a batch's size for which there is room in a coordinate


@dataclass(frozen=True)
class RoundedSum:
    """Integers of which one record moves a sum of squares of at most `l2_squared`, none beyond `largest`."""

    values: np.ndarray = field(repr=False)
    l2_squared: int
    largest: int


@dataclass(frozen=True)
class SumGrid:
    """The grid of one run: `size` coordinates of sums of gradients that are clipped to `clip`, of batches of about `batch` records.

    Everything here is public, and the same at every client.

    >>> grid = SumGrid(size=100, clip=1.0, batch=50.0)
    >>> math.sqrt(grid.l2_squared) * grid.step < 1.5 * grid.clip
    True
    """

    size: int
    clip: float
    batch: float
    factor: float = 1.0  # of what a sum stands for: the server's step along a gradient is -learning_rate times it

    def __post_init__(self) -> None:
        check.at_least(1, size=self.size)
        check.positive(clip=self.clip, batch=self.batch)

    @property
    def dimension(self) -> int:
        """The coordinates on the grid."""
        return self.size

    @property
    def step(self) -> float:
        """The distance between two integers in the gradients' units."""
        return self.clip / (FINENESS * math.sqrt(self.size))

    @property
    def largest(self) -> int:
        """The largest integer of a coordinate before noise: a batch of unlikely size whose gradients all lie along one axis."""
        room = self.batch + SPARE * math.sqrt(self.batch) + SPARE
        return math.ceil(room * self.clip / self.step)

    @cached_property
    def l2_squared(self) -> int:
        """What one record moves the integers by, squared, but for a probability of `failure`."""
        length, d = self.clip / self.step, self.size
        fair = length**2 + d / 4 + length * math.sqrt(2 * LOG_BETA) + math.sqrt(d * LOG_BETA / 2)
        return math.ceil(min(fair, (length + math.sqrt(d)) ** 2))

    @property
    def failure(self) -> float:
        """The probability that a rounding moves one record's part further: two inequalities of Hoeffding's."""
        return 2.0 * math.exp(-LOG_BETA)

    def quantise(self, total: np.ndarray, *, stream: Stream) -> RoundedSum:
        """The integers of a sum of clipped gradients. What is not finite counts as zero.

        Guarantee: for two sums whose difference has norm at most `clip`, rounded with the same stream, the integers differ by a
        sum of squares of at most `l2_squared`, but for probability `failure`. The stream is used alike whatever the sum.

        Raises: BadInput for a sum of another size.
        """
        x = np.asarray(total, dtype=np.float64)
        if x.shape != (self.size,):
            raise BadInput(f"Expected a sum of {self.size} numbers, got shape {x.shape}.")
        u = stream.uniform(self.size)
        reach = self.largest - 1.0  # the rounding may add one
        y = np.clip(np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0) / self.step, -reach, reach)
        return RoundedSum(np.floor(y + u).astype(np.int64), self.l2_squared, self.largest)

    def dequantise(self, values: np.ndarray, *, round: int = 0) -> np.ndarray:
        """What integers stand for: the sum, times `factor`."""
        return np.asarray(values, dtype=np.float64) * (self.step * self.factor)
