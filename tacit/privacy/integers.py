"""Integer noise: Skellam (1946; arXiv:2110.04995) and discrete Gaussian (arXiv:2004.00010), by inversion of a 256-bit
distribution function; where its table would fill the memory, by rejection, as exactly. No floating-point number decides a
draw. Guarantee: one draw is within `distance` of the law (below 2^-200), which enters every price built on it."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol

import gmpy2
import numpy as np
from scipy.special import ndtr, ndtri

from tacit import check
from tacit.errors import BadInput
from tacit.random import Stream

# Wide integer noise by exact rejection: where the table of tacit/privacy/integers.py would fill the memory.

PRECISION = 384
MORE = 4  # words of 64 bits beyond the first, where that does not decide
SCALE = 1 << 40  # what the block around zero claims
BLOCKS_PER_STD = 32  # about 3 % of the draws are thrown away
CLOSE = 2.0**-30  # how near to its threshold floating point may not decide; its own error is below 2^-40
TERMS = 14  # of the expansion: its remainder is below 2^-250 for variances from 2^24 on; a table does for others


class Law(Protocol):
    """A distribution on the integers that is symmetric about zero and falls away from it."""

    @property
    def variance(self) -> float: ...  # an upper bound; exact for Skellam

    def log2_tail(self, t: float) -> float: ...  # a proven upper bound on log2 P(X >= t), t >= 0

    def masses(self, last: int) -> list[float]:
        """Numbers proportional to P(X = k), k = 0 ... last, in the current gmpy2 context: for a table."""
        ...

    def log_ratio(self, k: np.ndarray) -> np.ndarray:
        """log(p(k) / p(0)) in floating point, with an absolute error below 2^-41, where the law is too wide for a table."""
        ...

    def exact_ratio(self, k: int) -> float: ...  # p(k) / p(0) to many digits, in the current gmpy2 context, there too


@dataclass(frozen=True, eq=False)
class Blocks:
    """Block j holds the integers from edges[j] on, `width` of them, each with claims[j]; `marks` are running sums of claims.
    Guarantee: claims[j] / SCALE is at least p(k) / p(0) for every k of the block, so that rejection leaves exactly the
    law."""

    width: int
    edges: np.ndarray = field(repr=False)
    claims: np.ndarray = field(repr=False)
    marks: np.ndarray = field(repr=False)


@lru_cache(maxsize=8)
def blocks(law: Law, last: int) -> Blocks:
    """Blocks for the integers from -last to last, made once and kept. Assumes: the law falls away from zero, so that the
    integer of a block nearest to zero is its likeliest."""
    width = 1 << max(0, math.floor(math.log2(math.sqrt(law.variance) / BLOCKS_PER_STD)))
    count = -(-(last + 1) // width)
    edges = width * np.arange(-count, count)
    nearest = np.where(edges >= 0, edges, edges + width - 1)  # the likeliest integer of a block
    claims = np.ceil(SCALE * np.exp(law.log_ratio(nearest)) * (1 + CLOSE)).astype(np.uint64)
    return Blocks(width, edges, claims, np.cumsum(claims))


def draw_wide(law: Law, stream: Stream, count: int, *, last: int) -> np.ndarray:
    """`count` independent integers of the law, int64, none much beyond `last`. Guarantee: exact but for what lies beyond
    `last` and the 2^-250 of `exact_ratio`; both are within `discrete.distance`. How many words of the stream are used
    depends on what is thrown away. Assumes: variances from 2^24 on; narrower laws have a table."""
    proposal, parts, missing = blocks(law, last), [], count
    while missing:
        parts.append(_try(law, proposal, stream, missing + missing // 16 + 16)[:missing])
        missing -= len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _try(law: Law, proposal: Blocks, stream: Stream, count: int) -> np.ndarray:
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


def _decide(law: Law, k: int, claim: int, high: int, stream: Stream) -> bool:
    low = int.from_bytes(_words(stream, MORE).tobytes(), "little")
    with gmpy2.context(precision=PRECISION):
        u = gmpy2.mpfr((high << 64 * MORE) | low) / gmpy2.mpfr(2) ** (64 * (MORE + 1))
        return bool(u < SCALE * law.exact_ratio(k) / claim)


def _words(stream: Stream, count: int) -> np.ndarray:
    return stream.words(2 * count).view(np.uint64)


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
    """The coefficients of U_n(t) / t^n in powers of t^2, n = 1 ... terms. U_(n+1)(t) = t^2 (1 - t^2) U_n'(t) / 2 + (1/8)
    integral from 0 to t of (1 - 5 s^2) U_n(s) ds (DLMF 10.41.9)."""
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


BITS = 256  # of a distribution function's value; a draw takes 64 of them at first and the others if those do not decide
WORD = 64
GUIDE = 16  # first bits of a draw, by which its place in a table is nearly known: half a megabyte
PRECISION_DISCRETE = 384  # of the arithmetic: errors of 2^21 operations stay below 2^-360
WIDEST = 1 << 17  # integers on one side of zero that a table may hold: 8 MB and half a second


@dataclass(frozen=True)
class Skellam:
    """The difference of two Poisson(variance / 2) numbers. A sum of n Skellam(v) is Skellam(nv), exactly, so the price of the
    sum is no approximation. Raises: BadInput for a variance that is not a finite number above 0.

    >>> from tacit.random import seeded
    >>> draw(Skellam(4.0), seeded(0)("noise"), 5).tolist()
    [-2, 0, -1, 2, -2]
    """

    variance: float

    def __post_init__(self) -> None:
        check.positive(variance=self.variance)

    def log2_tail(self, t: float) -> float:
        # Chernoff: E exp(sX) = exp(v (cosh s - 1)), at its best s = asinh(t / v)
        s = math.asinh(t / self.variance)
        return (self.variance * 2 * math.sinh(s / 2) ** 2 - s * t) / math.log(2)

    def masses(self, last: int) -> list[float]:
        # P(X = k) = exp(-v) I_k(v), by the recurrence I_(k-1) = I_(k+1) + (2k / v) I_k, which is stable downwards (Miller)
        start = last + reach(self, log2_probability=-1.5 * BITS)  # what lies above has decayed to nothing at `last`
        above, here, ratio = gmpy2.mpfr(0), gmpy2.mpfr(1), 2 / gmpy2.mpfr(self.variance)
        masses = []
        for k in range(start, 0, -1):
            above, here = here, above + k * ratio * here
            if k <= last + 1:
                masses.append(here)
        return masses[::-1]

    def log_ratio(self, k: np.ndarray) -> np.ndarray:
        """log(I_k(v) / I_0(v)) by the first term of Debye's expansion; the others are below v^-2."""
        k, v = np.asarray(k, dtype=np.float64), self.variance
        w = np.sqrt(k * k + v * v)
        first = (3 - 5 * (k / w) ** 2) / (24 * w) - 3 / (24 * v)
        return k * k / (w + v) - k * np.arcsinh(k / v) - 0.5 * np.log(w / v) + np.log1p(first)

    def exact_ratio(self, k: int) -> float:
        """I_k(v) / I_0(v) = exp(w - v - k asinh(k/v)) sqrt(v/w) (1 + sum of (U_n(t) / t^n) / w^n) / (the same at 0), with w =
        sqrt(k^2 + v^2) and t = k / w (DLMF 10.41.3)."""
        x, v = gmpy2.mpfr(k), gmpy2.mpfr(self.variance)
        w = gmpy2.sqrt(x * x + v * v)
        power = gmpy2.exp(x * x / (w + v) - x * gmpy2.asinh(x / v))
        return power * gmpy2.sqrt(v / w) * _series((x / w) ** 2, w) / _series(gmpy2.mpfr(0), v)


