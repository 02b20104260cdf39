"""Paillier's additive encryption (EUROCRYPT 1999) with g = n + 1: whoever has the public key seals and adds, whoever has the
secret key (`secret_key`) opens.

    seal   c = (1 + mn) rho mod n^2        rho is an n-th residue that is used once
    add    c = c_1 c_2 mod n^2             opens to m_1 + m_2
    open   modulo p^2 and q^2 apart, then joined by the Chinese remainder theorem (Paillier 1999, section 7)

Guarantee: without the secret key a ciphertext says nothing about its message (IND-CPA), under

- `ordinary`, `safe-prime`: decisional composite residuosity, and that rho = h_s^r with |n|/2-bit r looks like a random
  n-th residue (Damgård, Jurik and Nielsen 2010: h = -x^2, p = q = 3 mod 4, gcd(p - 1, q - 1) = 2);
- `short-exponent`: the stronger assumption of Ma, Han and Lei (ACSAC 2021): the same although h lies in a secret
  subgroup of only `short_bits` bits. Such a key opens only what was sealed with its own h_s.

Ciphertexts are malleable on purpose and whoever opens is an oracle: nothing here authenticates. Who sent what, and what may be
opened, is settled by `reports`; that its sender knows it by `proofs`. Nothing here takes constant time."""

import hashlib
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from itertools import product
from math import ceil, gcd
from operator import index
from typing import TYPE_CHECKING, Literal, Protocol

import gmpy2
from gmpy2 import mpz

from tacit import check, store
from tacit.crypto import powers
from tacit.crypto.powers import Comb, from_octets, to_octets
from tacit.errors import BadCiphertext, BadInput, KeyRefused

if TYPE_CHECKING:
    from tacit.crypto.secret_key import SecretKey

Shape = Literal["ordinary", "short-exponent", "safe-prime"]
SHAPES: tuple[Shape, ...] = ("ordinary", "short-exponent", "safe-prime")
SIZES = (2048, 3072, 4096)  # 112, 128 and about 150 bits of security (NIST SP 800-57 part 1, table 2)
LEAST_BITS = SIZES[0]
SPARE_BITS = 2  # a plaintext is below n / 2, so a sum that has run over by less than its double is seen

SMALL = 1 << 20  # n has no prime factor below
MOST_BITS = 16_384  # a larger n takes hours to try, and is nothing that Tacit makes
RATIOS = tuple((a, b) for a, b in product(range(1, 9), repeat=2) if gcd(a, b) == 1)
STEPS = 16  # of Fermat's method, for each ratio
AGAIN = "make a new key"


