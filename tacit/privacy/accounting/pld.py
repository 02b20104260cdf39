"""The epsilon of sampled Gaussian releases by privacy loss distributions (arXiv:1906.03049v3): masses on a grid, convolved by
Fourier transforms. What rounding may take is bounded and added before the number is inverted; docs/derivations.md shows it in
the seven points that are named here."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft, special

from tacit import check

# The exact price of Gaussian releases, rounded up: delta(epsilon) of a mu-GDP mechanism and its inverse.

ROUNDING = 2.0**-53
SPECIAL = 1e-14  # scipy's erfcx and ndtr are within 2e-15 of the truth, relatively, for every argument used here
FAN = 64  # points that are tried at once when delta is inverted
ROUNDS = 12  # 64^12 = 2^72: until two neighbouring floats enclose the answer


def mu_of(parts: Iterable[tuple[float, float]]) -> float:
    """The mu of Gaussian releases given as (noise multiplier, how often): never below sqrt(sum of count / z^2), Corollary 3.3
    of arXiv:1905.02383v3."""
    return math.hypot(*(math.sqrt(count) / z for z, count in parts)) * (1 + SPECIAL)


def log_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """log delta(epsilon) for epsilon >= 0 and mu > 0, never below the truth. x and y are off by at most `spread`; d log m /
    dt is between -1 and 0 for t >= 0 and d log phi / dx is -x."""
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    spread = 4 * ROUNDING * y
    relative = SPECIAL + spread
    density = 8 * ROUNDING * (1 + x * x) + 2 * np.abs(x) * spread
    log_phi = -x * x / 2 - math.log(2 * math.pi) / 2
    right = np.maximum(x, 0.0)
    mills = log_phi + np.log(_mills(right) * (1 + relative) - _mills(y) * (1 - relative)) + density
    below = special.ndtr(-x) * (1 + relative) - np.exp(log_phi - density) * _mills(y) * (1 - relative)
    return np.minimum(np.where(x >= 0, mills, np.log(np.where(x >= 0, 1.0, below))), 0.0)


def _mills(t: np.ndarray) -> np.ndarray:
    return math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))


def epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 that `delta` allows, to a few units in the last place and never below it; inf where no float
    holds it. Raises: BadInput for a delta that is not between 0 and 1."""
    check.probability(delta=delta)
    if mu == 0:
        return 0.0
    # here x^2 = -2 log delta, so delta(high) <= Phi(-x) <= delta / 2: it holds without being tried
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if not math.isfinite(high):
        return math.inf
    target = math.log(delta) * (1 + 2 * ROUNDING)
    for _ in range(ROUNDS):
        tried = np.linspace(low, high, FAN + 1)
        allowed = log_delta(tried, mu) <= target
        first = int(np.argmax(allowed)) if allowed.any() else FAN
        low, high = float(tried[max(first - 1, 0)]), float(tried[first])
        if first == 0:
            break
    return high


# One sampled Gaussian release as a privacy loss distribution on a grid, rounded up.

LONG = np.longdouble
# 2^-64 on x86; where long doubles are doubles every bound below grows with it. Itself a long double: 1 + 2^-60 is 1 in doubles
ROUNDING_DISCRETISED = np.finfo(LONG).eps / LONG(2)
TAIL = 10.0  # standard deviations of the noise that are on the grid at least; what lies beyond is an infinite loss
OUTWARD = 1 - 16 * ROUNDING  # of a grid point and its image: eight roundings at most, twice covered
TINY = 1e-300  # more than what underflow can take away


@dataclass(frozen=True)
class Losses:
    """Masses on the losses (first + i) * interval and at infinity. Guarantee: the privacy curve of these masses,
    delta(epsilon) = infinite + sum of mass (1 - e^(epsilon - loss)) over losses above epsilon, is nowhere below the true
    one. Their sum may pass 1 by what was rounded up."""

    first: int
    masses: np.ndarray
    infinite: float


