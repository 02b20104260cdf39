"""From a real vector to integers whose sum is private and exact, and back: stochastic and conditional rounding, and the
random rotation, of Kairouz, Liu, Steinke 2021 (arXiv:2102.06387), Algorithm 1 and Proposition 22. Guarantee: every vector
that `quantise` returns has a sum of squares of at most `l2_squared`, checked on the integers: a rounding that came out longer
is drawn again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from tacit import check
from tacit.errors import BadInput, GridOverflow
from tacit.random import Stream, seeded

LENGTH_MARGIN = 2.0  # sqrt(2 ln(1/beta)) for beta = e^-2: a rounding is drawn again with probability at most 0.14
MOST_TRIES = 100  # beta^100 = 2^-288
FLATNESS = 6.0  # a rotated coordinate exceeds 6 of its deviations with probability at most 2 e^-18; it is cut then
SHORTEN = 1 - 1e-12  # a clip a little tighter than asked, so that float64 rounding cannot make it looser
Rotation = Literal["none", "hadamard"]


@dataclass(frozen=True)
class Quantised:
    """Integers for noise, and the bounds that a mechanism compares with what it was priced for."""

    values: np.ndarray = field(repr=False)
    l2_squared: int
    largest: int


@dataclass(frozen=True)
class Grid:
    """The grid of one federation: `size` real coordinates, clipped to norm `clip`, as integers of `bits` bits. All is public."""

    size: int
    clip: float
    bits: int = 16
    rotation: Rotation = "none"

    def __post_init__(self) -> None:
        check.at_least(1, size=self.size)
        check.positive(clip=self.clip)
        check.one_of(("none", "hadamard"), rotation=self.rotation)
        if self.bits not in (8, 12, 16):
            raise BadInput(f"Expected privacy.bits to be 8, 12 or 16, got {self.bits!r}.")

    @property
    def dimension(self) -> int:
        """The coordinates on the grid: a rotation needs a power of two."""
        return self.size if self.rotation == "none" else 1 << (self.size - 1).bit_length()

    @property
    def largest(self) -> int:
        """The largest integer a coordinate takes before noise."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """The distance between two grid points in the vector's own units; what lies beyond a rotated grid is cut."""
        flat = 1.0 if self.rotation == "none" else min(1.0, FLATNESS / math.sqrt(self.dimension))
        return self.clip * flat / self.largest

    @cached_property
    def l2_squared(self) -> int:
        """The greatest sum of squares of a quantised vector: the squared sensitivity, when a client comes or goes."""
        length, d = self.clip / self.step, self.dimension
        usual = length**2 + d / 4 + LENGTH_MARGIN * (length + math.sqrt(d) / 2)  # Proposition 22
        return math.ceil(min(usual, (length + math.sqrt(d)) ** 2))

    @property
    def sensitivity(self) -> float:
        """In the vector's own units: the clip with its allowance for rounding."""
        return math.sqrt(self.l2_squared) * self.step

    def quantise(self, vector: np.ndarray, *, stream: Stream, round: int = 0, weight: float = 1.0) -> Quantised:
        """Clips to norm C, weighs, rotates by public signs of the round, and rounds each coordinate up or down at random.
        Guarantee: whatever the vector, the integers' sum of squares is at most `l2_squared` and none is beyond `largest`.
        Raises: BadInput for a vector that is not finite or has another size, and a weight outside (0, 1]."""
        check.rate(weight=weight)
        x = np.asarray(vector, dtype=np.float64)
        if x.shape != (self.size,):
            raise BadInput(f"Expected a vector of {self.size} numbers, got shape {x.shape}.")
        if not np.isfinite(x).all():
            raise BadInput("Expected an update of finite numbers: it holds NaN or infinity.")
        norm = math.sqrt(float(x @ x)) if np.abs(x).max() < 1e150 else math.inf
        if norm == math.inf:  # squares overflow: the direction is all that is left after clipping
            x = x / np.abs(x).max()
            norm = max(math.sqrt(float(x @ x)), self.clip)
        x = x * (SHORTEN * weight * min(1.0, self.clip / norm) / self.step) if norm else x
        if self.rotation != "none":
            x = _hadamard(np.pad(x, (0, self.dimension - self.size)) * self._signs(round))
        return Quantised(self._round(np.clip(x, -self.largest, self.largest), stream), self.l2_squared, self.largest)

    def dequantise(self, values: np.ndarray, *, round: int = 0) -> np.ndarray:
        """The real vector that integers, or a sum of them, stand for. Assumes: the `round` of `quantise`."""
        x = np.asarray(values, dtype=np.float64) * self.step
        if self.rotation == "none":
            return x
        return (_hadamard(x) * self._signs(round))[: self.size]

    def _round(self, y: np.ndarray, stream: Stream) -> np.ndarray:
        low = np.floor(y)
        part, low = y - low, low.astype(np.int64)
        for _ in range(MOST_TRIES):
            values = low + (stream.uniform(len(y)) < part)
            if int(values @ values) <= self.l2_squared:
                return values
        raise BadInput("An update could not be rounded within its length: it was not clipped.")

    def _signs(self, round: int) -> np.ndarray:
        words = seeded(round)("rotation").words(-(-self.dimension // 32))  # public: it only spreads a vector evenly
        bits = np.unpackbits(words.view(np.uint8))[: self.dimension]
        return 1.0 - 2.0 * bits


def _hadamard(x: np.ndarray) -> np.ndarray:
    y, n, half = x.copy(), len(x), 1
    while half < n:
        pairs = y.reshape(-1, 2, half)
        y = np.concatenate([pairs[:, :1] + pairs[:, 1:], pairs[:, :1] - pairs[:, 1:]], axis=1).ravel()
        half *= 2
    return y / math.sqrt(n)


# Sums of clipped gradients as integers. `Grid` bounds a whole client and draws a rounding again that came out too long. Here one
# record's part of a sum is bounded instead, and no rounding depends on how long it came out: clamp each coordinate, then
# floor(x / step + u) with fresh uniform u. docs/derivations.md has the bound.

LOG_BETA = 100 * math.log(2)  # either bound fails with probability at most 2^-100 a sum
FINENESS = 5.0  # sqrt(d) steps are a fifth of the clip: 2 % more noise at 8,000 coordinates, .6 % at a million
SPARE = 10.0  # standard deviations of a batch's size for which there is room in a coordinate


class RoundedSum(Quantised):
    """Integers of which one record moves a sum of squares of at most `l2_squared`, none beyond `largest`."""


@dataclass(frozen=True)
class SumGrid:
    """The grid of one run: `size` coordinates of sums of about `batch` gradients that are clipped to `clip`. All is public."""

    size: int
    clip: float
    batch: float
    factor: float = 1.0  # of what a sum stands for: the server's step along a gradient is -learning_rate times it
    rotation: ClassVar[Rotation] = "none"

    def __post_init__(self) -> None:
        check.at_least(1, size=self.size)
        check.positive(clip=self.clip, batch=self.batch)

    @property
    def dimension(self) -> int:
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
        """The integers of a sum of clipped gradients; what is not finite counts as zero. Guarantee: two sums whose difference
        has norm at most `clip`, rounded with the same stream, differ by a sum of squares of at most `l2_squared`, but for
        probability `failure`; the stream is used alike whatever the sum. Raises: BadInput for a sum of another size."""
        x = np.asarray(total, dtype=np.float64)
        if x.shape != (self.size,):
            raise BadInput(f"Expected a sum of {self.size} numbers, got shape {x.shape}.")
        u = stream.uniform(self.size)
        reach = self.largest - 1.0  # the rounding may add one
        y = np.clip(np.where(np.isfinite(x), x, 0.0) / self.step, -reach, reach)
        return RoundedSum(np.floor(y + u).astype(np.int64), self.l2_squared, self.largest)

    def dequantise(self, values: np.ndarray, *, round: int = 0) -> np.ndarray:
        return np.asarray(values, dtype=np.float64) * (self.step * self.factor)


# Many small integers in one large one, so that adding the large ones adds them all.

WIDEST = 62  # bits of a lane: sums are int64


@dataclass(frozen=True)
class Lanes:
    """`count` integers of at most `reach` in size, in numbers below 2^plaintext_bits, of which up to `reports` are added.
    Guarantee: such a sum of packed vectors unpacks to the sum of the vectors, exactly. A sum that no packed vectors have is
    refused; a false sum within all ranges is not seen here."""

    count: int
    reach: int
    reports: int
    plaintext_bits: int

    def __post_init__(self) -> None:
        check.at_least(1, count=self.count, reach=self.reach, reports=self.reports)
        if self.width > min(WIDEST, self.plaintext_bits):
            text = f"{self.reports} reports of {2 * self.reach} need lanes of {self.width} bits"
            raise BadInput(
                f"{text}, which do not fit: use less noise, fewer clients or privacy.bits, or a larger protect.key.bits."
            )

    @property
    def width(self) -> int:
        return (2 * self.reach * self.reports).bit_length()

    @property
    def per_number(self) -> int:
        return self.plaintext_bits // self.width

    @property
    def numbers(self) -> int:
        return -(-self.count // self.per_number)

    def refuse_beyond(self, values: np.ndarray, *, reports: int = 1) -> None:
        """Refuses integers that no sum of so many honest reports has. Raises: GridOverflow."""
        most = self.reach * reports  # both ends: the least int64 has no absolute value
        if values.max(initial=0) > most or values.min(initial=0) < -most:
            raise GridOverflow(f"A value is beyond the grid, which ends at {most}.")

    def pack(self, values: Sequence[int] | np.ndarray) -> list[int]:
        """The integers as numbers, the first in the lowest lane. Raises: BadInput for another number of them, GridOverflow."""
        integers = np.asarray(values, dtype=np.int64)
        if integers.shape != (self.count,):
            raise BadInput(f"Expected {self.count} integers, got shape {integers.shape}.")
        self.refuse_beyond(integers)
        lanes = np.zeros(self.numbers * self.per_number, dtype="<u8")
        lanes[: self.count] = integers + self.reach
        bits = np.unpackbits(lanes.view(np.uint8).reshape(len(lanes), 8), axis=1, bitorder="little", count=self.width)
        rows = np.packbits(bits.reshape(self.numbers, -1), axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in rows]

    def unpack(self, numbers: Sequence[int], *, reports: int) -> np.ndarray:
        """The integers in a sum of `reports` packed vectors, which must be true. Raises: GridOverflow for a sum out of range;
        BadInput."""
        if not 1 <= reports <= self.reports:
            raise GridOverflow(f"A sum of {reports} reports does not fit lanes made for at most {self.reports}.")
        if len(numbers) != self.numbers:
            raise BadInput(f"Expected {self.numbers} numbers, got {len(numbers)}.")
        used = self.width * self.per_number
        if any(not 0 <= number < (1 << used) for number in numbers):
            raise GridOverflow("An opened sum is larger than its lanes: a report did not keep to the grid.")
        size = -(-used // 8)
        raw = b"".join(int(number).to_bytes(size, "little") for number in numbers)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(self.numbers, size)
        bits = np.unpackbits(rows, axis=1, bitorder="little", count=used).reshape(-1, self.width)
        parts = np.packbits(bits, axis=1, bitorder="little")
        lanes = np.zeros((len(parts), 8), dtype=np.uint8)
        lanes[:, : parts.shape[1]] = parts
        sums = lanes.view("<u8").ravel().astype(np.int64)
        if sums[: self.count].max() > 2 * self.reach * reports or sums[self.count :].any():
            raise GridOverflow("A lane of the opened sum is out of its range: a report did not keep to the grid.")
        return sums[: self.count] - self.reach * reports
