"""What makes a Paillier key weak, and is refused: wherever n is read, and more of it wherever p and q are held.

A public key can be tried only from outside: small factors, powers, factors in a ratio near a small fraction (Fermat 1643,
Lehman 1974), an h_s that hides nothing. Who holds p and q checks the rest: both prime, of one size and far apart (FIPS 186-5,
A.1.1), of the shape that is claimed, and h_s an n-th residue. What nobody but the maker can know stays with the maker: that p
and q were drawn at random, that the key was forgotten, and that h_s was made from a random x.
"""

from functools import cache
from itertools import product
from math import gcd

import gmpy2
from gmpy2 import mpz

from tacit.errors import KeyRefused

SMALL = 1 << 20  # n has no prime factor below
MOST_BITS = 16_384  # a larger n takes hours to try, and is nothing that Tacit makes
CLOSENESS_BITS = 100  # |p - q| > 2^(bits/2 - 100), FIPS 186-5, A.1.1
RATIOS = tuple((a, b) for a, b in product(range(1, 9), repeat=2) if gcd(a, b) == 1)
STEPS = 16  # of Fermat's method, for each ratio
AGAIN = "make a new key"


@cache
def _primorial() -> mpz:
    """The product of all primes below SMALL."""
    return gmpy2.primorial(SMALL)


def refuse_public(n: mpz, *, shape: str, h_s: mpz | None) -> None:
    """Refuses what a look at the public key can find.

    That is: n even, prime, a power, or of more than MOST_BITS bits; a factor below 2^20; factors whose ratio is near a
    fraction of numbers up to 8; no h_s where the shape needs one. Where there is an h_s: an n without the residue of its
    shape, or an h_s that is trivial, no unit or of the wrong Jacobi symbol.

    Guarantee: none beyond that. A key made to be broken, by primes that somebody kept or that are not random, passes.

    Raises: KeyRefused.
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
    """Refuses what only a holder of p and q can see.

    That is: factors that are not two different primes of n, of one size and far apart, also up to a small fraction; short
    primes that do not belong to them; n with a factor in common with (p - 1)(q - 1); and where there is an h_s, primes
    without the shape that is claimed, or an h_s that is no n-th residue or trivial modulo one of them.

    Raises: KeyRefused.
    """
    if p * q != n or p == q or not (_prime(p) and _prime(q)):
        raise KeyRefused("The secret key does not belong to its public key: take both from the same file.")
    if (short is not None) != (shape == "short-exponent"):
        raise KeyRefused(f"The secret key does not have the shape {shape!r} of its public key.")
    if short and not all(
        s > 2 and (prime - 1) % (2 * s) == 0 and _prime(s) for prime, s in zip((p, q), short, strict=True)
    ):
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
    """Raises KeyRefused where the primes are not of Tacit's own shapes, or h_s is no n-th residue among them."""
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
