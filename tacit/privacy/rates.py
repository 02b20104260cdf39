"""Each client its own epsilon by its own sampling rate, under one noise for all: a looser client is drawn more often. What is
drawn are a client's records or, where the promise is about whole clients, the client itself: then each is one, or its weight.

A record of client m meets, in each of T rounds, a sampled Gaussian of the common multiplier z and its client's rate q_m, the
largest with price(z, q_m, T) <= epsilon_m. B = sum of q_m n_m records are in a round's sum on average, so the noise on the mean
gradient is z C / B. Larger z allows larger rates. Docs: docs/derivations.md; no source has the choice of z that stands here."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import price, rdp
from tacit.privacy.accounting.price import FEW, sampled_gaussian, smallest
from tacit.types import Unit

TRIED = np.geomspace(0.3, 1e4, 60)  # multipliers; 340 is best for epsilon = .1 over 100 rounds
CAPS = np.geomspace(1.0, 100.0, 28)  # on the ratio of rates
NODES = np.concatenate(
    [np.geomspace(1e-5, 0.5, 26), np.linspace(0.55, 1.0, 6)]
)  # rates between which a cheap price is interpolated
WITHIN = 1.05  # of the least error: among these the largest rates are taken, which leave least to the batches' secrecy
TELLING = 0.8  # of the noise: what is hardly less is not worth a sentence
SMALLEST = 1e-5  # a client that is drawn more rarely takes part in nothing
BIAS = 0.25  # of the clip: how far a mean gradient moves where all weights are wrong (docs/decisions.md)
ROUGH = 0.85  # steps down from the multiplier that the cheap price asks for
CLOSE = 0.01  # how near the multiplier of a given cohort is found
STEP = 0.02  # of a grid of rates, where there are many budgets
MOST_APART = 0.25  # of all weight may be wrong by default: a loose client is no federation

Cost = Callable[[float, float], float]  # (z, rate) -> the epsilon of all rounds


@dataclass(frozen=True, eq=False)
class Rates:
    """The common multiplier, and every client's rate under it."""

    multiplier: float
    rates: np.ndarray = field(repr=False)
    cap: float
    unit: Unit = "record"

    def batch(self, sizes: np.ndarray) -> float:
        """B, the expected number of units in a round's sum."""
        return float(self.rates @ sizes)

    def shares(self, sizes: np.ndarray) -> np.ndarray:
        """Each client's share of it."""
        return self.rates * sizes / self.batch(sizes)

    @property
    def ratio(self) -> str:
        """How much more often loose clients are drawn from, in words; nothing where all are alike."""
        times, what = float(self.rates.max() / self.rates.min()), f"{self.unit}s"
        said = f", the loosest clients' {what} drawn {times:.3g} times as often as the tightest's"
        return said if times > 1.005 else ""

    @property
    def drawn(self) -> bool:
        """Whether any client's batch is less than all its records."""
        return bool(self.rates.min() < 1)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What amplification rests on, where any batch is drawn."""
        return (f"nobody learns which {self.unit}s were drawn",) if self.drawn else ()

    @property
    def summed(self) -> str:
        """What of all clients is in a round's sum."""
        return "Poisson batches" if self.drawn else f"{self.unit}s"

    @property
    def words(self) -> str:
        """What of each client is in a round's sum."""
        if not self.drawn:
            return f"all {self.unit}s of each of {len(self.rates)} clients"
        batches = "Poisson batches of persons" if self.unit == "person" else "Poisson batches"
        return f"{batches}, secret at each of {len(self.rates)} clients at a rate of its own"


