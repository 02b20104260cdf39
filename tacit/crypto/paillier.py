"""Paillier's additive encryption (EUROCRYPT 1999) with g = n + 1: whoever has the public key seals and adds, whoever has the
secret key (`secret_key`) opens. `textbook` is the slow twin.

    seal   c = (1 + mn) rho mod n^2        rho is an n-th residue that is used once: see `randomisers`
    add    c = c_1 c_2 mod n^2             opens to m_1 + m_2
    open   modulo p^2 and q^2 apart, then joined by the Chinese remainder theorem (Paillier 1999, section 7)

Guarantee: without the secret key a ciphertext says nothing about its message (IND-CPA), under

- `ordinary`, `safe-prime`: decisional composite residuosity, and that rho = h_s^r with |n|/2-bit r looks like a random
  n-th residue (Damgård, Jurik and Nielsen 2010: h = -x^2, p = q = 3 mod 4, gcd(p - 1, q - 1) = 2);
- `short-exponent`: the stronger assumption of Ma, Han and Lei (ACSAC 2021): the same although h lies in a secret
  subgroup of only `short_bits` bits. Such a key opens only what was sealed with its own h_s.

Ciphertexts are malleable on purpose and whoever opens is an oracle: nothing here authenticates. Who sent what is settled by
`envelope`, that its sender knows it by `proofs`, and what may be opened by `holder`. Nothing here takes constant time."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from itertools import product
from math import gcd
from operator import index
from typing import Literal, Protocol

import gmpy2
from gmpy2 import mpz

from tacit import check
from tacit.errors import BadCiphertext, BadInput, KeyRefused

# Integers as octet strings of one width, big-endian: I2OSP and OS2IP of RFC 8017, section 4, for many at once.


def to_octets(numbers: Iterable[int], *, width: int) -> bytes:
    """The integers one after another, `width` bytes each. Raises: OverflowError for one that is negative or needs more bytes.

    >>> to_octets([1, 258], width=2).hex()
    '00010102'
    """
    return b"".join(int(number).to_bytes(width, "big") for number in numbers)


def from_octets(raw: bytes, *, width: int) -> list[mpz]:
    """What `to_octets` wrote. Assumes: a length that is a multiple of `width`; a rest would be read as one more integer."""
    return [mpz(int.from_bytes(raw[at : at + width], "big")) for at in range(0, len(raw), width)]


# What makes a Paillier key weak, and is refused: wherever n is read, and more of it wherever p and q are held.

SMALL = 1 << 20  # n has no prime factor below
MOST_BITS = 16_384  # a larger n takes hours to try, and is nothing that Tacit makes
CLOSENESS_BITS = 100  # |p - q| > 2^(bits/2 - 100), FIPS 186-5, A.1.1
RATIOS = tuple((a, b) for a, b in product(range(1, 9), repeat=2) if gcd(a, b) == 1)
STEPS = 16  # of Fermat's method, for each ratio
AGAIN = "make a new key"


@cache
def _primorial() -> mpz:
    return gmpy2.primorial(SMALL)


def refuse_public(n: mpz, *, shape: str, h_s: mpz | None) -> None:
    """Refuses what a look at the public key can find. Raises: KeyRefused.

    That is: n even, prime, a power, or of more than MOST_BITS bits; a factor below 2^20; factors whose ratio is near a
    fraction of numbers up to 8; no h_s where the shape needs one. Where there is an h_s: an n without the residue of its
    shape, or an h_s that is trivial, no unit or of the wrong Jacobi symbol. A key made to be broken, by primes that somebody
    kept or that are not random, passes.
    """
    if n.bit_length() > MOST_BITS:
        raise KeyRefused(f"A key of {n.bit_length()} bits is too large to use: make one of 3072 bits.")
    if n % 2 == 0 or gmpy2.is_prime(n) or gmpy2.is_power(n):
        raise KeyRefused(f"The key's n is not a product of two odd primes: {AGAIN}.")
    if gcd(_primorial() % n, n) != 1:
        raise KeyRefused(f"The key's n has a factor below 2^20, so it can be factored: {AGAIN}.")
    if any(_near(n, a * b) for a, b in RATIOS):
        raise KeyRefused(f"The key's n was made of primes that are close to each other or to a fraction: {AGAIN}.")
    if h_s is None:
        if shape == "short-exponent":
            raise KeyRefused("A short-exponent key needs its h_s: take the public key file that was made with it.")
        return
    residue = 12 if shape == "safe-prime" else 4  # p = q = 3 modulo 4; a safe prime is 2 modulo 3 as well
    if n % residue != 1:
        raise KeyRefused(f"The key's n does not have the shape {shape!r}: {AGAIN}.")
    hides = 1 < h_s < n * n - 1 and gcd(h_s, n) == 1 and h_s % n not in (1, n - 1)
    if not hides or gmpy2.jacobi(h_s, n) != 1:  # h_s = (-x^2)^n, and -1 has Jacobi symbol 1
        raise KeyRefused(f"The key's h_s cannot hide a message: {AGAIN}.")


def refuse_secret(n: mpz, p: mpz, q: mpz, *, shape: str, h_s: mpz | None, short: tuple[mpz, mpz] | None) -> None:
    """Refuses what only a holder of p and q can see. Raises: KeyRefused.

    That is: factors that are not two different primes of n, of one size and far apart, also up to a small fraction; short
    primes that do not belong to them; n with a factor in common with (p - 1)(q - 1); and where there is an h_s, primes
    without the shape that is claimed, or an h_s that is no n-th residue or trivial modulo one of them.
    """
    if p * q != n or p == q or not (_prime(p) and _prime(q)):
        raise KeyRefused("The secret key does not belong to its public key: take both from the same file.")
    if (short is not None) != (shape == "short-exponent"):
        raise KeyRefused(f"The secret key does not have the shape {shape!r} of its public key.")
    pairs = zip((p, q), short or (), strict=bool(short))
    if not all(s > 2 and (prime - 1) % (2 * s) == 0 and _prime(s) for prime, s in pairs):
        raise KeyRefused("The short primes do not belong to the secret key: take both from the same file.")
    half = (n.bit_length() + 1) // 2
    if p.bit_length() != q.bit_length() or p.bit_length() != half:
        raise KeyRefused(f"The secret key's primes have {p.bit_length()} and {q.bit_length()} bits: {AGAIN}.")
    if any(abs(a * p - b * q).bit_length() <= half - CLOSENESS_BITS for a, b in RATIOS):
        raise KeyRefused(f"The secret key's primes are close to each other or to a fraction: {AGAIN}.")
    if gcd(n, (p - 1) * (q - 1)) != 1:
        raise KeyRefused(f"The secret key's n has a factor in common with (p - 1)(q - 1): {AGAIN}.")
    if h_s is not None:
        _refuse_shape(p, q, shape=shape, h_s=h_s, short=short)


def _refuse_shape(p: mpz, q: mpz, *, shape: str, h_s: mpz, short: tuple[mpz, mpz] | None) -> None:
    right = p % 4 == q % 4 == 3 and gcd(p - 1, q - 1) == 2
    if not right or (shape == "safe-prime" and not (_prime(p >> 1) and _prime(q >> 1))):
        raise KeyRefused(f"The secret key's primes do not have the shape {shape!r}: {AGAIN}.")
    orders = (2 * short[0], 2 * short[1]) if short else (p - 1, q - 1)
    for prime, order in zip((p, q), orders, strict=True):
        residue = gmpy2.powmod(h_s, order, prime * prime) == 1  # the n-th residues are those without a part of order p
        if not residue or h_s % prime in (1, prime - 1):
            raise KeyRefused(f"The key's h_s is not the n-th power of a hidden number: {AGAIN}.")


def _near(n: mpz, k: int) -> bool:
    """Whether 4kn is a difference of two squares, found in a few steps: then n has factors in a ratio near a/b, ab = k."""
    target = 4 * k * n
    root = gmpy2.isqrt(target)
    return any(gmpy2.is_square((root + step) ** 2 - target) for step in range(1, STEPS + 1))


def _prime(number: mpz) -> bool:
    return number > 2 and gmpy2.is_prime(number)


Shape = Literal["ordinary", "short-exponent", "safe-prime"]
SHAPES: tuple[Shape, ...] = ("ordinary", "short-exponent", "safe-prime")
SIZES = (2048, 3072, 4096)  # 112, 128 and about 150 bits of security (NIST SP 800-57 part 1, table 2)
LEAST_BITS = SIZES[0]
SPARE_BITS = 2  # a plaintext is below n / 2, so a sum that has run over by less than its double is seen


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


def short_bits(bits: int) -> int:
    """The bits of r under a `short-exponent` key of `bits` bits, which are those of the order of its secret subgroup.

    At least four times the security of n: finding one of the two short primes takes the square root of its size. Ma, Han and Lei
    (ACSAC 2021) have 448 for 2048, 512 for 3072, 768 for 7680. Other sizes, which only tests have, get a quarter.
    """
    return {2048: 448, 3072: 512, 4096: 640}.get(bits, bits // 4)


@dataclass(frozen=True)
class PublicKey:
    """n, and h_s for fast randomisers: all that is needed to seal and to add. Raises: KeyRefused for a short or weak key; BadInput.

    Guarantee: n has at least `least_bits` bits, and `refuse_public` has found neither a factor of it nor an h_s that
    hides nothing. That n is a product of two primes drawn at random, and that nobody kept them, is the maker's word.
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
        refuse_public(self.n, shape=self.shape, h_s=self.h_s)

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
