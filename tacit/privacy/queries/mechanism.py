"""The mechanism of a query: counts of a client's records, each with Gaussian noise, released once. Guarantee: record level,
add or remove one. One frozen object owns the noise and its price: what is drawn is what is paid for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import SIDES, TRAINED_ON, WORDS, shares, split
from tacit.privacy import integers
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import SLACK, RoundedGaussianDpEvent, SideDpEvent
from tacit.privacy.accounting.price import FEW, noise_multipliers
from tacit.privacy.mechanism import NoiseState
from tacit.random import Stream
from tacit.types import Private


@dataclass(frozen=True, eq=False)
class Counts:
    """Whole numbers that one record, coming or going, changes by a vector of squared length at most `l2_squared`. A histogram
    has 1: a record is in one cell. k histograms side by side have k."""

    values: np.ndarray = field(repr=False)
    l2_squared: int


@dataclass(frozen=True)
class NoisyCounts:
    """Adds round(N(0, z^2 l2_squared)) to each of `cells` counts, once; with a `split`, of the records on one `side` of it.
    Guarantee: one release costs `event()`, add or remove one record, for whoever sees every noised count. Assumes: the counts
    are of sensitivity `l2_squared`, and of one question there is one release. Raises: BadInput for noise that cannot be drawn
    as closely as is priced."""

    noise_multiplier: float
    l2_squared: int
    cells: int
    split: str = ""  # where only the records on one side of a split are counted: which coin,
    side: str = ""  # and which side

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.at_least(1, l2_squared=self.l2_squared, cells=self.cells)
        if self.noise_std > integers.WIDEST_STD or self.cells * integers.distance_rounded(self.noise_std) > SLACK:
            raise BadInput(
                f"Noise of a standard deviation of {self.noise_std:g} on {self.cells} counts is too wide: ask for fewer, or give"
                " the query a larger share of epsilon."
            )

    @property
    def noise_std(self) -> float:
        """The standard deviation before rounding: not below z sqrt(l2_squared), as real numbers."""
        sigma = self.noise_multiplier * math.sqrt(self.l2_squared)
        while Fraction(sigma) ** 2 < Fraction(self.noise_multiplier) ** 2 * self.l2_squared:
            sigma = math.nextafter(sigma, math.inf)
        return sigma

    def init(self) -> NoiseState:
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        return state, np.arange(size)

    def noise(self, state: NoiseState, stream: Stream, bounded: Counts) -> tuple[NoiseState, Private]:
        """Adds the noise; the result is whole numbers. Raises: BadInput for another number of counts, or counts of another
        sensitivity, than was priced."""
        if bounded.l2_squared != self.l2_squared or bounded.values.shape != (self.cells,):
            text = f"{self.cells} counts of squared sensitivity {self.l2_squared}"
            raise BadInput(f"This noise is made for {text}, got {bounded.values.shape} of {bounded.l2_squared}.")
        noised = bounded.values.astype(np.int64) + integers.draw_rounded(self.noise_std, stream, self.cells)
        return state, Private(torch.from_numpy(noised), self.noise_std)

    def event(self) -> DpEvent:
        return priced(self.noise_multiplier, split=self.split, side=self.side)


def priced(noise_multiplier: float, *, split: str = "", side: str = "") -> DpEvent:
    """What counts under this noise cost; with a split, to the records on one side of it."""
    event = RoundedGaussianDpEvent(noise_multiplier)
    return SideDpEvent(split, side, event) if split else event


# How much of a client's epsilon its queries take: from shares of it to noise, fixed before anything is asked.

GRID = math.log(
    1.02
)  # budgets are taken for the next smaller of these steps where there are too many to size noise for each


@dataclass(frozen=True, eq=False)
class Queries:
    """What a run asks beside training: by query, each client's noise multiplier; `split` names the coin that holds records
    out. Guarantee: `events` is the whole price of a client's answers, one release of each query."""

    multipliers: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    split: str = ""

    def events(self, index: int) -> dict[str, DpEvent]:
        """What a client's answers cost, by query."""
        return {
            query: priced(float(z[index]), split=self.split, side=SIDES[query]) for query, z in self.multipliers.items()
        }

    def beside_training(self, index: int) -> price.Composition:
        """What the records that are trained on pay for beside training."""
        asked = {query: z for query, z in self.multipliers.items() if SIDES[query] == TRAINED_ON}
        return price.compose((priced(float(z[index])), 1) for z in asked.values())

    def mechanism(self, query: str, index: int, *, l2_squared: int, cells: int) -> NoisyCounts | None:
        """The noise of one client's answer. Raises KeyError for a query that is not asked, BadInput for noise that is too wide."""
        z = float(self.multipliers[query][index])
        return NoisyCounts(z, l2_squared, cells, split=self.split, side=SIDES[query] if self.split else "")

    def key(self, index: int) -> tuple[tuple[str, float], ...]:
        return tuple((query, float(z[index])) for query, z in sorted(self.multipliers.items()))


NOTHING = Queries()


class Exact(Queries):
    """Queries where nothing is promised: no answer is noised or priced."""

    def mechanism(self, query: str, index: int, *, l2_squared: int, cells: int) -> None:
        """None: the answer is exact."""


EXACT = Exact()


def queries_of(experiment: Experiment, population: Population) -> Queries:
    """The noise of every client's queries: each costs by itself the share of what is left of epsilon that was planned.
    Guarantee: the price of each query alone, at the run's delta, was computed and is within its share. Raises: BadInput
    for a client that sets no limit, of which there is no share."""
    planned = shares(experiment)
    if not planned:
        return NOTHING
    for index in np.flatnonzero(np.isinf(population.epsilons))[:1]:
        what = " and ".join(WORDS[query] for query in planned)
        raise BadInput(
            f"Client {population.names[int(index)]} sets no limit (epsilon = inf), so there is no share of it that asking for"
            f" {what} may cost: name a finite epsilon."
        )
    settings = {"delta": population.delta, "sampling_rate": 1.0, "steps": 1}
    sized = budgets(population)
    return Queries(
        {query: noise_multipliers(share * sized, **settings) for query, share in planned.items()},
        split(experiment),
    )


def budgets(population: Population) -> np.ndarray:
    """What noise is sized for, where queries are asked: what is left of each epsilon; of many, the next smaller step of 2 %."""
    left = population.to_spread
    if len(np.unique(left)) <= FEW:
        return left
    steps = np.exp(GRID * np.floor(np.log(left) / GRID))
    return np.minimum(steps, left)
