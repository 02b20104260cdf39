"""Wide integer noise by exact rejection: where the table of tacit/privacy/integers/discrete.py would fill the memory.

A block of integers is chosen with probability proportional to a whole number that lies above the law there, then an integer
of the block, uniformly; it is kept with probability p(k) / (what the block claims for it). Whole numbers and random bits make
this exact for any such blocks, but for the ratio p(k) / p(0): it is compared with 64 random bits in floating point, and
where that is too close to tell (once in 2^29 draws), with 320 bits in 384-bit arithmetic. For the discrete Gaussian the
ratio is a formula; for Skellam it is Debye's uniform expansion of the Bessel function (DLMF 10.41.3), whose error here is
below 2^-250.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import gmpy2
import numpy as np

from tacit.random import Stream

PRECISION = 384
MORE = 4  # words of 64 bits beyond the first, where that does not decide
SCALE = 1 << 40  # what the block around zero claims
BLOCKS_PER_STD = 32  # about 3 % of the draws are thrown away
CLOSE = 2.0**-30  # how near to its threshold floating point may not decide; its own error is below 2^-40
TERMS = 14  # of the expansion: its remainder is below 2^-250 for variances from 2^24 on; a table does for others


class WideLaw(Protocol):
    """A symmetric law that falls away from zero, given by the ratio of its masses."""

    @property
    def variance(self) -> float:
        """An upper bound of the variance; exact for Skellam."""
        ...

    def log_ratio(self, k: np.ndarray) -> np.ndarray:
        """log(p(k) / p(0)) in floating point, with an absolute error below 2^-41, where the law is too wide for a table."""
        ...

    def exact_ratio(self, k: int) -> float:
        """p(k) / p(0) to many digits, in the current gmpy2 context, there too."""
        ...


@dataclass(frozen=True, eq=False)
class Blocks:
    """Block j holds the integers from edges[j] on, `width` of them, each with claims[j]; `marks` are running sums of claims.

    Guarantee: claims[j] / SCALE is at least p(k) / p(0) for every k of the block, so that rejection leaves exactly the law.
    """

    width: int
    edges: np.ndarray = field(repr=False)
    claims: np.ndarray = field(repr=False)
    marks: np.ndarray = field(repr=False)


@lru_cache(maxsize=8)
def blocks(law: WideLaw, last: int) -> Blocks:
    """Blocks for the integers from -last to last, made once and kept.

    Assumes: the law falls away from zero, so that the integer of a block nearest to zero is its likeliest.
    """
    width = 1 << max(0, math.floor(math.log2(math.sqrt(law.variance) / BLOCKS_PER_STD)))
    count = -(-(last + 1) // width)
    edges = width * np.arange(-count, count)
    nearest = np.where(edges >= 0, edges, edges + width - 1)  # the likeliest integer of a block
    claims = np.ceil(SCALE * np.exp(law.log_ratio(nearest)) * (1 + CLOSE)).astype(np.uint64)
    return Blocks(width, edges, claims, np.cumsum(claims))


def draw_wide(law: WideLaw, stream: Stream, count: int, *, last: int) -> np.ndarray:
    """`count` independent integers of the law, int64, none much beyond `last`.

    Guarantee: exact but for what lies beyond `last` and the 2^-250 of `exact_ratio`; both are within `discrete.distance`. How
    many words of the stream are used depends on what is thrown away.

    Assumes: variances from 2^24 on; narrower laws have a table.
    """
    proposal, parts, missing = blocks(law, last), [], count
    while missing:
        parts.append(_try(law, proposal, stream, missing + missing // 16 + 16)[:missing])
        missing -= len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _try(law: WideLaw, proposal: Blocks, stream: Stream, count: int) -> np.ndarray:
    """One proposal each; what is accepted of them."""
    total = int(proposal.marks[-1])
    fair = np.uint64((1 << 64) // total * total - 1)
    words = _words(stream, 3 * count).reshape(3, count)
    chosen = words[0] <= fair
    block = np.searchsorted(proposal.marks, words[0] % np.uint64(total), side="right")
    k = proposal.edges[block] + (words[1] & np.uint64(proposal.width - 1)).astype(np.int64)
    claim = proposal.claims[block]
    bar = SCALE * np.exp(law.log_ratio(k)) / claim
    u = (words[2] >> np.uint64(11)) * 2.0**-53
    accepted = u < bar
    for i in np.flatnonzero(np.abs(u - bar) < CLOSE):
        accepted[i] = _decide(law, int(k[i]), int(claim[i]), int(words[2][i]), stream)
    return k[chosen & accepted]


def _decide(law: WideLaw, k: int, claim: int, high: int, stream: Stream) -> bool:
    """Whether 320 bits, of which 64 are known, lie below p(k) / p(0) over the block's claim."""
    low = int.from_bytes(_words(stream, MORE).tobytes(), "little")
    with gmpy2.context(precision=PRECISION):
        u = gmpy2.mpfr((high << 64 * MORE) | low) / gmpy2.mpfr(2) ** (64 * (MORE + 1))
        return bool(u < SCALE * law.exact_ratio(k) / claim)


