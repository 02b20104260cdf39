"""The secret key of Paillier's encryption: what opens, modulo p^2 and q^2 apart (see `paillier`), and how it is made."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import gcd

import gmpy2
import numpy as np
from gmpy2 import mpz

from tacit import check
from tacit.crypto import powers
from tacit.crypto.paillier import AGAIN, LEAST_BITS, RATIOS, SHAPES, SIZES, PublicKey, Shape, short_bits
from tacit.errors import BadCiphertext, BadInput, KeyRefused, SumOverflow

CLOSENESS_BITS = 100  # |p - q| > 2^(bits/2 - 100), FIPS 186-5, A.1.1

# Primes for Paillier keys, from the operating system's entropy and nothing else.

ROUNDS = 64  # GMP 6.2 and later count Baillie-PSW as 24 of them: 40 rounds of Miller-Rabin are left, an error of 4^-40
SIEVE_BELOW = 1 << 20  # a Miller-Rabin round costs as much as sieving by many thousand small primes
SIEVE_SPAN = 1 << 17  # candidates per random start; a hit is chosen at random among them


def draw(bits: int, *, top: int = 2) -> mpz:
    """A random number of exactly `bits` bits that is 3 modulo 4 and has its `top` highest bits set.

    >>> number = draw(64)
    >>> number.bit_length(), number >> 62, number % 4
    (64, mpz(3), mpz(3))
    """
    return mpz(secrets.randbits(bits)) | ((mpz(1) << top) - 1 << (bits - top)) | 3


def random_prime(bits: int, *, top: int = 2) -> mpz:
    """A random prime of `bits` bits that is 3 modulo 4 and has its `top` highest bits set."""
    while True:
        candidate = draw(bits, top=top)
        if gmpy2.is_prime(candidate, ROUNDS):
            return candidate


def safe_prime(bits: int) -> mpz:
    """A random prime p of `bits` bits with (p - 1) / 2 prime, its two top bits set.

    Both are sieved together among SIEVE_SPAN candidates behind a random start, and tried in random order.
    """
    while True:
        start = draw(bits - 1)  # p' is odd, so p = 2p' + 1 is 3 modulo 4
        hits = _sieve(start)
        secrets.SystemRandom().shuffle(hits)
        for hit in hits:
            half = start + 2 * hit
            safe = 2 * half + 1
            if not gmpy2.is_strong_prp(half, 2) or safe >> (bits - 2) != 3:
                continue
            if gmpy2.is_prime(safe, ROUNDS) and gmpy2.is_prime(half, ROUNDS):
                return safe


def structured_prime(bits: int, short: int) -> tuple[mpz, mpz]:
    """A prime P = 2pp' + 1 of `bits` bits, its two top bits set, and its short prime p of `short` bits; p' is prime as well."""
    rest = random_prime(bits - 1 - short, top=3)  # so that every second p or so gives P its two top bits
    while True:
        p = draw(short)
        structured = 2 * p * rest + 1
        if structured >> (bits - 2) != 3 or not gmpy2.is_prime(p, 1) or not gmpy2.is_strong_prp(structured, 2):
            continue
        if gmpy2.is_prime(p, ROUNDS) and gmpy2.is_prime(structured, ROUNDS):
            return structured, p


def _sieve(start: mpz) -> list[int]:
    """The i below SIEVE_SPAN for which no small prime divides start + 2i or 2(start + 2i) + 1."""
    alive = np.ones(SIEVE_SPAN, dtype=bool)
    for small in _small_primes():
        residue, half = int(start % small), (small + 1) // 2  # half = 1/2 modulo small
        alive[-residue * half % small :: small] = False
        alive[(-half - residue) * half % small :: small] = False
    return [int(hit) for hit in np.flatnonzero(alive)]


@cache
def _small_primes() -> list[int]:
    sieve = np.ones(SIEVE_BELOW, dtype=bool)
    for number in range(3, int(SIEVE_BELOW**0.5) + 1, 2):
        sieve[number * number :: number] = False
    return [int(prime) for prime in np.flatnonzero(sieve) if prime > 2 and prime % 2]


@dataclass(frozen=True)
class SecretKey:
    """The primes of a public key, and for short-exponent keys the short primes behind them. Never printed.

    Guarantee: both are primes of n, of one size and far apart, with the shape that the public key claims.
    Assumes: whoever holds it opens single reports as well as sums. What keeps it from that is `reports.Opener`.
    Raises: KeyRefused for primes that do not belong to the public key or are weak.

    >>> from tacit.crypto.paillier import Randomisers
    >>> key = generate(bits=320, least_bits=320)  # so short for this example alone
    >>> stock = Randomisers(key.public, expected=2, workers=1)
    >>> key.open(key.public.add([key.public.seal([20], stock), key.public.seal([22], stock)]))
    [mpz(42)]
    """

    public: PublicKey
    p: mpz = field(repr=False)
    q: mpz = field(repr=False)
    short: tuple[mpz, mpz] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n, p, q, shape, short = self.public.n, self.p, self.q, self.public.shape, self.short
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
        if self.public.h_s is not None:
            self._refuse_shape(self.public.h_s)

    def _refuse_shape(self, h_s: mpz) -> None:
        p, q, shape = self.p, self.q, self.public.shape
        right = p % 4 == q % 4 == 3 and gcd(p - 1, q - 1) == 2
        if not right or (shape == "safe-prime" and not (_prime(p >> 1) and _prime(q >> 1))):
            raise KeyRefused(f"The secret key's primes do not have the shape {shape!r}: {AGAIN}.")
        for prime, order in zip((p, q), self._orders, strict=True):
            residue = gmpy2.powmod(h_s, order, prime * prime) == 1  # n-th residues are those without a part of order p
            if not residue or h_s % prime in (1, prime - 1):
                raise KeyRefused(f"The key's h_s is not the n-th power of a hidden number: {AGAIN}.")

    @property
    def _orders(self) -> tuple[mpz, mpz]:
        """Exponents that remove every randomiser modulo p and modulo q."""
        return (2 * self.short[0], 2 * self.short[1]) if self.short else (self.p - 1, self.q - 1)

    @cached_property
    def _halves(self) -> tuple[tuple[mpz, mpz, mpz, mpz], ...]:
        # for each prime: the prime, its square, its exponent, and 1 / L((1 + n)^exponent)
        pairs = ((self.p, self.q), (self.q, self.p))
        # (1 + n)^e = 1 + epq modulo p^2, so L is eq
        return tuple((p, p * p, e, gmpy2.invert(e * q, p)) for (p, q), e in zip(pairs, self._orders, strict=True))

    @cached_property
    def _p_inverse(self) -> mpz:
        return gmpy2.invert(self.p, self.q)

    def decrypt(self, c: mpz) -> mpz:
        """The message modulo n of one unit modulo n^2, which may come from any Paillier with g = n + 1.

        Raises: BadCiphertext under a short-exponent key, for what was not sealed with that key's own h_s.
        """
        parts = []
        for p, p_squared, exponent, inverse in self._halves:
            u, rest = divmod(gmpy2.powmod(c, exponent, p_squared) - 1, p)
            if rest:  # only a short exponent can fail to remove what it was not made for
                raise BadCiphertext(
                    "A ciphertext was not sealed with this key's h_s: use the public key file as it is."
                )
            parts.append(u * inverse % p)
        m_p, m_q = parts
        return m_p + self.p * ((m_q - m_p) * self._p_inverse % self.q)

    def open(self, ciphertexts: Sequence[mpz], *, workers: int | None = None) -> list[mpz]:
        """The messages, in order, on all cores unless `workers` says how many; all of them or none.

        Raises: BadCiphertext for what is no ciphertext of this key, SumOverflow if a message is not below 2^plaintext_bits.
        """
        messages = self._messages(self.decrypt, ciphertexts, workers)
        refuse_overflow(self.public, messages)
        return messages

    def open_any(self, ciphertexts: Sequence[mpz], *, workers: int | None = None) -> list[mpz]:
        """The messages modulo n, out of range or not, and n, which is no message, where there is none. Raises: BadCiphertext.

        For a holder, which answers alike whatever the sum is: whoever asked decides by `refuse_overflow`.
        """

        def decrypt(c: mpz) -> mpz:
            try:
                return self.decrypt(c)
            except BadCiphertext:
                return self.public.n

        return self._messages(decrypt, ciphertexts, workers)

    def _messages(self, decrypt: Callable[[mpz], mpz], ciphertexts: Sequence[mpz], workers: int | None) -> list[mpz]:
        self.public.validate(ciphertexts)
        width = (self.public.bits + 7) // 8
        return powers.compute(
            lambda a, b: map(decrypt, ciphertexts[a:b]), len(ciphertexts), width=width, workers=workers
        )


def _prime(number: mpz) -> bool:
    return number > 2 and gmpy2.is_prime(number)


def refuse_overflow(public: PublicKey, opened: Sequence[mpz]) -> None:
    """Refuses opened sums beyond the plaintext's band. Raises: SumOverflow.

    Guarantee: a sum from 2^plaintext_bits up to n is refused. One of n or more wraps around and can fall back into it: `Lanes`
    keeps honest reports small enough and looks at what was opened again.
    """
    if any(m.bit_length() > public.plaintext_bits for m in opened):
        raise SumOverflow(f"A sum is not below 2^{public.plaintext_bits}: fewer reports or more headroom are needed.")


def generate(*, bits: int = 3072, shape: Shape = "ordinary", least_bits: int = LEAST_BITS) -> SecretKey:
    """A new key from the operating system's entropy. Raises: BadInput for a size that is not one of SIZES, or an unknown shape.

    Guarantee: n has exactly `bits` bits; p and q are random primes of half of them, both 3 modulo 4, at least 2^(bits/2 -
    100) apart (FIPS 186-5, A.1.1), with gcd(p - 1, q - 1) = 2 and n prime to (p - 1)(q - 1). `least_bits` is for tests alone.
    """
    check.one_of(SHAPES, shape=shape)
    if bits % 2 or bits < least_bits or (least_bits == LEAST_BITS and bits not in SIZES):
        raise BadInput(f"Expected bits to be one of {', '.join(map(str, SIZES))}; got {bits!r}.")
    while True:
        (p, short_p), (q, short_q) = (_new_prime(bits // 2, shape, bits) for _ in range(2))
        n = p * q
        apart = abs(p - q).bit_length() > bits // 2 - CLOSENESS_BITS
        if apart and gcd(p - 1, q - 1) == 2 and gcd(n, (p - 1) * (q - 1)) == 1:
            break
    short = (short_p, short_q) if short_p and short_q else None
    cofactor = (p - 1) // (2 * short_p) * ((q - 1) // (2 * short_q)) if short_p and short_q else 1  # p'q'
    h = -gmpy2.powmod(_unit(n), 2 * cofactor, n) % n  # -x^2, or -y^(2p'q') in the secret subgroup
    return SecretKey(PublicKey(n, shape, gmpy2.powmod(h, n, n * n), least_bits), p, q, short)


def _new_prime(bits: int, shape: Shape, key_bits: int) -> tuple[mpz, mpz | None]:
    if shape == "short-exponent":
        return structured_prime(bits, short_bits(key_bits) // 2)
    return (safe_prime(bits) if shape == "safe-prime" else random_prime(bits)), None


def _unit(n: mpz) -> mpz:
    while True:
        x = mpz(secrets.randbelow(int(n)))
        if gcd(x, n) == 1:
            return x
