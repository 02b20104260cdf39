"""Randomisers: n-th residues modulo n^2, prepared ahead because they do not depend on the message, each used once.

rho = h_s^r with r of `exponent_bits` random bits (Damgård, Jurik and Nielsen 2010; Ma, Han and Lei 2021),
by a table of the powers of h_s: `bits / window` multiplications instead of a whole exponentiation (Brickell, Gordon,
McCurley and Wilson 1992). A key without h_s gets the textbook's r^n.

Two ciphertexts with one randomiser give away the difference of their messages. So a randomiser leaves the stock before
it is handed out, a stock cannot be copied or pickled, and a forked process finds an empty one. With it goes the number it was
made from, which its owner needs once, to prove that it knows what it sealed (`proofs`)."""

import os
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from math import ceil

import gmpy2
from gmpy2 import mpz

from tacit import check, store
from tacit.crypto import powers
from tacit.crypto.paillier import PublicKey
from tacit.crypto.secret_key import SecretKey
from tacit.errors import KeyRefused

TABLE_BYTES = (
    128 << 20
)  # the most a table may take: 121 MB for an ordinary key of 3072 bits, 40 for a short-exponent one
MOST_WINDOW = 16


class FixedBase:
    """Powers of one base by table: base^(d 2^(wi)) for every digit d of w = `window` bits and every position i of a digit.

    The table has ceil(bits / w) 2^w numbers; a power is at most ceil(bits / w) multiplications and no squaring.
    """

    def __init__(self, base: mpz, modulus: mpz, *, bits: int, window: int):
        self.modulus, self.window = modulus, window
        self.table: list[list[mpz]] = []
        for _ in range(ceil(bits / window)):
            row = [mpz(1)]
            for _ in range((1 << window) - 1):
                row.append(row[-1] * base % modulus)
            self.table.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int | mpz) -> mpz:
        """base^exponent for an exponent of at most `bits` bits. Raises: ValueError for one that is negative or longer."""
        mask, window, modulus, product = (1 << self.window) - 1, self.window, self.modulus, mpz(1)
        for row in self.table:
            digit = exponent & mask
            if digit:
                product = product * row[digit] % modulus
            exponent >>= window
        if exponent:
            raise ValueError("an exponent is longer than its table")
        return product


class SplitBase:
    """Powers modulo n^2 for who has its factors: modulo p^2 and q^2, joined by the Chinese remainder theorem.

    The numbers are those of `FixedBase` modulo n^2: nobody can tell from a randomiser how it was made.
    """

    def __init__(self, base: mpz, secret: SecretKey, *, bits: int, window: int):
        p_squared, q_squared = secret.p**2, secret.q**2
        self.halves = [FixedBase(base % m, m, bits=bits, window=window) for m in (p_squared, q_squared)]
        self.inverse = gmpy2.invert(p_squared, q_squared)

    def power(self, exponent: int | mpz) -> mpz:
        a, b = (half.power(exponent) for half in self.halves)
        p_squared, q_squared = (half.modulus for half in self.halves)
        return a + p_squared * ((b - a) * self.inverse % q_squared)


def best_window(bits: int, *, count: int, element_bytes: int) -> int:
    """The window with the fewest multiplications for a table and `count` powers, within TABLE_BYTES.

    >>> best_window(1536, count=10_000, element_bytes=768), best_window(1536, count=100, element_bytes=768)
    (10, 5)
    """
    allowed = [w for w in range(1, MOST_WINDOW) if ceil(bits / w) * element_bytes << w <= TABLE_BYTES] or [1]
    return min(allowed, key=lambda w: ceil(bits / w) * ((1 << w) + count))


