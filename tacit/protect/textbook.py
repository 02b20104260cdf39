"""Paillier's scheme as printed (Paillier, EUROCRYPT 1999, section 4, with g = n + 1): the slow twin of `paillier`.

For tests and readers. It takes its randomness as an argument and checks nothing.
"""

from math import lcm


def seal(n: int, m: int, r: int) -> int:
    """c = g^m r^n mod n^2."""
    return pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n)


def add(n: int, a: int, b: int) -> int:
    """A ciphertext of the sum."""
    return a * b % (n * n)


def opened(p: int, q: int, c: int) -> int:
    """m = L(c^lambda mod n^2) / L(g^lambda mod n^2) mod n, where L(u) = (u - 1) / n and lambda = lcm(p - 1, q - 1)."""
    n, power = p * q, lcm(p - 1, q - 1)
    top, bottom = ((pow(x, power, n * n) - 1) // n for x in (c, n + 1))
    return top * pow(bottom, -1, n) % n