@dataclass(frozen=True)
class DiscreteGaussian:
    """P(X = k) proportional to exp(-k^2 / (2 sigma2)): Definition 1 of arXiv:2004.00010. What a sum of shares misses of it is
    in the price (`shares_apart` in accounting/rdp.py). Raises: BadInput for a sigma2 that is not a finite number above 0."""

    sigma2: float

    def __post_init__(self) -> None:
        check.positive(sigma2=self.sigma2)

    @property
    def variance(self) -> float:
        return self.sigma2  # at most sigma2: arXiv:2004.00010, section 3

    def log2_tail(self, t: float) -> float:
        return -t * t / (2 * self.sigma2) / math.log(2)  # it is sigma2-subgaussian: ibidem

    def masses(self, last: int) -> list[float]:
        masses, mass = [], gmpy2.mpfr(1)
        step = gmpy2.exp(-1 / (2 * gmpy2.mpfr(self.sigma2)))
        ratio, square = step, step * step
        for _ in range(last + 1):  # exp(-(k+1)^2/2s) = exp(-k^2/2s) exp(-(2k+1)/2s)
            masses.append(mass)
            mass, ratio = mass * ratio, ratio * square
        return masses

    def log_ratio(self, k: np.ndarray) -> np.ndarray:
        return -(np.asarray(k, dtype=np.float64) ** 2) / (2 * self.sigma2)

    def exact_ratio(self, k: int) -> float:
        return gmpy2.exp(-gmpy2.mpfr(k * k) / (2 * gmpy2.mpfr(self.sigma2)))


