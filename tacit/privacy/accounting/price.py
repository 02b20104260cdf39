"""From what was released to an epsilon, never below the truth; and from a budget to the noise, or the releases, that keep it.
Gaussian releases compose in closed form; with sampling the least of privacy losses (pld.py), Rényi curves (rdp.py) and the
closed form counts; integer sums have Rényi curves alone. Of releases about sides of a split the largest price counts."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import product
from numbers import Integral

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import events, pld, rdp
from tacit.privacy.accounting.events import EpsilonDeltaDpEvent, SideDpEvent

RESERVES = (1e-6, 1e-3, 0.5)  # shares of delta that may be set aside for slack; the first that suffices is used
MOST_RELEASES = 2**53  # counts up to here are exact as floats
MOST_SPLITS = 3  # in one composition; with more, all are taken as if every record were on every side

Composition = tuple[tuple[DpEvent, int], ...]
Bound = tuple[float, str]  # an epsilon, and what it was computed by


def counted(event: DpEvent) -> tuple[DpEvent, int]:
    """An event without the self-compositions around it, and how often it happens. Raises: BadInput as `release_count`.

    >>> counted(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 7))
    (GaussianDpEvent(noise_multiplier=1.0), 7)
    """
    times = 1
    while isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, times = event.event, release_count(times * release_count(event.count))
    return event, times


def release_count(count: int) -> int:
    """A number of releases. Raises: BadInput unless it is whole, from 0 to 2^53: a negative one would pay charges back."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= MOST_RELEASES:
        raise BadInput(f"Expected a whole number of releases between 0 and 2^53, got {count!r}.")
    return int(count)


def alone(event: DpEvent) -> DpEvent:
    """What an event is, counts around it or not, to whoever sees one client's report alone: of a sum of shares, one share.
    Raises: BadInput for an event that has no price."""
    inner, times = counted(event)
    return dp_accounting.SelfComposedDpEvent(events.kind_of(inner).alone(inner), times)


def compose(releases: Iterable[tuple[DpEvent, int]]) -> Composition:
    """Counts equal events in total, also inside self-compositions: the order of releases does not change the price. Assumes:
    events and counts were fixed beforehand. Raises: BadInput for a count that is no whole number from 0 to 2^53."""
    counts: Counter[DpEvent] = Counter()
    for event, count in releases:
        inner, times = counted(event)
        counts[inner] = release_count(counts[inner] + release_count(release_count(count) * times))
    return tuple(sorted(((event, count) for event, count in counts.items() if count), key=repr))


def epsilon(composition: Composition, *, delta: float) -> float:
    """The epsilon at `delta` of everything in the composition; 0 for nothing, inf where no bound says anything. Guarantee:
    not below the smallest that holds for the events' own change, every rounding included. Raises: BadInput for events without
    a price.

    >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    >>> round(epsilon(((step, 150),), delta=1e-5), 2)
    4.18
    """
    return _priced(composition, delta=delta)[0]


def method(composition: Composition, *, delta: float) -> str:
    """The name of the bound that `epsilon` took: the least of those that apply. Raises as `epsilon`."""
    return named([methods(composition, delta=delta)])


def methods(composition: Composition, *, delta: float) -> dict[str, str]:
    """The bound that `epsilon` took for the records of every side; under "" where all are on one. Raises as `epsilon`."""
    return dict(_priced(composition, delta=delta)[1])


def named(clients: Iterable[dict[str, str]]) -> str:
    """The bounds of many clients (`methods`) in words: each once, and for whom it was taken where that differs by the side."""
    found: dict[str, set[str]] = {}
    for one in clients:
        for side, name in one.items():
            found.setdefault(side, set()).add(name)
    words = {side: " and ".join(sorted(names)) for side, names in sorted(found.items(), reverse=True)}
    if len(set(words.values())) <= 1:
        return next(iter(words.values()), "")
    return " and ".join(f"{names} for records {side}" if side else names for side, names in words.items())


@lru_cache(maxsize=100_000)
def _priced(composition: Composition, *, delta: float) -> tuple[float, tuple[tuple[str, str], ...]]:
    composition = compose(composition)
    stated = composition and all(isinstance(event, EpsilonDeltaDpEvent) for event, _ in composition)
    if delta != 0 or not stated:  # nothing else has a price at delta = 0
        check.probability(delta=delta)
    if not composition:
        return 0.0, (("", "nothing released"),)
    bounds = [(side, *_in_total(one, delta)) for side, one in _by_side(composition)]
    return max(spent for _, spent, _ in bounds), tuple((side, name) for side, _, name in bounds)