class Randomisers:
    """A stock of randomisers for one public key. `expected` says how many it will make in all: it sizes the table.

    Who has the `secret` key may give it: the same randomisers then take about three quarters of the time.
    Guarantee: no randomiser is handed out twice by one stock or its forks; two stocks agree in one only if the operating
    system draws the same exponent twice. What is handed out, value and exponent, is gone. Threads may share a stock.
    Raises: BadInput for `expected` below 1, KeyRefused for another key's secret, TypeError when it is copied or pickled.
    """

    def __init__(
        self, public: PublicKey, *, secret: SecretKey | None = None, expected: int = 10_000, workers: int | None = None
    ):
        check.at_least(1, expected=expected)
        if secret is not None and secret.public != public:
            raise KeyRefused("The secret key does not belong to the public key: take both from the same folder.")
        self.public, self.workers, self._secret = public, workers or store.cores(), secret
        self._expected = expected
        self._table: FixedBase | SplitBase | None = None
        self._empty()

    def warm(self) -> None:
        """Makes the table now, for instance before a fork, so that all processes share it."""
        if self._table is None and self.public.h_s is not None:
            bits, width = self.public.exponent_bits, self.public.ciphertext_bytes
            window = best_window(bits, count=self._expected, element_bytes=width)
            if self._secret:
                self._table = SplitBase(self.public.h_s, self._secret, bits=bits, window=window)
            else:
                self._table = FixedBase(self.public.h_s, self.public.n_squared, bits=bits, window=window)

    def prepare(self, count: int) -> None:
        """Starts making `count` randomisers in the background; without `fork` they are made when taken. Raises: BadInput."""
        check.at_least(0, count=count)
        self._own()
        self.warm()
        if count:
            exponents, width = self._draw(count), self.public.ciphertext_bytes
            batch = powers.Batch(self._make(exponents), count, width=width, workers=min(self.workers, count))
            with self._lock:
                self._batches.append((batch, exponents))

    def take(self, count: int) -> list[mpz]:
        """`count` randomisers that nobody has had before, waiting for those in the making; what is missing then is made now."""
        return [value for value, _ in self.take_known(count)]

    def take_known(self, count: int) -> list[tuple[mpz, mpz]]:
        """The same, each with the exponent (or root) it was made from, which is kept nowhere once it is handed out.

        Assumes: the caller forgets that number when the proof is made. Who has it reads the message.
        """
        self._own()
        self.warm()
        with self._lock:
            while len(self._stock) < count and self._batches:
                batch, exponents = self._batches.popleft()
                self._stock.extend(zip(batch.result(), exponents, strict=True))
            missing = count - len(self._stock)
            if missing > 0:
                exponents, width = self._draw(missing), self.public.ciphertext_bytes
                values = powers.compute(self._make(exponents), missing, width=width, workers=self.workers)
                self._stock.extend(zip(values, exponents, strict=True))
            return [self._stock.popleft() for _ in range(count)]

    def close(self) -> None:
        """Ends background work and forgets the stock; what a fork inherited stays its parent's to end."""
        self._own()
        for batch, _ in self._batches:
            batch.close()
        self._empty()

    def __reduce__(self):
        raise TypeError("a stock of randomisers is never copied: make a new one from the public key")

    def _draw(self, count: int) -> list[mpz]:
        if self.public.h_s is not None:
            return [mpz(secrets.randbits(self.public.exponent_bits)) for _ in range(count)]
        return [mpz(secrets.randbelow(int(self.public.n) - 1) + 1) for _ in range(count)]

    def _make(self, exponents: Sequence[mpz]) -> powers.Compute:
        table, n, n_squared = self._table, self.public.n, self.public.n_squared
        power = table.power if table else lambda r: gmpy2.powmod(r, n, n_squared)
        return lambda start, stop: (power(r) for r in exponents[start:stop])

    def _own(self) -> None:
        if os.getpid() != self._owner:  # a fork: what is in stock belongs to the parent
            self._empty()

    def _empty(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._stock: deque[tuple[mpz, mpz]] = deque()
        self._batches: deque[tuple[powers.Batch, list[mpz]]] = deque()
