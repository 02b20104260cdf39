"""The epsilon of sampled Gaussian releases by privacy loss distributions, with a proven bound on every rounding.

The losses of independent releases add, so their masses convolve (Koskela, Jälkö, Honkela 2020, arXiv:1906.03049v3): one
Fourier transform each, powers, one transform back. What the computed number may miss is added before it is inverted:

1. One step. Its curve is at most `error` above its masses' (tacit/privacy/discretised.py). The curve of a composition is an
   average, over the losses of all the other steps, of the curve of one: exchanging the steps one by one, T of them are off
   by at most T error times the others' total mass.
2. Window. Losses outside it have a mass below TAIL by Chernoff's bound, and count as infinite. The transform is circular:
   what leaves on one side comes in at the other, where it only adds.
3. Transform. Along the only path from an input to an output every butterfly is one product and one sum, so that each
   output is off by at most BUTTERFLY log2(N) u times the sum of |inputs| (Higham 2002, Accuracy and Stability, section 24.1:
   a weight off by 4 u, a product by sqrt(2) gamma_2, a sum by u; N is a power of two). So |f' - f| <= d in each frequency.
4. Powers. |f'^T - f^T| <= T d a^(T-1) with a = |f'| + d; a power by squaring is T - 1 products of relative error PRODUCT u.
   Together, for several kinds of steps: at most the product of the a^T times expm1(sum of T (d / a + PRODUCT u)).
5. Back. Each mass is off by at most the mean of the frequencies' errors, and by 3 again. That bound is added to every mass
   (and a negative mass is 0 first: the truth is not below 0).
6. Sums. n terms of one sign have a relative error of at most n u.
"""

import math

import numpy as np
from scipy import fft

from tacit.privacy.discretised import LONG, ROUNDING, Losses, sampled_gaussian

TAIL = 1e-20
BUTTERFLY, PRODUCT = 8, 3  # units u of point 3 (4 + 2.9 + 1) and of one complex product (2.9)
NEGLIGIBLE = -100.0  # log of a frequency that is left out, and counted whole as an error
MOST = 2**19  # masses of a composition; beyond, the grid is made coarser, which costs precision and nothing else
LARGEST_LOSS = 0.9 * math.log(np.finfo(np.float64).max) if np.finfo(LONG).maxexp < 2000 else 10_000.0

POINTS_PER_STD = 20  # of one step's loss: within 0.1 % of a 10 times finer grid
COARSEST, FINEST = 5e-3, 1e-5
WIDEST = 1.0  # a grid that says nothing any more
MOST_POINTS = 200_000  # of one step: a tiny noise multiplier spreads the loss over thousands
RAREST, NOISIEST = (
    1e-12,
    1e8,
)  # a smaller rate or more noise costs no more than this: sound, and within range of the floats

Parts = tuple[tuple[float, float, int], ...]  # (sampling rate, noise multiplier, how often)
Steps = list[tuple[Losses, int]]  # one direction (adding or removing) of each


def epsilon(parts: Parts, delta: float) -> float:
    """An epsilon that holds at `delta`, within about 0.1 % of the smallest; inf where rounding may exceed delta."""
    parts = tuple((max(rate, RAREST), min(z, NOISIEST), count) for rate, z, count in parts)
    widest = max(_widest(z) for _, z, _ in parts)
    if 2 * widest > LARGEST_LOSS:
        return math.inf
    interval = max(min(_interval(rate, z) for rate, z, _ in parts), widest / MOST_POINTS)
    while interval <= WIDEST:
        both = [(sampled_gaussian(rate, z, interval), count) for rate, z, count in parts]
        ways: list[Steps] = [[(pair[way], count) for pair, count in both] for way in (0, 1)]
        windows = [_window(steps) for steps in ways]
        size = max(high - low + 1 for _, low, high in windows)
        if size <= MOST:
            return max(_one_way(steps, window, interval, delta) for steps, window in zip(ways, windows, strict=True))
        interval *= 1.1 * size / MOST
    return math.inf


def _widest(z: float) -> float:
    return 0.5 / z / z + 12 / z


def _interval(rate: float, z: float) -> float:
    """A grid fine enough for one step's loss, whose standard deviation is about q sqrt(exp(1/z^2) - 1)."""
    std = 1 / z if rate == 1 else rate * math.sqrt(math.expm1(min(1 / z / z, 50.0)))
    return max(FINEST, min(COARSEST, std / POINTS_PER_STD), _widest(z) / MOST_POINTS)


def _one_way(steps: Steps, window: tuple[int, int, int], interval: float, delta: float) -> float:
    centre, low, high = window
    log_whole = sum(count * math.log(_total(losses)) for losses, count in steps)
    lost = 2 * TAIL + 1.01 * math.exp(min(log_whole, 700.0)) * sum(
        count * (losses.infinite + losses.error) for losses, count in steps
    )
    if log_whole > 1 or not lost < delta:
        return math.inf
    start = max(low, 1 - centre)  # an epsilon is not negative: losses up to 0 cost nothing
    if start > high:
        return 0.0
    losses = np.arange(centre + start, centre + high + 1).astype(LONG) * LONG(interval)
    if losses[-1] > LARGEST_LOSS:
        return math.inf
    return _invert(losses, _convolved(steps, low, high)[start - low :], lost, delta)