@lru_cache(maxsize=64)
def sampled_gaussian(rate: float, z: float, interval: float, tail: float = TAIL) -> tuple[Losses, Losses]:
    """The losses of removing and of adding one unit, `tail` standard deviations of them on the grid. Guarantee: as of
    `Losses`, for both, whatever the interval: a coarser grid only lies higher. Assumes: 0 < rate <= 1 and z > 0."""
    first, last = _ends(rate, z, interval, tail)
    losses = np.arange(first, last + 1) * interval
    excess = _excess(losses, rate=rate, mu=mu_of([(z, 1)])).astype(LONG)
    grown, growth = np.exp(LONG(interval)), np.expm1(LONG(interval))
    steps = np.diff(excess)
    after, before = np.append(steps, LONG(0)), np.append(LONG(0), steps)
    masses = (after - grown * before) / growth
    masses[0] -= excess[0]
    masses[-first] += 1  # where the loss is 0: the curve of releasing nothing
    # each mass comes of five roundings of numbers this large
    rounded = 5 * ROUNDING_DISCRETISED * ((np.abs(after) + grown * np.abs(before)) / growth + np.abs(masses) + excess)
    masses = np.maximum(masses, 0) + rounded  # more mass is a higher curve
    weights = np.exp(-np.arange(first, last + 1).astype(LONG) * LONG(interval))
    turned = masses * weights * (1 + ROUNDING_DISCRETISED * (8 + 2 * np.abs(losses)))
    beyond = 2 * float(excess[0] * weights[0]) + TINY
    return Losses(first, masses, float(excess[-1]) + TINY), Losses(-last, np.flip(turned), beyond)


def _ends(rate: float, z: float, interval: float, tail: float) -> tuple[int, int]:
    widest = 0.5 / z / z + tail / z
    high = float(np.logaddexp(math.log1p(-rate), math.log(rate) + widest)) if rate < 1 else widest
    low = math.log1p(rate * math.expm1(-widest)) if rate < 1 else -widest
    return math.floor(low / interval) - 1, math.ceil(high / interval) + 1


def _excess(losses: np.ndarray, *, rate: float, mu: float) -> np.ndarray:
    """How far the curve of removing one unit is above max(0, 1 - e^epsilon), rounded up."""
    t = np.abs(losses)
    above, grows = losses >= 0, np.exp(-t)
    small = np.minimum(t, 1.0)
    # log(1 + (e^t - 1)/q), towards 0, where delta_0 is larger
    up = np.where(t > 1, t - math.log(rate) + np.log1p((rate - 1) * grows), np.log1p(np.expm1(small) / rate * OUTWARD))
    reached = np.maximum(np.expm1(-t) / rate * OUTWARD, -1.0)
    with np.errstate(divide="ignore"):
        down = np.log1p(reached) if rate < 1 else -t
    moved = np.where(above, up, -down) * OUTWARD
    held = np.isfinite(moved) & (above | (t * OUTWARD < -np.log1p(-rate) if rate < 1 else True))
    moved = np.where(held, moved, 0.0)
    excess = rate * np.exp(log_delta(moved, mu)) * np.where(above, 1.0, np.exp(-moved)) / OUTWARD**2
    return np.where(held, excess, 0.0)


TAIL_COMPOSED = 1e-20
STEEPEST = 300.0  # the largest exponent of a tilt
TILTS, LOOSE = 12, 1e-3  # how many are tried, each half the one before, while rounding may take more of delta than this
BUTTERFLY, PRODUCT = 8, 3  # units u of point 4 (4 + 2.9 + 1) and of one complex product (2.9)
NEGLIGIBLE = -100.0  # log of a frequency that is left out, and counted whole as an error
MOST = 2**19  # masses of a composition; beyond, the grid is made coarser, which costs precision and nothing else
LARGEST_LOSS = 0.9 * math.log(np.finfo(np.float64).max) if np.finfo(LONG).maxexp < 2000 else 10_000.0

POINTS_PER_STD = 20  # of one step's loss: within 0.1 % of a 10 times finer grid
COARSEST, FINEST = 5e-3, 1e-5
FEW, FINER = 20, 4  # intervals below which an epsilon is computed again on a finer grid, and how often that may be
WIDEST = 1.0  # a grid that says nothing any more
MOST_POINTS = 200_000  # of one step: a tiny noise multiplier spreads the loss over thousands
RAREST, NOISIEST = 1e-12, 1e8  # a smaller rate or more noise costs no more than this, which floats can hold