LAWS = {"skellam": Skellam, "discrete-gaussian": DiscreteGaussian}


@dataclass(frozen=True, eq=False)
class Table:
    """P(X <= k), k = -last ... last - 1, as 256-bit integers: the first 64 bits of each, and the others. Integers beyond
    `last` are left out: both tails together have a probability below 2^-256."""

    last: int
    high: np.ndarray = field(repr=False)
    rest: list[int] = field(repr=False)

    def look_up(self, high: np.ndarray, stream: Stream) -> np.ndarray:
        """The draws whose first 64 bits are `high`; where those do not decide, the others are taken from the stream.
        Guarantee: each draw is the smallest k whose P(X <= k) is above 256 uniform bits, compared as integers."""
        index, found = self.places(high)
        ties = np.flatnonzero(found == high)
        for i in ties:
            stop = int(np.searchsorted(self.high, high[i], side="right"))
            more = int.from_bytes(stream.words((BITS - WORD) // 32).tobytes(), "little")
            index[i] = bisect_right(self.rest, more, int(index[i]), stop)
        return index - self.last

    def places(self, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`np.searchsorted(self.high, high)` and what stands there, by a look at where those with the same first bits begin: for
        most it is there, or one further."""
        index = self._starts[high >> np.uint64(WORD - GUIDE)]
        found = self._ended[index]
        later = np.flatnonzero(found < high)
        wanted, next_ = high[later], index[later] + 1
        far = np.flatnonzero(self._ended[next_] < wanted)
        next_[far] = np.searchsorted(self.high, wanted[far])
        index[later], found[later] = next_, self._ended[next_]
        return index, found

    @cached_property
    def _ended(self) -> np.ndarray:
        return np.append(self.high, np.uint64(2**WORD - 1))

    @cached_property
    def _starts(self) -> np.ndarray:
        firsts = np.arange(1 << GUIDE, dtype=np.uint64) << np.uint64(WORD - GUIDE)
        return np.searchsorted(self.high, firsts)


def draw(law: Law, stream: Stream, count: int) -> np.ndarray:
    """`count` independent integers of the law, int64. Guarantee: each is within `distance(law)` of the law in total
    variation; the same stream gives the same integers, and all randomness is the stream's. Assumes: the stream is
    cryptographic and used for nothing else. The time of a draw depends a little on what is drawn."""
    last = reach(law, log2_probability=-BITS)
    if last > WIDEST:
        return draw_wide(law, stream, count, last=last)
    return table(law).look_up(stream.words(2 * count).view(np.uint64), stream)


def prepare(law: Law) -> None:
    """Makes now what the first draw would make: before a fork, all processes share it."""
    last = reach(law, log2_probability=-BITS)
    if last > WIDEST:
        blocks(law, last)
    else:
        table(law)


def distance(law: Law) -> float:
    """The total variation between a draw and its law: a unit of the last place for every integer, and both tails. Guarantee:
    an upper bound, below 2^-200 for every law that can be drawn. A price counts it once for every coordinate of every share."""
    return (2 * reach(law, log2_probability=-BITS) + 4) * 2.0**-BITS


@lru_cache(maxsize=64)
def reach(law: Law, *, log2_probability: float) -> int:
    """The smallest t found with P(|X| >= t) <= 2^log2_probability, by the law's proven tail."""

    def beyond(t: int) -> bool:
        return law.log2_tail(t) + 1 <= log2_probability

    high = 1
    while not beyond(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


@lru_cache(maxsize=8)
def table(law: Law) -> Table:
    """The law's table, made once and kept: up to 8 MB and half a second, for WIDEST integers on a side. Guarantee: every
    entry is within half a unit of 2^-256 of P(X <= k), but for errors of 2^-360."""
    last = reach(law, log2_probability=-BITS)
    with gmpy2.context(precision=PRECISION_DISCRETE):
        masses = law.masses(last)
        scale = gmpy2.mpfr(2) ** BITS / (masses[0] + 2 * gmpy2.fsum(masses[1:]))
        below, total = [], gmpy2.mpfr(0)
        for mass in reversed(masses[1:]):  # P(X <= -last), ..., P(X <= -1)
            total += mass
            below.append(int(gmpy2.rint(total * scale)))
    # P(X <= k) = 1 - P(X <= -k-1)
    cumulative = [*below, *((1 << BITS) - max(value, 1) for value in reversed(below))]
    rest = BITS - WORD
    high = np.array([value >> rest for value in cumulative], dtype=np.uint64)
    return Table(last, high, [value & ((1 << rest) - 1) for value in cumulative])


# Integer noise that is a Gaussian, rounded: counts are integers, so round(count + N(0, sigma^2)) is count + round(N(0, sigma^2)),
# which costs what the Gaussian costs and composes by privacy losses. 256 random bits u stand for a uniform number U and the draw is
# round(sigma Phi^-1(U)). Floats decide only where they surely agree with that.

PRECISION_ROUNDED = 400  # of the arithmetic that decides close cases: errors stay below 2^-390
SURE = 2.0**-38  # relative: scipy's normal distribution function is a hundred times closer than this
WIDEST_STD = 2.0**30  # standard deviations beyond this have neighbours that floats cannot tell apart
TAIL_ROUNDED = 19.0  # P(|N(0, 1)| >= 19) < 2^-256


def draw_rounded(sigma: float, stream: Stream, count: int) -> np.ndarray:
    """`count` independent integers round(N(0, sigma^2)), int64. Guarantee: each is within `distance_rounded(sigma)` of that
    law in total variation, and all randomness is the stream's. Assumes and depends as `draw`. Raises: BadInput for a sigma
    not above 0, or above 2^30.

    >>> from tacit.random import seeded
    >>> draw_rounded(2.0, seeded(0)("noise"), 6).tolist()
    [-2, 0, -1, 2, -2, -2]
    """
    check.positive(sigma=sigma)
    if sigma > WIDEST_STD:
        raise BadInput(
            f"Noise of a standard deviation of {sigma:g} is wider than integer noise can be drawn here (2^30)."
        )
    words = stream.words(2 * count).view(np.uint64)
    upper = words >= np.uint64(1 << (WORD - 1))
    tails = np.where(upper, ~words, words)  # below 2^63: the probability of the nearer tail
    p = (tails.astype(np.float64) + 0.5) * 2.0**-WORD
    sizes = np.maximum(np.rint(-sigma * ndtri(p)), 0.0)
    low, high = ndtr(-(sizes + 0.5) / sigma), np.where(sizes > 0, ndtr(-(sizes - 0.5) / sigma), 1.0)
    margin = 2.0 ** (1 - WORD)
    sure = (low * (1 + SURE) + margin < p) & (p < high * (1 - SURE) - margin)
    sizes = sizes.astype(np.int64)
    for place in np.flatnonzero(~sure):
        more = int.from_bytes(stream.words((BITS - WORD) // 32).tobytes(), "little")
        sizes[place] = _exact((int(tails[place]) << (BITS - WORD)) | more, sigma, start=int(sizes[place]))
    return np.where(upper, sizes, -sizes)


def _exact(bits: int, sigma: float, *, start: int = 0) -> int:
    """The magnitude of the draw whose nearer tail has the probability bits / 2^256, decided by 400-bit arithmetic."""
    with gmpy2.context(precision=PRECISION_ROUNDED):
        scale, whole = gmpy2.sqrt(gmpy2.mpfr(2)) * gmpy2.mpfr(sigma), gmpy2.mpfr(2) ** BITS

        def below(size: int) -> bool:  # whether U < Phi(-(size + 1/2) / sigma)
            return bits < whole * gmpy2.erfc((gmpy2.mpfr(size) + 0.5) / scale) / 2

        while below(start):
            start += 1
        while start > 0 and not below(start - 1):
            start -= 1
    return start


def distance_rounded(sigma: float) -> float:
    """The total variation between a draw and its law: a unit of the last of 256 places for every integer, and both tails."""
    return (2 * (TAIL_ROUNDED * sigma + 1) + 4) * 2.0**-BITS