def _total(losses: Losses) -> float:
    return max(1.0, float(losses.masses.sum() + LONG(losses.infinite)) * (1 + 1e-15))


def _centre(losses: Losses) -> int:
    at = np.arange(len(losses.masses))
    return round(float((losses.masses * at).sum() / losses.masses.sum()))


def _window(steps: Steps) -> tuple[int, int, int]:
    """(centre, low, high): the sum's losses, in intervals, are within centre + [low, high] but for TAIL on each side."""
    placed = [(losses.masses.astype(float), np.arange(len(losses.masses)) - _centre(losses), n) for losses, n in steps]
    centre = sum(n * (losses.first + _centre(losses)) for losses, n in steps)
    spread = sum(n * float(mass @ at**2.0) for mass, at, n in placed)
    # twice the best tilt for a Gaussian, or what makes the rarest loss, about e^-60, count
    tilt = min(2 * math.sqrt(-2 * math.log(TAIL) / max(spread, TAIL)), 60 / max(len(mass) for mass, _, _ in placed))
    high = min(_reach(placed, tilt), sum(n * int(at[-1]) for _, at, n in placed))
    low = min(_reach(placed, -tilt), sum(n * -int(at[0]) for _, at, n in placed))
    return centre, -max(low, 0), max(high, 0)


def _reach(placed: list[tuple[np.ndarray, np.ndarray, int]], tilt: float) -> int:
    """How far from its centre the sum gets with more than TAIL: Chernoff's bound, at tilts halved while that helps."""
    best = math.inf
    while True:
        found = (_log_moment(placed, tilt) - math.log(TAIL)) / abs(tilt)
        if found >= best:
            return math.ceil(best)
        best, tilt = found, tilt / 2


def _log_moment(placed: list[tuple[np.ndarray, np.ndarray, int]], tilt: float) -> float:
    """log E exp(tilt (S - centre)) of the sum S, rounded up."""
    total = 0.0
    for mass, at, n in placed:
        rounded = 2.0**-52 * (len(mass) + abs(tilt) * len(mass) + 16)
        total += n * (
            math.log(float(mass @ np.exp(tilt * at))) + rounded
        )  # |tilt * at| <= 60: nothing over- or underflows
    return total


def _convolved(steps: Steps, low: int, high: int) -> np.ndarray:
    """The masses of the sum at centre + low .. centre + high, each rounded up by what it may be off (points 3 to 5)."""
    size = 2 ** (max(high - low + 1, *(len(losses.masses) for losses, _ in steps)) - 1).bit_length()
    transform = BUTTERFLY * (size.bit_length() - 1) * ROUNDING
    spectra, log_size, drift = [], np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for losses, count in steps:
        ring = np.zeros(size, LONG)
        ring[(np.arange(len(losses.masses)) - _centre(losses)) % size] = losses.masses
        spectrum = np.asarray(fft.rfft(ring))
        off = 1.01 * transform * float(losses.masses.sum())
        largest = np.abs(spectrum).astype(float) + off
        log_size += count * (np.log(largest) + 2.0**-50)  # a few roundings of doubles, upwards
        drift += count * (off / largest + PRODUCT * ROUNDING)
        spectra.append((spectrum, count))
    kept, sizes = log_size > NEGLIGIBLE, np.exp(log_size)
    whole = np.zeros(size // 2 + 1, np.clongdouble)
    whole[kept] = math.prod(_power(spectrum[kept], count) for spectrum, count in spectra)
    wrong = np.where(kept, np.expm1(np.minimum(drift, 100)), 1.0) @ sizes + transform * sizes.sum()
    masses = np.asarray(fft.irfft(whole, size))[np.arange(low, high + 1) % size]
    return np.maximum(masses, 0) + 2.1 * wrong / size


def _power(base: np.ndarray, count: int) -> np.ndarray:
    result = np.ones_like(base)
    while count:
        result = result * base if count & 1 else result
        count >>= 1
        base = base * base if count else base
    return result


def _invert(losses: np.ndarray, masses: np.ndarray, lost: float, delta: float) -> float:
    """The smallest epsilon >= 0 with lost + sum over losses > epsilon of mass (1 - e^(epsilon - loss)) <= delta."""
    sums = 4 * (len(masses) + float(losses[-1]) + 4) * ROUNDING
    upper = np.cumsum(masses[::-1])[::-1] * (1 + sums)
    shrunk = np.exp(-losses)
    lower = np.cumsum((masses * shrunk)[::-1])[::-1] * (1 - sums)
    if lost + upper[0] - lower[0] <= delta:
        return 0.0
    kept = lost + upper - lower / shrunk <= delta
    if not kept.any():
        return float(losses[-1]) * (1 + 1e-12)  # beyond the last loss only `lost` is left
    first = int(np.argmax(kept))
    found = np.log((lost + upper[first] - delta) / lower[first])
    return float(np.clip(found, losses[first - 1] if first else 0, losses[first])) * (1 + 1e-12) + 8 * ROUNDING
