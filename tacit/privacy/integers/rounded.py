"""Integer noise that is a Gaussian, rounded: what it protects costs what the Gaussian costs, and no float is ever added to a
count. To round after adding is post-processing, and counts are integers: round(count + N(0, sigma^2)) is count +
round(N(0, sigma^2)). So whole counts with this noise are exactly as private as real ones with a real Gaussian, and compose
with sampled Gaussians by privacy losses; a discrete Gaussian (arXiv:2004.00010) is priced by Rényi curves alone here. 256
random bits u stand for a uniform number U and the draw is round(sigma Phi^-1(U)). Floats decide only where they surely
agree with that; else 256 bits of the distribution function do."""

import gmpy2
import numpy as np
from scipy.special import ndtr, ndtri

from tacit import check
from tacit.errors import BadInput
from tacit.random import Stream

BITS, WORD = 256, 64
PRECISION = 400  # of the arithmetic that decides close cases: errors stay below 2^-390
SURE = 2.0**-38  # relative: scipy's normal distribution function is a hundred times closer than this
WIDEST = 2.0**30  # standard deviations beyond this have neighbours that floats cannot tell apart
TAIL = 19.0  # P(|N(0, 1)| >= 19) < 2^-256


def draw(sigma: float, stream: Stream, count: int) -> np.ndarray:
    """`count` independent integers round(N(0, sigma^2)), int64. Raises: BadInput for a sigma not above 0, or above 2^30.
    Guarantee: each is within `distance(sigma)` of that law in total variation; no rounding of floats decides it, and all
    randomness is the stream's. Assumes: the stream is cryptographic and used for nothing else. A draw's time depends a
    little on what is drawn.

    >>> from tacit.random import seeded
    >>> draw(2.0, seeded(0)("noise"), 6).tolist()
    [-2, 0, -1, 2, -2, -2]
    """
    check.positive(sigma=sigma)
    if sigma > WIDEST:
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
        sizes[place] = exact((int(tails[place]) << (BITS - WORD)) | more, sigma, start=int(sizes[place]))
    return np.where(upper, sizes, -sizes)


def exact(bits: int, sigma: float, *, start: int = 0) -> int:
    """The magnitude of the draw whose nearer tail has the probability bits / 2^256, decided by 400-bit arithmetic."""
    with gmpy2.context(precision=PRECISION):
        scale, whole = gmpy2.sqrt(gmpy2.mpfr(2)) * gmpy2.mpfr(sigma), gmpy2.mpfr(2) ** BITS

        def below(size: int) -> bool:  # whether U < Phi(-(size + 1/2) / sigma)
            return bits < whole * gmpy2.erfc((gmpy2.mpfr(size) + 0.5) / scale) / 2

        while below(start):
            start += 1
        while start > 0 and not below(start - 1):
            start -= 1
    return start


def distance(sigma: float) -> float:
    """The total variation between a draw and its law: a unit of the last of 256 places for every integer, and both tails.

    >>> distance(1000.0) < 2.0**-200
    True
    """
    return (2 * (TAIL * sigma + 1) + 4) * 2.0**-BITS
