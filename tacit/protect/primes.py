"""Primes for Paillier keys, from the operating system's entropy and nothing else.

Candidates are independent draws of `secrets` (a prime that follows a random number would be biased towards long gaps).
Primality is GMP's test: trial division, Baillie-PSW, then Miller-Rabin rounds up to `ROUNDS` in all. Every prime has its
two top bits set, so that a product of two has exactly the bits asked for, and is 3 modulo 4.

- `random_prime`: an ordinary prime.
- `safe_prime`: p = 2p' + 1 with p' prime, as threshold opening needs (Damgård and Jurik 2001).
- `structured_prime`: P = 2pp' + 1 with a short prime p, as in Ma, Han and Lei (ACSAC 2021).
"""

import secrets
from functools import cache

import gmpy2
import numpy as np
from gmpy2 import mpz

ROUNDS = 64  # GMP 6.2 and later count Baillie-PSW as 24 of them: 40 rounds of Miller-Rabin are left
SIEVE_BELOW = 1 << 20  # a Miller-Rabin round costs as much as sieving by many thousand small primes
SIEVE_SPAN = 1 << 17  # candidates per random start; a hit is chosen at random among them


def is_prime(candidate: mpz) -> bool:
    """Whether a candidate is prime, but for an error of at most 4^-40.

    Assumes: it was drawn at random. GMP's test is not made for numbers that somebody chose so that they pass it.
    """
    return gmpy2.is_prime(candidate, ROUNDS)


def draw(bits: int, *, top: int = 2) -> mpz:
    """A random number of exactly `bits` bits that is 3 modulo 4 and has its `top` highest bits set.

    >>> number = draw(64)
    >>> number.bit_length(), number >> 62, number % 4
    (64, mpz(3), mpz(3))
    """
    return mpz(secrets.randbits(bits)) | ((mpz(1) << top) - 1 << (bits - top)) | 3


def random_prime(bits: int, *, top: int = 2) -> mpz:
    """A random prime of `bits` bits that is 3 modulo 4 and has its `top` highest bits set.

    >>> prime = random_prime(64)
    >>> is_prime(prime), prime.bit_length(), prime % 4
    (True, 64, mpz(3))
    """
    while True:
        candidate = draw(bits, top=top)
        if is_prime(candidate):
            return candidate


def safe_prime(bits: int) -> mpz:
    """A random prime p of `bits` bits with (p - 1) / 2 prime, its two top bits set.

    Both are sieved together by the primes below SIEVE_BELOW, among SIEVE_SPAN candidates behind a random start, and tried in
    random order. Of the three kinds it takes by far the longest: two numbers have to be prime at once.
    """
    while True:
        start = draw(bits - 1)  # p' is odd, so p = 2p' + 1 is 3 modulo 4
        hits = _sieve(start)
        secrets.SystemRandom().shuffle(hits)
        for hit in hits:
            half = start + 2 * hit
            safe = 2 * half + 1
            if gmpy2.is_strong_prp(half, 2) and is_prime(safe) and is_prime(half) and safe >> (bits - 2) == 3:
                return safe


def structured_prime(bits: int, short: int) -> tuple[mpz, mpz]:
    """A prime P = 2pp' + 1 of `bits` bits and its short prime p of `short` bits; p' is prime as well.

    P has its two top bits set, so that a product of two has exactly the bits asked for.
    """
    rest = random_prime(bits - 1 - short, top=3)  # so that every second p or so gives P its two top bits
    while True:
        p = draw(short)
        structured = 2 * p * rest + 1
        if structured >> (bits - 2) != 3 or not gmpy2.is_prime(p, 1) or not gmpy2.is_strong_prp(structured, 2):
            continue
        if is_prime(p) and is_prime(structured):
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
    """The odd primes below SIEVE_BELOW (Eratosthenes)."""
    sieve = np.ones(SIEVE_BELOW, dtype=bool)
    for number in range(3, int(SIEVE_BELOW**0.5) + 1, 2):
        sieve[number * number :: number] = False
    return [int(prime) for prime in np.flatnonzero(sieve) if prime > 2 and prime % 2]
