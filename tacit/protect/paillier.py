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
`envelope`, that its sender knows it by `proofs`, and what may be opened by `holder`. Nothing here takes constant time.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import gcd
from operator import index
from typing import Literal, Protocol

from gmpy2 import mpz

from tacit import check
from tacit.errors import BadCiphertext, BadInput, KeyRefused
from tacit.protect import weak
from tacit.protect.octets import from_octets, to_octets

Shape = Literal["ordinary", "short-exponent", "safe-prime"]
SHAPES: tuple[Shape, ...] = ("ordinary", "short-exponent", "safe-prime")
SIZES = (2048, 3072, 4096)  # 112, 128 and about 150 bits of security (NIST SP 800-57 part 1, table 2)
LEAST_BITS = SIZES[0]
SPARE_BITS = 2  # a plaintext is below n / 2, so a sum that has run over by less than its double is seen


class Source(Protocol):
    """Where randomisers come from.

    Guarantee, of every implementation: no randomiser is handed out twice, by either method. Two ciphertexts with one
    randomiser give away the difference of their messages.
    """

    def take(self, count: int) -> list[mpz]:
        """`count` randomisers that nobody has had before."""
        ...

    def take_known(self, count: int) -> list[tuple[mpz, mpz]]:
        """The same, each with the number it was made from: r with rho = h_s^r, or rho = r^n under a key without h_s.

        That number opens whatever the randomiser seals, and is what a sender needs to prove that it knows what it sealed.
        """
        ...


def short_bits(bits: int) -> int:
    """The bits of r under a `short-exponent` key of `bits` bits, which are those of the order of its secret subgroup.

    At least four times the security of n: one of the two short primes has half of them, and finding it takes the square root
    of its size. Ma, Han and Lei (ACSAC 2021) have 448 for 2048 and 512 for 3072; 4096 lies between 512 and their 768 for
    7680. Other sizes, which only tests have, get a quarter.

    >>> short_bits(3072)
    512
    """
    return {2048: 448, 3072: 512, 4096: 640}.get(bits, bits // 4)


@dataclass(frozen=True)
class PublicKey:
    """n, and h_s for fast randomisers: all that is needed to seal and to add.

    Guarantee: n has at least `least_bits` bits, and `weak.refuse_public` has found neither a factor of it nor an h_s that
    hides nothing. That n is a product of two primes drawn at random, and that nobody kept them, is the maker's word.

    A key without `h_s` (one made elsewhere) still works, with randomisers r^n. `least_bits` is for tests alone.

    Raises: KeyRefused for a key that is too short or weak, BadInput for an unknown shape.
    """

    n: mpz = field(repr=False)
    shape: Shape = "ordinary"
    h_s: mpz | None = field(default=None, repr=False)
    least_bits: int = field(default=LEAST_BITS, repr=False, compare=False)

    def __post_init__(self) -> None:
        check.one_of(SHAPES, shape=self.shape)
        if self.bits < self.least_bits:
            raise KeyRefused(f"A key of {self.bits} bits can be broken: make one of at least {self.least_bits} bits.")
        weak.refuse_public(self.n, shape=self.shape, h_s=self.h_s)

    @property
    def bits(self) -> int:
        """The bits of n."""
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
        """The modulus of ciphertexts."""
        return self.n * self.n

    @cached_property
    def id(self) -> str:
        """A fingerprint of shape, n and h_s: 128 bits of SHA-256, in hexadecimal. Every report's signature covers it."""
        text = f"tacit paillier {self.shape} {self.n:x} {self.h_s or 0:x}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def seal(self, messages: Sequence[int], randomisers: Source) -> list[mpz]:
        """A ciphertext per message, each under a randomiser of its own.

        Guarantee: IND-CPA, under the assumptions of the module, as long as the source hands out no randomiser twice.

        Raises: BadInput for a message that is not an integer, is negative or is not below 2^plaintext_bits. The randomisers
        that were taken for it are gone all the same.
        """
        return self.seal_with(messages, randomisers.take(len(messages)))

    def seal_with(self, messages: Sequence[int], values: Sequence[mpz]) -> list[mpz]:
        """The same, with randomisers that were taken before.

        Assumes: every value came from a `Source` for this key and is used nowhere else.

        Raises: BadInput as `seal`, ValueError for another number of values than messages.
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
        """Ciphertexts of the sums of equally long rows, position by position. Needs no secret.

        Guarantee: opens to the sums modulo n. Nothing random is added, so whoever knows the rows can tell that this is their
        sum.

        Assumes: ciphertexts that `validate` has let pass, and messages whose sum is below 2^plaintext_bits (`Lanes` leaves
        room for it).

        Raises: BadInput for no rows, or rows of different lengths.
        """
        rows = list(rows)
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise BadInput(f"Expected rows of one length to add, got lengths {sorted({len(row) for row in rows})}.")
        return [reduce(lambda a, b: a * b % self.n_squared, column) for column in zip(*rows, strict=True)]

    def to_bytes(self, ciphertexts: Iterable[mpz]) -> bytes:
        """Ciphertexts as big-endian numbers of one width: the length says how many there are and nothing else.

        Raises: OverflowError for a number that is longer than a ciphertext.
        """
        return to_octets(ciphertexts, width=self.ciphertext_bytes)

    def from_bytes(self, raw: bytes) -> list[mpz]:
        """What `to_bytes` wrote, each number checked by `validate`.

        Raises: BadCiphertext for no bytes, for bytes that are not a number of whole ciphertexts, and for what `validate`
        refuses.
        """
        width = self.ciphertext_bytes
        if not raw or len(raw) % width:
            raise BadCiphertext(f"{len(raw)} bytes are not a number of whole ciphertexts of {width} bytes.")
        ciphertexts = from_octets(raw, width=width)
        self.validate(ciphertexts)
        return ciphertexts

    def validate(self, ciphertexts: Sequence[mpz]) -> None:
        """Refuses what is not a ciphertext under this key.

        Guarantee: what passes is a unit modulo n^2, so that it opens to something. That its sender knows to what, `proofs`
        must show.

        Raises: BadCiphertext, naming the first c outside 0 < c < n^2 or with a factor in common with n.
        """
        for position, c in enumerate(ciphertexts):
            if not 0 < c < self.n_squared:
                raise BadCiphertext(f"Ciphertext {position} is outside 0 < c < n^2: refuse its sender.")
        product = reduce(lambda a, b: a * b % self.n, ciphertexts, mpz(1))  # one gcd instead of one for each
        if gcd(product, self.n) != 1:
            position = next(position for position, c in enumerate(ciphertexts) if gcd(c, self.n) != 1)
            raise BadCiphertext(f"Ciphertext {position} has a factor in common with n: refuse its sender.")