def _by_side(composition: Composition) -> list[tuple[str, Composition]]:
    """What a record can have paid for, for every way in which its coins may have fallen. Guarantee: whatever sides a record
    is on, one of these holds every release that is about it."""
    splits: dict[str, set[str]] = {}
    for event, _ in composition:
        if isinstance(event, SideDpEvent):
            splits.setdefault(event.split, set()).add(event.side)
    if len(splits) > MOST_SPLITS:
        sides = {side for split in splits.values() for side in split}
        return [(" and ".join(sorted(sides)), composition)]
    found = []
    for sides in product(*(sorted(splits[split]) for split in sorted(splits))):
        mine = set(zip(sorted(splits), sides, strict=True))
        paid = (
            one for one in composition if not isinstance(one[0], SideDpEvent) or (one[0].split, one[0].side) in mine
        )
        found.append((" and ".join(sorted(set(sides))), tuple(paid)))
    return found


def _in_total(composition: Composition, delta: float) -> Bound:
    """With releases of which an (epsilon, delta) is stated: their deltas are added as they are, and of what is left of `delta`
    the lesser of two bounds is taken: the sum of epsilons (basic composition), and one Rényi price of everything."""
    stated = [(event, count) for event, count in composition if isinstance(event, EpsilonDeltaDpEvent)]
    if not stated:
        return _unstated(composition, delta)
    others = tuple(one for one in composition if one not in stated)
    left = _down(Fraction(delta) - sum(Fraction(event.delta) * count for event, count in stated))
    if left < 0 or (others and left == 0):
        return math.inf, "no bound"
    rest, name = _unstated(others, left) if others else (0.0, "")
    if math.isinf(rest):
        return math.inf, "no bound"
    basic = -_down(-sum((Fraction(event.epsilon) * count for event, count in stated), Fraction(rest)))
    sums = basic, " and ".join(filter(None, [name, "basic composition"]))
    if left == 0:
        return sums
    pure = tuple((EpsilonDeltaDpEvent(event.epsilon, 0.0), count) for event, count in stated)
    return min(sums, _unstated((*pure, *others), left))


def _down(exact: Fraction) -> float:
    """The number as a float that is not above it."""
    try:
        near = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    return math.nextafter(near, -math.inf) if near > exact else near


def _unstated(composition: Composition, delta: float) -> Bound:
    """Slack is paid for by (1 + e^epsilon) of it, out of a part of delta that is set aside; inf where it eats delta."""
    kinds = [(events.kind_of(event), event, count) for event, count in composition]
    bound = _rdp if any(kind.gaussian is None for kind, _, _ in kinds) else _sampled
    slack = sum(count * kind.slack(event) for kind, event, count in kinds)
    if slack == 0:
        return bound(composition, delta)
    for reserve in RESERVES:
        spent, name = bound(composition, delta * (1 - reserve))
        if spent + math.log1p(math.exp(-spent)) + math.log(slack) <= math.log(delta * reserve):
            return spent, name
    return math.inf, "no bound"


def _sampled(composition: Composition, delta: float) -> Bound:
    parts = [(*events.kind_of(event).gaussian(event), count) for event, count in composition]  # type: ignore[misc]
    unsampled = pld.epsilon(pld.mu_of((z, count) for _, z, count in parts), delta), "GDP (closed form)"
    unsampled_parts, drawn = ([part for part in parts if (part[0] == 1) == full] for full in (True, False))
    if not drawn or unsampled[0] == 0:
        return unsampled
    if unsampled_parts:  # they are one Gaussian release
        drawn.append((1.0, (1 - 1e-15) / pld.mu_of((z, count) for _, z, count in unsampled_parts), 1))
    by_losses = pld.epsilon_composed(tuple(drawn), delta), "PLD (connect the dots, numerical error bounded)"
    whole = np.sum([count * rdp.poisson_whole(rate, z) for rate, z, count in drawn], axis=0)
    by_whole_orders = rdp.epsilon(rdp.WHOLE, whole, delta), "RDP (rounded up)"
    if math.isinf(by_losses[0]):
        return min(_rdp(composition, delta), by_whole_orders, unsampled)
    return min(by_losses, by_whole_orders, unsampled)