Parts = tuple[tuple[float, float, int], ...]  # (sampling rate, noise multiplier, how often)
Steps = list[tuple[Losses, int]]  # one direction (adding or removing) of each
Centred = list[tuple[np.ndarray, np.ndarray, int]]  # (masses, losses in intervals from their centre, how often)


@dataclass(frozen=True)
class Tilted:
    """One direction of a composition, its masses multiplied by e^(tilt loss) and scaled: loss = whole number of intervals.
    Guarantee: the sum's mass at loss x is at most the tilted masses' convolution there times e^(log_scale - tilt x) (1 +
    off)."""

    steps: Steps
    tilt: float
    log_scale: np.longdouble
    off: float  # relative, of log_scale's own roundings
    lost: float  # the mass at infinity


def epsilon_composed(parts: Parts, delta: float) -> float:
    """An epsilon that holds at `delta`, within about 0.1 % of the smallest, every rounding included; inf stands for "no
    statement": the losses are too large for floats or a grid of MOST masses, or rounding may exceed delta. Assumes: 0 < rate
    <= 1, z > 0, counts of at least 1 and 0 < delta < 1 (price.py sees to that)."""
    parts = tuple((max(rate, RAREST), min(z, NOISIEST), count) for rate, z, count in parts)
    tail = _tail(sum(count for _, _, count in parts), delta)
    if 2 * max(_widest(z) for _, z, _ in parts) > LARGEST_LOSS:
        return math.inf
    finest, best = max(_longest(rate, z, tail) for rate, z, _ in parts) / MOST_POINTS, math.inf
    interval = max(min(_interval(rate, z) for rate, z, _ in parts), finest)
    for _ in range(FINER):
        best = min(best, _on_grid(parts, tail, interval, delta))
        if best >= FEW * interval or interval <= finest:
            break
        interval = max(interval / 8, finest)  # of a few intervals: which one of them it is would be a matter of luck
    return best


def _on_grid(parts: Parts, tail: float, interval: float, delta: float) -> float:
    while interval <= WIDEST:
        both = [(sampled_gaussian(rate, z, interval, tail), count) for rate, z, count in parts]
        ways = [[(pair[way], count) for pair, count in both] for way in (0, 1)]
        tilts = [_reach(_centred(steps), delta)[1] for steps in ways]
        windows = [_window(_tilted(steps, tilt).steps) for steps, tilt in zip(ways, tilts, strict=True)]
        size = max(high - low + 1 for _, low, high in windows)
        if size <= MOST:
            return max(_least(steps, tilt, interval, delta) for steps, tilt in zip(ways, tilts, strict=True))
        interval *= 1.1 * size / MOST
    return math.inf


def _least(steps: Steps, tilt: float, interval: float, delta: float) -> float:
    """The least epsilon over tilts, of which each gives one that holds. The next is tried only where rounding weighs in this
    one's. Where a step is rarely sampled, Chernoff's tilt can lift losses that hardly happen above those that decide about
    delta."""
    best = math.inf
    for _ in range(TILTS):
        way = _tilted(steps, tilt)
        window = _window(way.steps)
        if window[2] - window[1] < MOST:
            found, rounded = _one_way(way, window, interval, delta)
            best = min(best, found)
            if rounded < LOOSE * delta:
                break
        tilt /= 2
    return best


def _tail(count: int, delta: float) -> float:
    return max(TAIL, math.ceil(math.sqrt(2 * (math.log(count) - math.log(delta)))) + 2.0)


def _widest(z: float) -> float:
    return 0.5 / z / z + 12 / z


def _longest(rate: float, z: float, tail: float) -> float:
    """The largest loss of one step on its grid: log(1 - q + q e^x), x that of a step without sampling."""
    x = 0.5 / z / z + tail / z
    return math.log1p(rate * math.expm1(x)) if x < STEEPEST else x


