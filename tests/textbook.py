"""Slow versions, as printed: Paillier's scheme (EUROCRYPT 1999, with g = n + 1), which takes its randomness as arguments
and checks nothing; and the noise of a factorisation on prefix sums."""

from collections.abc import Sequence
from math import lcm

import numpy as np

from tacit.crypto.proofs import Claim, balanced, equation
from tacit.errors import BadProof


def seal(n: int, m: int, r: int) -> int:
    """c = g^m r^n mod n^2.

    Assumes: r is prime to n, drawn at random and used once.

    >>> opened(11, 13, add(143, seal(143, 20, 5), seal(143, 22, 7)))
    42
    """
    return pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n)


def add(n: int, a: int, b: int) -> int:
    """A ciphertext of the sum, modulo n."""
    return a * b % (n * n)


def opened(p: int, q: int, c: int) -> int:
    """m = L(c^lambda mod n^2) / L(g^lambda mod n^2) mod n, where L(u) = (u - 1) / n and lambda = lcm(p - 1, q - 1)."""
    n, power = p * q, lcm(p - 1, q - 1)
    top, bottom = ((pow(x, power, n * n) - 1) // n for x in (c, n + 1))
    return top * pow(bottom, -1, n) % n


def proved(n: int, h_s: int | None, commitment: int, c: Sequence[int], e: Sequence[int], z1: int, z2: int) -> bool:
    """(1 + n)^z1 h_s^z2 = +-A prod c_j^(e_j) mod n^2: what `proofs` checks, one power at a time."""
    hidden = pow(z2, n, n * n) if h_s is None else pow(h_s, z2, n * n)
    left, right = pow(n + 1, z1, n * n) * hidden % (n * n), commitment
    for base, exponent in zip(c, e, strict=True):
        right = right * pow(base, exponent, n * n) % (n * n)
    return left in (right, n * n - right)


def holds(claim: Claim, proof: bytes) -> bool:
    """Whether a proof is one of this claim: the slow twin of `proofs.unproved`, nothing remembered and no batch."""
    try:
        return balanced(claim.public, [equation(claim, proof, seed=claim.seed())], [1])
    except BadProof:
        return False


def prefix_error(strategy):
    """The root-mean-square over rounds of a factorisation's noise on the sum of all rounds so far."""
    sums = np.tril(np.ones((strategy.rounds, strategy.rounds)))
    return float(np.linalg.norm(sums @ np.linalg.inv(strategy.dense()))) / strategy.rounds**0.5