def _rdp(composition: Composition, delta: float) -> Bound:
    parts = [(events.kind_of(event), event, count) for event, count in composition]
    curve = np.sum([count * kind.divergences(event) for kind, event, count in parts], axis=0)
    return rdp.epsilon(rdp.ORDERS, curve, delta), " and ".join(sorted({kind.bound for kind, _, _ in parts}))


def to_text(event: DpEvent) -> str:
    """A round event as one line of JSON for the ledger; `from_text` is its inverse. Raises: BadInput for what has no price,
    and for a kind that writes words which are the ledger's own."""
    inner, steps = counted(event)
    kind = events.kind_of(inner)
    record = kind.to_record(inner)
    if events.OURS & record.keys():
        raise BadInput(f'The event {kind.name!r} may not write "event" or "steps" itself: use other words.')
    return json.dumps({"event": kind.name, **record, "steps": steps})


@lru_cache(maxsize=100_000)
def from_text(text: str) -> DpEvent:
    """The event that `to_text` wrote, exactly. Nothing in the text is imported or run; only registered kinds are read.
    Raises: BadInput for anything else, a negative or broken number of steps included: it would pay charges back."""
    try:
        record = json.loads(text)
        kind = events.kind_named(record.get("event"))
        if release_count(record["steps"]) == 0:
            raise BadInput("This ledger holds an event of no steps at all.")
        one = kind.from_record({key: value for key, value in record.items() if key not in events.OURS})
        return dp_accounting.SelfComposedDpEvent(one, record["steps"])
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"This ledger holds an event that cannot be read: {str(text)[:80]!r}.") from error


# Calibration: what is returned was itself priced, so that no promise rests on interpolation. Few budgets are solved one by
# one to 0.1 %; many share a grid of multipliers 1 % apart, each node priced at most once.

TOLERANCE = 1e-3
GRID = math.log(1.01)
FEW = 48  # up to here, solving one by one is cheaper than the grid
SMALLEST, LARGEST = 1e-2, 1e6  # multipliers searched

Cost = Callable[[float], float]  # the epsilon at a noise multiplier: falling


def sampled_gaussian(z: float, rate: float) -> DpEvent:
    """A Gaussian release with multiplier z of a Poisson sample at this rate; at rate 1 of everything."""
    one = dp_accounting.GaussianDpEvent(z)
    return one if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, one)


@lru_cache(maxsize=100_000)
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    beside: Composition = (),
) -> float:
    """The smallest z, to 0.1 %, for which `steps` sampled Gaussian releases cost at most `epsilon`, with those `beside` them.
    Guarantee: price(z) <= epsilon was computed for the z that is returned. Raises: BadInput where no multiplier up to 1e6 can
    do it."""
    return smallest(_cost(delta, sampling_rate, steps, beside), epsilon=epsilon)


def noise_multipliers(epsilons: np.ndarray, *, delta: float, sampling_rate: float, steps: int) -> np.ndarray:
    """`noise_multiplier` for each of many budgets; with more than 48 different ones, at most 1 % larger than needed.
    Guarantee: price(z_i) <= epsilon_i for every i, each computed. Raises: as `noise_multiplier`; NaN and infinity are no
    budgets."""
    targets, inverse = np.unique(np.asarray(epsilons, dtype=float), return_inverse=True)
    ends = targets[[0, -1]] if len(targets) else ()  # the least, and the last: where NaN and infinity are sorted to
    for target in ends:
        check.positive(epsilon=float(target))
    if len(targets) <= FEW:
        settings = {"delta": delta, "sampling_rate": sampling_rate, "steps": steps}
        solved = [noise_multiplier(epsilon=float(target), **settings) for target in targets]
        return np.array(solved)[inverse]
    return on_grid(_cost(delta, sampling_rate, steps), targets)[inverse]


def _cost(delta: float, sampling_rate: float, steps: int, beside: Composition = ()) -> Cost:
    check.probability(delta=delta)
    check.rate(sampling_rate=sampling_rate)
    check.at_least(1, steps=steps)

    def cost(z: float) -> float:
        return epsilon((*beside, (sampled_gaussian(z, sampling_rate), steps)), delta=delta)

    return cost