def _interval(rate: float, z: float) -> float:
    """A grid fine enough for one step's loss, whose standard deviation is about q sqrt(exp(1/z^2) - 1)."""
    std = 1 / z if rate == 1 else rate * math.sqrt(math.expm1(min(1 / z / z, 50.0)))
    return max(FINEST, min(COARSEST, std / POINTS_PER_STD), _widest(z) / MOST_POINTS)


def _tilted(steps: Steps, tilt: float) -> Tilted:
    tilted, log_scale, size = [], LONG(0), LONG(0)
    for losses, count in steps:
        at = losses.first + np.arange(len(losses.masses))  # |tilt at| <= STEEPEST: a loss of 0 is on every grid
        masses = losses.masses * np.exp(LONG(tilt) * at)
        scale = masses.sum()
        masses = masses / scale * (1 + (2 * STEEPEST + 8) * ROUNDING_DISCRETISED)
        tilted.append((Losses(losses.first, masses, 0.0), count))
        log_scale, size = log_scale + count * np.log(scale), size + count * (abs(np.log(scale)) + 1)
    log_total = sum(count * math.log(_total(losses)) for losses, count in steps)
    lost = (
        1.01 * math.exp(log_total) * sum(count * losses.infinite for losses, count in steps) if log_total < 1 else 1.0
    )
    return Tilted(tilted, tilt, log_scale, float(8 * float(size) * ROUNDING_DISCRETISED), lost)


@np.errstate(over="ignore", invalid="ignore")
def _one_way(way: Tilted, window: tuple[int, int, int], interval: float, delta: float) -> tuple[float, float]:
    """An epsilon for one direction, and how much of delta the transform's rounding may take there."""
    centre, low, high = window
    start = min(max(low, 1 - centre), high)  # an epsilon is not negative: losses up to 0 cost nothing
    at = np.arange(centre + start, centre + high + 1).astype(LONG)
    losses = at * LONG(interval)
    off = way.off + 8 * float(abs(at[-1]) + abs(at[0])) * way.tilt * ROUNDING_DISCRETISED
    if losses[-1] > LARGEST_LOSS or off > 1e-3:
        return math.inf, math.inf
    back = np.exp(way.log_scale - LONG(way.tilt) * at) * (1 + 2 * off)
    highest = sum(count * (losses.first + len(losses.masses) - 1) for losses, count in way.steps)
    lost = way.lost + (1.01 * TAIL_COMPOSED * float(back[-1]) if centre + high < highest else 0.0)
    if not lost < delta:
        return math.inf, math.inf
    if at[-1] <= 0:
        return 0.0, 0.0
    masses, floor = _convolved(way.steps, low, high)
    found = _invert(
        losses, masses[start - low :] * back, lost, delta, least=float(losses[0]) if low > 1 - centre else 0.0
    )
    return found, floor * float(back[losses >= found].sum())


def _total(losses: Losses) -> float:
    return max(1.0, float(losses.masses.sum() + LONG(losses.infinite)) * (1 + 1e-15))


def _centre(losses: Losses) -> int:
    at = np.arange(len(losses.masses))
    return round(float((losses.masses * at).sum() / losses.masses.sum()))


def _centred(steps: Steps) -> Centred:
    return [(losses.masses.astype(float), np.arange(len(losses.masses)) - _centre(losses), n) for losses, n in steps]


def _window(steps: Steps) -> tuple[int, int, int]:
    """(centre, low, high): the sum's losses, in intervals, are within centre + [low, high] but for TAIL on each side."""
    centred = _centred(steps)
    centre = sum(n * (losses.first + _centre(losses)) for losses, n in steps)
    high = min(_reach(centred, TAIL_COMPOSED)[0], sum(n * int(at[-1]) for _, at, n in centred))
    low = min(_reach(centred, TAIL_COMPOSED, way=-1)[0], sum(n * -int(at[0]) for _, at, n in centred))
    return centre, -max(low, 0), max(high, 0)