def _words(stream: Stream, count: int) -> np.ndarray:
    return stream.words(2 * count).view(np.uint64)


def gaussian_log_ratio(k: np.ndarray, sigma2: float) -> np.ndarray:
    """log of exp(-k^2 / (2 sigma2))."""
    return -(np.asarray(k, dtype=np.float64) ** 2) / (2 * sigma2)


def gaussian_exact_ratio(k: int, sigma2: float) -> float:
    """exp(-k^2 / (2 sigma2)) in the current gmpy2 context."""
    return gmpy2.exp(-gmpy2.mpfr(k * k) / (2 * gmpy2.mpfr(sigma2)))


def skellam_log_ratio(k: np.ndarray, v: float) -> np.ndarray:
    """log(I_k(v) / I_0(v)) by the first term of the expansion; the others are below v^-2."""
    k = np.asarray(k, dtype=np.float64)
    w = np.sqrt(k * k + v * v)
    first = (3 - 5 * (k / w) ** 2) / (24 * w) - 3 / (24 * v)
    return k * k / (w + v) - k * np.arcsinh(k / v) - 0.5 * np.log(w / v) + np.log1p(first)


def skellam_exact_ratio(k: int, v: float) -> float:
    """I_k(v) / I_0(v) by Debye's expansion in the current gmpy2 context.

    exp(w - v - k asinh(k/v)) sqrt(v/w) (1 + sum of (U_n(t) / t^n) / w^n) / (the same at 0), w = sqrt(k^2 + v^2), t = k / w
    (DLMF 10.41.3).
    """
    x, variance = gmpy2.mpfr(k), gmpy2.mpfr(v)
    w = gmpy2.sqrt(x * x + variance * variance)
    power = gmpy2.exp(x * x / (w + variance) - x * gmpy2.asinh(x / variance))
    return power * gmpy2.sqrt(variance / w) * _series((x / w) ** 2, w) / _series(gmpy2.mpfr(0), variance)


def _series(t2: float, w: float) -> float:
    total, power = gmpy2.mpfr(1), gmpy2.mpfr(1)
    for polynomial in debye(TERMS):
        power /= w
        value = gmpy2.mpfr(0)
        for coefficient in reversed(polynomial):
            value = value * t2 + gmpy2.mpfr(coefficient.numerator) / coefficient.denominator
        total += value * power
    return total


@lru_cache(maxsize=4)
def debye(terms: int) -> tuple[tuple[Fraction, ...], ...]:
    """The coefficients of U_n(t) / t^n in powers of t^2, n = 1 ... terms.

    U_(n+1)(t) = t^2 (1 - t^2) U_n'(t) / 2 + (1/8) integral from 0 to t of (1 - 5 s^2) U_n(s) ds (DLMF 10.41.9).

    >>> debye(1)
    ((Fraction(1, 8), Fraction(-5, 24)),)
    """
    polynomials, u = [], {0: Fraction(1)}  # U_n as {power: coefficient}
    for n in range(1, terms + 1):
        after: dict[int, Fraction] = {}
        for power, c in u.items():
            for shift, factor in ((1, Fraction(1, 8 * (power + 1))), (3, -Fraction(5, 8 * (power + 3)))):
                half = Fraction(power, 2) * (1 if shift == 1 else -1)
                after[power + shift] = after.get(power + shift, Fraction(0)) + c * (half + factor)
        u = after
        polynomials.append(tuple(u.get(n + 2 * j, Fraction(0)) for j in range(n + 1)))
    return tuple(polynomials)
