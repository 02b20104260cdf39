"""Integer noise without any rounding: scalar samplers in exact rational arithmetic, the slow twins of integers/discrete.py.
Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010v4), Algorithms 1 to 3. Every decision compares integers that were
drawn uniformly, so the laws are exact; the price is about a hundred microseconds a draw, and a time that depends on what
is drawn. Tests hold the fast samplers against these; no release uses them."""

from fractions import Fraction
from math import factorial, isqrt

from tacit.random import Stream

WORD = 32


def below(stream: Stream, bound: int) -> int:
    """A uniform integer in [0, bound), by rejection. Assumes: bound >= 1."""
    bits = (bound - 1).bit_length()
    while True:
        value = int.from_bytes(stream.words(-(-bits // WORD)).tobytes(), "little") % (1 << bits)
        if value < bound:
            return value


def bernoulli(stream: Stream, p: Fraction) -> bool:
    """True with probability p, a rational number from 0 to 1."""
    return below(stream, p.denominator) < p.numerator


def bernoulli_exp(stream: Stream, gamma: Fraction) -> bool:
    """True with probability exp(-gamma), gamma >= 0 (Algorithm 1)."""
    while gamma > 1:
        if not bernoulli_exp(stream, Fraction(1)):
            return False
        gamma -= 1
    k = 1
    while bernoulli(stream, gamma / k):
        k += 1
    return k % 2 == 1


def discrete_laplace(stream: Stream, t: int) -> int:
    """P(k) proportional to exp(-|k| / t), t >= 1 (Algorithm 2 with s = 1)."""
    while True:
        u = below(stream, t)
        if not bernoulli_exp(stream, Fraction(u, t)):
            continue
        v = 0
        while bernoulli_exp(stream, Fraction(1)):
            v += 1
        magnitude, negative = u + t * v, below(stream, 2)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def discrete_gaussian(stream: Stream, sigma2: Fraction) -> int:
    """P(k) proportional to exp(-k^2 / (2 sigma2)), sigma2 > 0 (Algorithm 3).

    >>> from tacit.random import seeded
    >>> stream = seeded(0)("exact")
    >>> [discrete_gaussian(stream, Fraction(9)) for _ in range(5)]
    [-3, -1, 1, 3, 7]
    """
    t = isqrt(int(sigma2)) + 1
    while True:
        y = discrete_laplace(stream, t)
        if bernoulli_exp(stream, (abs(y) - sigma2 / t) ** 2 / (2 * sigma2)):
            return y


def poisson(stream: Stream, mean: Fraction) -> int:
    """Poisson(mean): parts of mean at most 1, each by rejection from a geometric law, whose constant cancels.
    P(k) is mean^k / k! up to a constant; the proposal (mean/2)^k is accepted with probability 2^k / (2 k!) <= 1."""
    parts = -(-mean.numerator // mean.denominator)
    total = 0
    for _ in range(parts):
        while True:
            k = 0
            while bernoulli(stream, mean / parts / 2):
                k += 1
            if bernoulli(stream, Fraction(2**k, 2 * factorial(k))):
                break
        total += k
    return total


def skellam(stream: Stream, variance: Fraction) -> int:
    """The difference of two Poisson(variance / 2) numbers."""
    return poisson(stream, variance / 2) - poisson(stream, variance / 2)