def _reach(centred: Centred, tail: float, way: int = 1) -> tuple[int, float]:
    """How far from its centre the sum gets with more than `tail`, and the tilt that says so. By Chernoff's bound, at tilts
    that are halved while that helps."""
    spread = sum(n * float(mass @ at**2.0) for mass, at, n in centred)
    # twice the best tilt for a Gaussian, or the steepest
    tilt = min(
        2 * math.sqrt(-2 * math.log(tail) / max(spread, TAIL_COMPOSED)),
        STEEPEST / max(len(mass) for mass, _, _ in centred),
    )
    best, at, tilt = math.inf, tilt, way * tilt
    while True:
        reach = (_log_moment(centred, tilt) - math.log(tail)) / abs(tilt)
        if reach >= best:
            return math.ceil(best), at
        best, at, tilt = reach, tilt, tilt / 2


def _log_moment(centred: Centred, tilt: float) -> float:
    """log E exp(tilt (S - centre)) of the sum S, rounded up."""
    total = 0.0
    for mass, at, n in centred:
        rounded = 2.0**-52 * (len(mass) + abs(tilt) * len(mass) + 16)
        total += n * (math.log(float(mass @ np.exp(tilt * at))) + rounded)  # |tilt at| <= STEEPEST: nothing overflows
    return total


def _convolved(steps: Steps, low: int, high: int) -> tuple[np.ndarray, float]:
    """The masses of the sum at centre + low .. centre + high, each rounded up by what it may be off (points 4 to 6), and that."""
    size = 2 ** (max(high - low + 1, *(len(losses.masses) for losses, _ in steps)) - 1).bit_length()
    transform = BUTTERFLY * (size.bit_length() - 1) * ROUNDING_DISCRETISED
    spectra, log_size, drift = [], np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for losses, count in steps:
        ring = np.zeros(size, LONG)
        ring[(np.arange(len(losses.masses)) - _centre(losses)) % size] = losses.masses
        spectrum = np.asarray(fft.rfft(ring))
        off = 1.01 * transform * float(losses.masses.sum())
        largest = np.abs(spectrum).astype(float) + off
        log_size += count * (np.log(largest) + 2.0**-50)  # a few roundings of doubles, upwards
        drift += count * (off / largest + PRODUCT * ROUNDING_DISCRETISED)
        spectra.append((spectrum, count))
    kept, sizes = log_size > NEGLIGIBLE, np.exp(log_size)
    product = np.zeros(size // 2 + 1, np.clongdouble)
    product[kept] = math.prod(_power(spectrum[kept], count) for spectrum, count in spectra)
    wrong = np.where(kept, np.expm1(np.minimum(drift, 100)), 1.0) @ sizes + transform * sizes.sum()
    masses = np.asarray(fft.irfft(product, size))[np.arange(low, high + 1) % size]
    floor = float(2.1 * wrong / size)
    return np.maximum(masses, 0) + floor, floor


def _power(base: np.ndarray, count: int) -> np.ndarray:
    result = np.ones_like(base)
    while count:
        result = result * base if count & 1 else result
        count >>= 1
        base = base * base if count else base
    return result


def _invert(losses: np.ndarray, masses: np.ndarray, lost: float, delta: float, *, least: float = 0.0) -> float:
    """The smallest epsilon >= least with lost + sum over losses > epsilon of mass (1 - e^(epsilon - loss)) <= delta."""
    sums = 4 * (len(masses) + float(losses[-1]) + 4) * ROUNDING_DISCRETISED
    upper = np.cumsum(masses[::-1])[::-1] * (1 + sums)
    shrunk = np.exp(-losses)
    lower = np.cumsum((masses * shrunk)[::-1])[::-1] * (1 - sums)
    if least == 0 and lost + upper[0] - lower[0] <= delta:
        return 0.0
    allowed = lost + upper - lower / shrunk <= delta
    if not allowed.any():
        return float(losses[-1]) * (1 + 1e-12)  # beyond the last loss only `lost` is left
    first = int(np.argmax(allowed))
    crossing = np.log((lost + upper[first] - delta) / lower[first])
    return float(np.clip(crossing, losses[first - 1] if first else least, losses[first])) * (1 + 1e-12) + 8 * float(
        ROUNDING_DISCRETISED
    )