def short_bits(bits: int) -> int:
    """The bits of r under a `short-exponent` key of `bits` bits, which are those of the order of its secret subgroup.

    At least four times the security of n: finding one of the two short primes takes the square root of its size. Ma, Han and Lei
    (ACSAC 2021) have 448 for 2048, 512 for 3072, 768 for 7680. Other sizes, which only tests have, get a quarter.
    """
    return {2048: 448, 3072: 512, 4096: 640}.get(bits, bits // 4)


class Source(Protocol):
    """Where randomisers come from.

    Guarantee: none is handed out twice, by either method. Two ciphertexts with one give away the difference of their messages.
    """

    def take(self, count: int) -> list[mpz]:
        """`count` randomisers that nobody has had before."""
        ...

    def take_known(self, count: int) -> list[tuple[mpz, mpz]]:
        """The same, each with the secret number it was made from: r with rho = h_s^r, or rho = r^n under a key without h_s.

        That number opens whatever the randomiser seals, and is what a sender needs to prove that it knows what it sealed.
        """
        ...


@dataclass(frozen=True)
class PublicKey:
    """n, and h_s for fast randomisers: all that is needed to seal and to add. Raises: KeyRefused for a short or weak key; BadInput.

    Guarantee: n has at least `least_bits` bits, and a look at it has found neither a factor nor an h_s that hides nothing
    (`_refuse_weak`). That n is a product of two primes drawn at random, and that nobody kept them, is the maker's word.
    A key without `h_s` (one made elsewhere) still works, with randomisers r^n. `least_bits` is for tests alone.
    """

    n: mpz = field(repr=False)
    shape: Shape = "ordinary"
    h_s: mpz | None = field(default=None, repr=False)
    least_bits: int = field(default=LEAST_BITS, repr=False, compare=False)

    def __post_init__(self) -> None:
        check.one_of(SHAPES, shape=self.shape)
        if self.bits < self.least_bits:
            raise KeyRefused(f"A key of {self.bits} bits can be broken: make one of at least {self.least_bits} bits.")
        self._refuse_weak()

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    @property
    def plaintext_bits(self) -> int:
        """A message, and every sum of messages that is opened, is below 2 to this power."""
        return self.bits - SPARE_BITS

    @property
    def exponent_bits(self) -> int:
        """The bits of r in rho = h_s^r: half of n's, or `short_bits` under a short-exponent key."""
        return short_bits(self.bits) if self.shape == "short-exponent" else (self.bits + 1) // 2

    @property
    def ciphertext_bytes(self) -> int:
        """Every ciphertext has this length, whatever its message."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def n_squared(self) -> mpz:
        return self.n * self.n

    @cached_property
    def id(self) -> str:
        """A fingerprint of shape, n and h_s: 128 bits of SHA-256, in hexadecimal. Every report's signature covers it."""
        text = f"tacit paillier {self.shape} {self.n:x} {self.h_s or 0:x}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def seal(self, messages: Sequence[int], randomisers: Source) -> list[mpz]:
        """A ciphertext per message, each under a randomiser of its own. Raises: BadInput, and the randomisers are gone.

        Guarantee: IND-CPA, under the assumptions of the module, as long as the source hands out no randomiser twice.
        """
        return self.seal_with(messages, randomisers.take(len(messages)))

    def seal_with(self, messages: Sequence[int], values: Sequence[mpz]) -> list[mpz]:
        """The same, with values that came from a `Source` for this key and are used nowhere else.

        Raises: BadInput for a message that is no integer in 0 ... 2^plaintext_bits - 1, ValueError for another number of values.
        """
        n, n_squared, limit = self.n, self.n_squared, 1 << self.plaintext_bits
        try:
            numbers = [mpz(index(m)) for m in messages]  # a float, even a whole one, is not a message
        except TypeError as error:
            raise BadInput(f"Expected whole numbers to seal ({error}).") from error
        if any(not 0 <= m < limit for m in numbers):
            raise BadInput(f"A message is outside 0 to 2^{self.plaintext_bits} - 1: pack it for this key.")
        return [(1 + m * n) * rho % n_squared for m, rho in zip(numbers, values, strict=True)]

    def add(self, rows: Iterable[Sequence[mpz]]) -> list[mpz]:
        """Ciphertexts of the sums of equally long rows, position by position. Raises: BadInput for no rows, or different lengths.

        Guarantee: opens to the sums modulo n. Nothing random is added: whoever knows the rows can tell that this is their sum.
        Assumes: ciphertexts that `validate` has let pass, and messages whose sum is below 2^plaintext_bits (`Lanes`).
        """
        rows = list(rows)
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise BadInput(f"Expected rows of one length to add, got lengths {sorted({len(row) for row in rows})}.")
        return [reduce(lambda a, b: a * b % self.n_squared, column) for column in zip(*rows, strict=True)]

    def to_bytes(self, ciphertexts: Iterable[mpz]) -> bytes:
        """Ciphertexts as big-endian numbers of one width: the length says how many there are. Raises: OverflowError."""
        return to_octets(ciphertexts, width=self.ciphertext_bytes)

    def from_bytes(self, raw: bytes) -> list[mpz]:
        """What `to_bytes` wrote, checked by `validate`. Raises: BadCiphertext, also for no bytes or too few."""
        width = self.ciphertext_bytes
        if not raw or len(raw) % width:
            raise BadCiphertext(f"{len(raw)} bytes are not a number of whole ciphertexts of {width} bytes.")
        ciphertexts = from_octets(raw, width=width)
        self.validate(ciphertexts)
        return ciphertexts

    def validate(self, ciphertexts: Sequence[mpz]) -> None:
        """Refuses what is not a unit modulo n^2, so that all that passes opens. Raises: BadCiphertext, naming the first."""
        for position, c in enumerate(ciphertexts):
            if not 0 < c < self.n_squared:
                raise BadCiphertext(f"Ciphertext {position} is outside 0 < c < n^2: refuse its sender.")
        product = reduce(lambda a, b: a * b % self.n, ciphertexts, mpz(1))  # one gcd instead of one for each
        if gcd(product, self.n) != 1:
            position = next(position for position, c in enumerate(ciphertexts) if gcd(c, self.n) != 1)
            raise BadCiphertext(f"Ciphertext {position} has a factor in common with n: refuse its sender.")

    def _refuse_weak(self) -> None:
        """Refuses what a look at the public key can find; a key made to be broken by kept or chosen primes passes."""
        n, h_s = self.n, self.h_s
        if n.bit_length() > MOST_BITS:
            raise KeyRefused(f"A key of {n.bit_length()} bits is too large to use: make one of 3072 bits.")
        if n % 2 == 0 or gmpy2.is_prime(n) or gmpy2.is_power(n):
            raise KeyRefused(f"The key's n is not a product of two odd primes: {AGAIN}.")
        if gcd(_primorial() % n, n) != 1:
            raise KeyRefused(f"The key's n has a factor below 2^20, so it can be factored: {AGAIN}.")
        if any(_near(n, a * b) for a, b in RATIOS):
            raise KeyRefused(f"The key's n was made of primes that are close to each other or to a fraction: {AGAIN}.")
        if h_s is None:
            if self.shape == "short-exponent":
                raise KeyRefused("A short-exponent key needs its h_s: take the public key file that was made with it.")
            return
        residue = 12 if self.shape == "safe-prime" else 4  # p = q = 3 modulo 4; a safe prime is 2 modulo 3 as well
        if n % residue != 1:
            raise KeyRefused(f"The key's n does not have the shape {self.shape!r}: {AGAIN}.")
        hides = 1 < h_s < n * n - 1 and gcd(h_s, n) == 1 and h_s % n not in (1, n - 1)
        if not hides or gmpy2.jacobi(h_s, n) != 1:  # h_s = (-x^2)^n, and -1 has Jacobi symbol 1
            raise KeyRefused(f"The key's h_s cannot hide a message: {AGAIN}.")


@cache
def _primorial() -> mpz:
    return gmpy2.primorial(SMALL)


def _near(n: mpz, k: int) -> bool:
    """Whether 4kn is a difference of two squares, found in a few steps: then n has factors in a ratio near a/b, ab = k."""
    target = 4 * k * n
    root = gmpy2.isqrt(target)
    return any(gmpy2.is_square((root + step) ** 2 - target) for step in range(1, STEPS + 1))


# Randomisers: n-th residues modulo n^2, prepared ahead because they do not depend on the message, each used once.
# rho = h_s^r with r of `exponent_bits` random bits, by a table of the powers of h_s: `bits / window` multiplications instead
# of a whole exponentiation (Brickell, Gordon, McCurley and Wilson 1992). A key without h_s gets the textbook's r^n.

TABLE_BYTES = 128 << 20  # the most a table takes: 121 MB for an ordinary key of 3072 bits, 40 for a short-exponent one
MOST_WINDOW = 16


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
    Guarantee: no randomiser is handed out twice by one stock or its forks: it leaves the stock before it is handed out, with the
    number it was made from; a stock cannot be copied or pickled, and a forked process finds an empty one. Two stocks agree in
    one only if the operating system draws the same exponent twice. Threads may share a stock.
    Raises: BadInput for `expected` below 1, KeyRefused for another key's secret, TypeError when it is copied or pickled.
    """

    def __init__(
        self,
        public: PublicKey,
        *,
        secret: "SecretKey | None" = None,
        expected: int = 10_000,
        workers: int | None = None,
    ):
        check.at_least(1, expected=expected)
        if secret is not None and secret.public != public:
            raise KeyRefused("The secret key does not belong to the public key: take both from the same folder.")
        self.public, self.workers = public, workers or store.cores()
        self._expected = expected
        self._moduli: tuple[mpz, ...] = (secret.p**2, secret.q**2) if secret else (public.n_squared,)
        self._tables: list[Comb] = []
        self._empty()

    def warm(self) -> None:
        """Makes the tables now, for instance before a fork, so that all processes share them."""
        if self._tables or self.public.h_s is None:
            return
        bits, width = self.public.exponent_bits, self.public.ciphertext_bytes
        window = best_window(bits, count=self._expected, element_bytes=width)
        size = {"bits": bits, "teeth": window, "blocks": ceil(bits / window)}  # so many blocks that nothing is squared
        self._tables = [Comb(self.public.h_s % modulus, modulus, **size) for modulus in self._moduli]

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
        return lambda start, stop: (self._power(exponent) for exponent in exponents[start:stop])

    def _power(self, exponent: mpz) -> mpz:
        """The randomiser modulo n^2; with the secret key modulo p^2 and q^2, joined by the Chinese remainder theorem."""
        if not self._tables:
            return gmpy2.powmod(exponent, self.public.n, self.public.n_squared)
        value, *rest = (table.power(exponent) for table in self._tables)
        if not rest:
            return value
        p_squared, q_squared = self._moduli
        return value + p_squared * ((rest[0] - value) * self._inverse % q_squared)

    @cached_property
    def _inverse(self) -> mpz:
        return gmpy2.invert(*self._moduli)

    def _own(self) -> None:
        if os.getpid() != self._owner:  # a fork: what is in stock belongs to the parent
            self._empty()

    def _empty(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._stock: deque[tuple[mpz, mpz]] = deque()
        self._batches: deque[tuple[powers.Batch, list[mpz]]] = deque()