def smallest(cost: Cost, *, epsilon: float) -> float:
    """The smallest z, to 0.1 %, with cost(z) <= epsilon, for any cost that falls with the noise; infinite is no price.
    Guarantee: cost(z) <= epsilon was computed for the z that is returned. Raises: BadInput where no z up to 1e6 keeps
    epsilon."""
    check.positive(epsilon=epsilon)
    low, high = _bracket(cost, epsilon)
    at_low, at_high = cost(low), cost(high)
    while high / low > 1 + TOLERANCE:  # secant steps in log-log inside the bracket
        slope = math.log(at_high / at_low) / math.log(high / low) if 0 < at_high < at_low < math.inf else 0.0
        guess = low * math.exp(math.log(epsilon / at_low) / slope) if slope < 0 else math.sqrt(low * high)
        # a step just past the secant's root, kept off both ends, closes the bracket from both sides
        guess *= 1 + TOLERANCE / 2 if guess * (1 + TOLERANCE / 2) < high else 1 - TOLERANCE / 2
        margin = (high / low) ** 0.05
        guess = min(max(guess, low * min(margin, 1 + TOLERANCE / 2)), high / min(margin, 1 + TOLERANCE / 2))
        at_guess = cost(guess)
        if at_guess <= epsilon:
            high, at_high = guess, at_guess
        else:
            low, at_low = guess, at_guess
        if at_high <= epsilon and at_high > epsilon * (1 - TOLERANCE / 4):
            break
    return high


def _bracket(cost: Cost, target: float) -> tuple[float, float]:
    low, high = 0.5, 1.0
    while cost(high) > target:
        low, high = high, high * 2
        if high > LARGEST:
            raise BadInput(f"No noise up to a multiplier of {LARGEST:g} keeps epsilon = {target:g}: use fewer steps.")
    while low > SMALLEST and cost(low) <= target:
        low, high = low / 2, low
    return low, high


def on_grid(cost: Cost, targets: np.ndarray, *, step: float = GRID) -> np.ndarray:
    """The first node of a grid (of 1 %, or of `step` in logarithms) that keeps each target (rising), by bisection of the node
    range only where targets lie.
    Guarantee: cost(node) <= target was computed for every node that is returned."""
    if not len(targets):
        return targets

    def node(k: int) -> float:
        return math.exp(step * k)

    first = math.floor(math.log(smallest(cost, epsilon=float(targets[-1]))) / step) - 1
    last = math.ceil(math.log(smallest(cost, epsilon=float(targets[0]))) / step) + 1
    while cost(node(last)) > targets[0]:  # the grid's last node keeps every target because it was priced, too
        last += 1
    nodes = np.full(len(targets), last)
    # each entry: nodes low < high, and the targets t with cost(high) <= t < cost(low)
    work = [(first, last, 0, len(targets))]
    while work:
        low, high, start, stop = work.pop()
        if start == stop:
            continue
        if high - low == 1:
            nodes[start:stop] = high
            continue
        middle = (low + high) // 2
        cut = int(np.searchsorted(targets[start:stop], cost(node(middle)))) + start
        work += [(low, middle, cut, stop), (middle, high, start, cut)]
    return np.array([node(int(k)) for k in nodes])


@lru_cache(maxsize=100_000)
def affordable(
    event: DpEvent,
    *,
    epsilon: float,
    delta: float,
    spent: Composition = (),
    most: int = 10**7,
    hint: int = 1,
) -> int:
    """How many more times `event` can be released after `spent` without passing `epsilon`; at most `most`. Guarantee: that
    price was computed and is at most `epsilon`; `hint` saves prices and changes nothing else. Assumes: all was fixed before
    the first release (else: the ledger's filter)."""

    def fits(times: int) -> bool:
        return times == 0 or _priced(compose([*spent, (event, times)]), delta=delta)[0] <= epsilon

    if epsilon == math.inf:
        return most
    low, high, stride = 0, most + 1, 1
    probe = min(max(hint, 1), most)
    while low < probe < high:  # gallop away from the hint until the answer is between low and high
        if fits(probe):
            low, probe = probe, min(probe + stride, most)
        else:
            high, probe = probe, max(probe - stride, 1)
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