def choose(
    epsilons: np.ndarray,
    sizes: np.ndarray,
    *,
    cost: Cost,
    rounds: int,
    delta: float,
    parameters: int,
    multiplier: float | None = None,
    cap: float | None = None,
    names: Sequence[str] = (),
    cohort: int | None = None,
) -> Rates:
    """The multiplier and the cap on the ratio of rates with the least error, to 5 %, and among those the largest rates; and
    everybody's rate.

    Guarantee: cost(multiplier, rate) <= epsilon was computed for every rate that is returned.

    The error, in clips, is sqrt(d) z / (B sqrt(T)) of noise in the mean of all rounds, and without a `cap` of one's own also a
    quarter of the total variation between p_m = q_m n_m / B and n_m / n, added in squares; that variation is at most a quarter. All
    of it is public. With a `cohort` the multiplier is the one under which so many units are drawn on average, to about 2 %.

    Raises: BadInput for a client whose budget allows no rate from 1e-5 on.

    >>> settings = {"rounds": 100, "delta": 1e-5}
    >>> found = choose(np.array([1.0, 1.0]), np.array([100, 100]), cost=rough(**settings), parameters=650, **settings)
    >>> bool(found.rates.min() > 0.9)
    True
    """
    if cap is not None:
        check.at_least(1, **{"privacy.rate_cap": cap})
    cheap, tried = rough(rounds=rounds, delta=delta), np.array([multiplier])
    if cohort is not None:
        cheap = cost

        def drawn(z: float, cost: Cost = cost) -> float:
            found = _interpolated(cost, z, epsilons, nodes=NODES[1::2])
            _, most = _least_error(found, sizes, z / math.sqrt(rounds / parameters), cap=cap)
            return float(np.minimum(found, most * found.min()).sum())

        high = _rising(lambda z: drawn(z, rough(rounds=rounds, delta=delta)), cohort, TRIED[0], TRIED[-1])
        while high > TRIED[0] and drawn(high * ROUGH) >= cohort:
            high *= ROUGH
        tried = np.array([_rising(drawn, cohort, high * ROUGH, high)])
    elif multiplier is None:  # among them the one from which all of everybody is in every round
        whole = smallest(lambda z: cheap(z, 1.0), epsilon=float(epsilons.min()))
        tried = np.sort(np.append(TRIED, whole))
    options = [
        (z, *_least_error(_interpolated(cheap, z, epsilons), sizes, z / math.sqrt(rounds / parameters), cap=cap))
        for z in tried
    ]
    errors = np.array([error for _, error, _ in options])
    z, _, found_cap = options[int(np.flatnonzero(errors <= errors.min() * WITHIN)[-1])]
    if (
        multiplier is None and cohort is None and cost(z, 1.0) <= epsilons.min()
    ):  # all of everybody in every round: the least noise that pays
        z = min(z, smallest(lambda tried: cost(tried, 1.0), epsilon=float(epsilons.min())))
    named = dict(zip(epsilons[::-1].tolist(), names[::-1], strict=False))  # the first client of each budget
    targets, inverse = np.unique(epsilons, return_inverse=True)
    few = targets.tolist() if len(targets) <= FEW else [float(targets[0])]  # of many the others are on a grid
    exact = np.array([_largest(cost, z, one, named.get(one, "a client")) for one in few])
    if len(few) < len(targets):
        most = min(1.0, float(found_cap * exact[0]))
        on_grid = price.on_grid(
            lambda x: cost(z, min(most, 1.0 / x)), targets[1:][targets[1:] < cost(z, most)], step=STEP
        )
        known = np.maximum(1.0 / on_grid, exact[0])
        exact = np.concatenate([exact, known, np.full(len(targets) - 1 - len(known), most)])
    rates = exact[inverse]
    return Rates(float(z), np.minimum(rates, found_cap * rates.min()), float(found_cap))


def noise_alone(epsilons: np.ndarray, sizes: np.ndarray, *, rounds: int, delta: float) -> float:
    """About the noise over batch of as many steps where every client noises its own gradients, at the rate and with the multiplier
    that serve it best, and their means are weighted by inverse variance: what the mean gradient would carry, were data alike."""
    cheap = rough(rounds=rounds, delta=delta)
    least = np.min([z / np.maximum(_interpolated(cheap, z, epsilons) * sizes, 1e-300) for z in TRIED], axis=0)
    return float((least**-2.0).sum() ** -0.5)


def advice(remaining: Any, *, rounds: int, noise: float, trusted: float = 1.0) -> str:
    """Sentences where another kind would leave less noise than `noise`, the noise over batch of a round in which all report;
    `trusted` is the share of it that a trusted server would need."""
    population = remaining.population
    settings = {"rounds": rounds, "delta": population.delta}
    alone, said = noise_alone(np.asarray(population.to_spread, float), np.asarray(population.sizes), **settings), []
    if alone < TELLING * noise:
        said.append(
            f'Note: noise at every client (privacy.kind = "local", rule random-effects or inverse-variance) would leave'
            f" {alone / noise:.2g} of this noise where clients' data are alike: few loose clients would carry the model. So they"
            " would, in part, with a larger privacy.rate_cap."
        )
    if trusted < TELLING:
        said.append(
            f'With a trusted server (privacy.kind = "central") {trusted:.2g} of this noise would do: shares are sized for the'
            " fewest reports, less those that collude."
        )
    return " ".join(said)


