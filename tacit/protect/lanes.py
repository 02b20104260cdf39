"""Many small integers in one large one, so that adding the large ones adds them all.

A lane holds value + reach, which is never negative; it is wide enough for the sum of `reports` such numbers, so no sum can
carry into its neighbour. A sum out of its range (a client that did not keep to the grid) raises and is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit import check
from tacit.errors import BadInput, GridOverflow

WIDEST = 62  # bits of a lane: sums are int64


@dataclass(frozen=True)
class Lanes:
    """`count` integers of at most `reach` in size, in numbers below 2^plaintext_bits, of which up to `reports` are added.

    Guarantee: the sum of up to `reports` packed vectors unpacks to the sum of the vectors, exactly. An integer that is not in
    -reach ... reach cannot be packed; a sum that no packed vectors have, as a lane or what lies beyond the last one shows, is
    refused. A false sum within all ranges is not seen here.

    Raises: BadInput for a count, reach or number of reports below 1, and for lanes wider than 62 bits or than the plaintext.

    >>> lanes = Lanes(count=3, reach=100, reports=2, plaintext_bits=30)
    >>> total = [a + b for a, b in zip(lanes.pack([1, -2, 3]), lanes.pack([10, 20, -100]))]
    >>> lanes.width, len(total), lanes.unpack(total, reports=2).tolist()
    (9, 1, [11, 18, -97])
    """

    count: int
    reach: int
    reports: int
    plaintext_bits: int

    def __post_init__(self) -> None:
        check.at_least(1, count=self.count, reach=self.reach, reports=self.reports)
        if self.width > min(WIDEST, self.plaintext_bits):
            text = f"{self.reports} reports of {2 * self.reach} need lanes of {self.width} bits"
            raise BadInput(f"{text}, which do not fit: use fewer protect.bits or a larger protect.key_bits.")

    @property
    def width(self) -> int:
        """The bits of a lane: the largest sum, 2 reach reports, fits."""
        return (2 * self.reach * self.reports).bit_length()

    @property
    def per_number(self) -> int:
        """How many lanes one number has."""
        return self.plaintext_bits // self.width

    @property
    def numbers(self) -> int:
        """How many numbers, and so how many ciphertexts, a vector takes."""
        return -(-self.count // self.per_number)

    def pack(self, values: Sequence[int] | np.ndarray) -> list[int]:
        """The integers as numbers, the first in the lowest lane.

        Assumes: integers; an array of floats would be cut to whole numbers.

        Raises: BadInput for another number of them, GridOverflow for one beyond its lane's reach.
        """
        shifted = np.asarray(values, dtype=np.int64) + self.reach
        if shifted.shape != (self.count,):
            raise BadInput(f"Expected {self.count} integers, got shape {shifted.shape}.")
        if shifted.min() < 0 or shifted.max() > 2 * self.reach:
            raise GridOverflow(f"A value is beyond the {self.reach} that its lane was made for.")
        lanes = np.zeros(self.numbers * self.per_number, dtype="<u8")
        lanes[: self.count] = shifted
        bits = np.unpackbits(lanes.view(np.uint8).reshape(len(lanes), 8), axis=1, bitorder="little", count=self.width)
        rows = np.packbits(bits.reshape(self.numbers, -1), axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in rows]

    def unpack(self, numbers: Sequence[int], *, reports: int) -> np.ndarray:
        """The sums of the integers in a sum of `reports` packed vectors.

        Assumes: `reports` is the true number of vectors in the sum, since each has added `reach` to every lane.

        Raises: GridOverflow where a lane, or what lies beyond the last one, is out of range, and for more reports than there
        is room for; BadInput for another number of numbers.
        """
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


def pack_slowly(lanes: Lanes, values: Sequence[int]) -> list[int]:
    """The slow twin of `Lanes.pack`, by shifts. It checks nothing."""
    numbers = []
    for start in range(0, lanes.count, lanes.per_number):
        number = 0
        for i, value in enumerate(values[start : start + lanes.per_number]):
            number |= (int(value) + lanes.reach) << (i * lanes.width)
        numbers.append(number)
    return numbers
