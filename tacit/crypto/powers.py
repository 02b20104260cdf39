"""Powers of big integers: the product of many, many of one base, and both on all cores.

Many bases share Pippenger's buckets (SIAM J. Comput. 9(2), 1980), few of them Straus's squarings (Amer. Math. Monthly 71, 1964)
with sliding windows. One base for many exponents has a comb (Lim and Lee, CRYPTO 1994)."""

import contextlib
import hashlib
import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from gmpy2 import mpz, powmod

from tacit import store

WIDEST_DIGIT = 12
FEW_DIGIT = 4  # bits of a digit where every base has a table of its own, of its odd powers


def to_octets(numbers: Iterable[int], *, width: int) -> bytes:
    """The integers one after another, `width` bytes each, big-endian (I2OSP, RFC 8017). Raises: OverflowError.

    >>> to_octets([1, 258], width=2).hex()
    '00010102'
    """
    return b"".join(int(number).to_bytes(width, "big") for number in numbers)


def from_octets(raw: bytes, *, width: int) -> list[mpz]:
    """What `to_octets` wrote. Assumes: a length that is a multiple of `width`; a rest would be read as one more integer."""
    return [mpz(int.from_bytes(raw[at : at + width], "big")) for at in range(0, len(raw), width)]


def product_of_powers(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """prod_i bases[i]^exponents[i] modulo `modulus`, by whichever of two ways needs fewer multiplications.

    Assumes: 0 <= exponent < 2^bits, and exponents that are public (challenges, weights): the time depends on them.

    >>> product_of_powers([mpz(2), mpz(3)], [5, 2], mpz(1000), bits=3)
    mpz(288)
    """
    few = bits + len(bases) * ((1 << FEW_DIGIT - 1) + bits // (FEW_DIGIT + 1))  # multiplications, about
    costs = {w: -(-bits // w) * (len(bases) + 2 ** (w + 1)) for w in range(1, WIDEST_DIGIT)}
    width = min(costs, key=lambda w: costs[w])
    if few < costs[width]:
        return by_squarings(bases, exponents, modulus, bits=bits)
    return by_buckets(bases, exponents, modulus, bits=bits, width=width)


def by_buckets(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int, width: int) -> mpz:
    """Pippenger's way, for many bases: digit by digit of `width` bits, from the top; bases with the same digit share a bucket."""
    total, mask = mpz(1), (1 << width) - 1
    for shift in range((bits - 1) // width * width, -1, -width):
        buckets: dict[int, mpz] = {}
        for base, exponent in zip(bases, exponents, strict=True):
            digit = exponent >> shift & mask
            if digit:
                buckets[digit] = buckets[digit] * base % modulus if digit in buckets else base
        running = weighed = mpz(1)
        for digit in range(max(buckets, default=0), 0, -1):
            running = running * buckets.get(digit, 1) % modulus
            weighed = weighed * running % modulus
        for _ in range(width):
            total = total * total % modulus
        total = total * weighed % modulus
    return total


def by_squarings(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """Straus's way, for few bases: bit by bit from the top, all sharing the squarings; each has a table of its odd powers."""
    due: list[list[mpz]] = [[] for _ in range(bits)]  # by position: what is multiplied in there
    for base, exponent in zip(bases, exponents, strict=True):
        digits = list(_odd_digits(exponent))
        square, odd = base * base % modulus, [base % modulus]
        for _ in range(max((digit for _, digit in digits), default=0) >> 1):
            odd.append(odd[-1] * square % modulus)
        for position, digit in digits:
            due[position].append(odd[digit >> 1])
    total = mpz(1)
    for factors in reversed(due):
        total = total * total % modulus
        for factor in factors:
            total = total * factor % modulus
    return total


def _odd_digits(exponent: int) -> Iterator[tuple[int, int]]:
    position, mask = 0, (1 << FEW_DIGIT) - 1
    while exponent:
        zeros = (exponent & -exponent).bit_length() - 1
        exponent >>= zeros
        yield position + zeros, exponent & mask
        exponent >>= FEW_DIGIT
        position += zeros + FEW_DIGIT


def small_exponents(seed: bytes, count: int, *, bits: int) -> list[int]:
    """The challenge of a batch: `count` numbers of `bits` bits, uniform and independent as a random oracle's, zero included.

    With them a batch stands for its members (the small exponents test of Bellare, Garay and Rabin, EUROCRYPT 1998).
    Assumes: the seed is a hash of all that is batched. Whoever could choose a part of it afterwards could make errors cancel.
    """
    width = bits // 8
    return [int(e) for e in from_octets(hashlib.shake_256(b"batch" + seed).digest(width * count), width=width)]


class Comb:
    """Powers of one base by tables: Lim and Lee's comb.

    The exponent's bits stand in `teeth` rows, which are read column by column, the columns in `blocks` with a table each. A
    power takes bits / teeth multiplications and bits / (teeth blocks) squarings; every table has 2^teeth numbers.

    >>> Comb(mpz(3), mpz(1000), bits=20, teeth=3, blocks=2).power(12345) == powmod(3, 12345, 1000)
    True
    """

    def __init__(self, base: mpz, modulus: mpz, *, bits: int, teeth: int, blocks: int):
        self.modulus, self.squarings = modulus, -(-bits // (teeth * blocks))
        self.columns = self.squarings * blocks
        self.bits = self.columns * teeth
        powers = [base]  # base^(2^(k squarings))
        for _ in range(teeth * blocks - 1):
            powers.append(powmod(powers[-1], 1 << self.squarings, modulus))
        self.tables: list[list[mpz]] = []
        for block in range(blocks):
            table = [mpz(1)]
            for tooth in range(teeth):
                table += [entry * powers[tooth * blocks + block] % modulus for entry in table]
            self.tables.append(table)

    def power(self, exponent: int | mpz) -> mpz:
        """base^exponent. Raises: ValueError for an exponent that is negative or longer than `bits`: never a wrong power."""
        if exponent < 0 or exponent.bit_length() > self.bits:
            raise ValueError("an exponent is longer than its comb")
        digits, total = format(int(exponent), f"0{self.bits}b"), mpz(1)
        for row in range(self.squarings):  # from the top
            total = total * total % self.modulus
            for block, table in enumerate(reversed(self.tables)):
                total = total * table[int(digits[block * self.squarings + row :: self.columns], 2)] % self.modulus
        return total


# Big integers computed on all cores, now or in the background.

Compute = Callable[[int, int], Iterable[mpz]]  # the integers number start to stop - 1
NO_PROCESS = -1
WORTH_A_FORK = 8  # fewer integers than this are computed in place: a fork costs about as much


class Batch:
    """`count` integers below 256^width that forked processes compute while the caller goes on.

    Guarantee: `result` gives what `compute(0, count)` would, in order. A process that failed, was killed or could not be
    started is no loss: its part is computed again in the caller, where an error can be seen. No process outlives the batch.
    Assumes: `compute(start, stop)` yields stop - start integers, none negative and none of more than `width` bytes; what it draws,
    it draws from the operating system, because a generator's state would be copied by the fork.
    """

    def __init__(self, compute: Compute, count: int, *, width: int, workers: int):
        self._compute, self._width, self._owner = compute, width, os.getpid()
        self._parts: list[tuple[int, int, int]] = []  # process, start, stop
        self._memory = mmap.mmap(-1, max(1, count * width))
        for start, stop in pairwise(count * k // workers for k in range(workers + 1)):
            if stop > start:
                self._parts.append((self._fork(start, stop), start, stop))

    def result(self) -> list[mpz]:
        """The integers, in order, once every process has ended; handed over once. Raises: what `compute` raises here."""
        values: list[mpz] = []
        while self._parts:
            pid, start, stop = self._parts[0]
            done = _succeeded(pid)
            del self._parts[0]
            raw = self._memory[start * self._width : stop * self._width]
            values += from_octets(raw, width=self._width) if done else list(self._compute(start, stop))
        return values

    def close(self) -> None:
        """Ends what still runs. Does nothing in a process that inherited the batch by a fork."""
        if os.getpid() != self._owner:
            return
        while self._parts:
            pid, _, _ = self._parts.pop()
            if pid != NO_PROCESS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _succeeded(pid)

    __del__ = close

    def _fork(self, start: int, stop: int) -> int:
        try:
            pid = os.fork()
        except OSError:  # no process or memory to be had: the caller computes this part itself
            return NO_PROCESS
        if pid:
            return pid
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            width = self._width
            for position, value in zip(range(start, stop), self._compute(start, stop), strict=True):
                self._memory[position * width : (position + 1) * width] = int(value).to_bytes(width, "big")
            os._exit(0)
        finally:
            os._exit(1)  # whatever happened: nothing of the parent's may run here


def _succeeded(pid: int) -> bool:
    try:
        return pid != NO_PROCESS and os.waitpid(pid, 0)[1] == 0
    except ChildProcessError:  # a program that ignores SIGCHLD never hears how its processes ended
        return False


def compute(work: Compute, count: int, *, width: int, workers: int | None = None) -> list[mpz]:
    """The integers of `work(0, count)` in order, on `workers` cores (all if None). Assumes: as `Batch`. Raises: what `work` raises.

    >>> compute(lambda start, stop: (mpz(i * i) for i in range(start, stop)), 4, width=1)
    [mpz(0), mpz(1), mpz(4), mpz(9)]
    """
    workers = min(workers or store.cores(), count)
    if workers < 2 or count < WORTH_A_FORK:
        return list(work(0, count))
    return Batch(work, count, width=width, workers=workers).result()