def rows(
    chosen: Rates,
    sizes: np.ndarray,
    remaining: Any,
    events: Sequence[DpEvent],
    *,
    rounds: int,
    more: Callable[[Sequence[int]], dict[str, Any]],
    of: str = "batch",
) -> list[dict[str, Any]]:
    """`tacit plan`: a row for every group of clients with the same budget, with its rates; `more` is what a kind has beside."""
    table, rates, z = [], chosen.rates, chosen.multiplier
    for members in remaining.groups():
        ends = remaining.ends(members)
        left = [remaining.rounds(k, events[k], hint=rounds) for k in ends]
        table.append(
            {
                **remaining.whose(members),
                "noise_multiplier": [z, z],
                "sampling_rate": [float(rates[members].min()), float(rates[members].max())],
                "steps": [1, 1],
                "planned_rounds": rounds,
                "affordable_rounds": [min(left), max(left)],
                "epsilon_spent": max(
                    price.epsilon(((events[k], rounds),), delta=remaining.population.delta) for k in ends
                ),
                **more(ends),
                f"noise_over_{of}": z / chosen.batch(sizes),
            }
        )
    return table


def sampled(*, rounds: int, delta: float) -> Cost:
    """The price of so many sampled Gaussian releases."""
    return lambda z, rate: price.epsilon(((sampled_gaussian(z, rate), rounds),), delta=delta)


def rough(*, rounds: int, delta: float) -> Cost:
    """A cheap upper bound on the price, by whole Rényi orders: for choosing, never for promising."""

    def cost(z: float, rate: float) -> float:
        return rdp.epsilon(rdp.WHOLE, rounds * rdp.poisson_whole(rate, z), delta)

    return cost


def _rising(drawn: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if drawn(middle) < wanted else (low, middle)
    return high


def _interpolated(cost: Cost, z: float, epsilons: np.ndarray, *, nodes: np.ndarray = NODES) -> np.ndarray:
    """About the largest rate that each budget allows."""
    known = np.maximum.accumulate([cost(z, rate) for rate in nodes])
    rates = np.exp(np.interp(np.log(epsilons), np.log(np.maximum(known, 1e-12)), np.log(nodes), left=-math.inf))
    return np.where(epsilons >= known[-1], 1.0, rates)


def _least_error(rates: np.ndarray, sizes: np.ndarray, noise: float, *, cap: float | None) -> tuple[float, float]:
    """The error with rates that are at most `cap` times the smallest, and that cap; without one, the cap with the least error.
    `noise` is that of a sum, in the mean of all rounds."""
    least = rates.min()
    if least == 0:
        return math.inf, cap or 1.0
    caps = CAPS if cap is None else np.array([cap])
    drawn = np.minimum(rates, caps[:, None] * least) * sizes
    batches = drawn.sum(1)
    apart = 0.5 * np.abs(drawn / batches[:, None] - sizes / sizes.sum()).sum(1)
    errors = noise / batches
    if cap is None:
        errors = np.where(apart <= MOST_APART, np.hypot(errors, BIAS * apart), math.inf)
    best = int(np.argmin(errors))
    return float(errors[best]), float(caps[best])


def _largest(cost: Cost, z: float, epsilon: float, name: str) -> float:
    """The largest rate, to 0.1 %, whose price is within epsilon. Raises BadInput where it is below 1e-5."""
    if cost(z, 1.0) <= epsilon:
        return 1.0
    if cost(z, SMALLEST) > epsilon:
        raise BadInput(
            f"At a noise multiplier of {z:g} each record of {name}, with epsilon = {epsilon:g}, could be drawn with a"
            f" probability below {SMALLEST:g}: raise its epsilon, or use fewer rounds."
        )
    inverse = smallest(lambda x: cost(z, min(1.0, 1.0 / x)), epsilon=epsilon)
    return min(1.0, 1.0 / inverse)
