"""How much of a client's epsilon its queries take: from shares of it to noise, fixed before anything is asked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from dp_accounting import DpEvent

from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.asking import SIDES, TRAINED_ON, WORDS, shares, split
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import FEW, noise_multipliers
from tacit.privacy.queries.mechanism import NoisyCounts, priced

GRID = math.log(
    1.02
)  # budgets are taken for the next smaller of these steps where there are too many to size noise for each


@dataclass(frozen=True, eq=False)
class Asked:
    """What a run asks beside training: by query, each client's noise multiplier; `split` names the coin that holds records out.

    Guarantee: `events` is the whole price of a client's answers, one release of each query.
    """

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

    def mechanism(self, query: str, index: int, *, l2_squared: int, cells: int) -> NoisyCounts:
        """The noise of one client's answer. Raises BadInput for noise that is too wide to be drawn."""
        z = float(self.multipliers[query][index])
        return NoisyCounts(z, l2_squared, cells, split=self.split, side=SIDES[query] if self.split else "")

    def key(self, index: int) -> tuple[tuple[str, float], ...]:
        """The numbers that a client's answers and training depend on; empty where nothing is asked."""
        return tuple((query, float(z[index])) for query, z in sorted(self.multipliers.items()))


NOTHING = Asked()


def asked_of(experiment: Experiment, population: Population) -> Asked:
    """The noise of every client's queries: each costs by itself the share of what is left of epsilon that was planned.

    Guarantee: the price of each query alone, at the run's delta, was computed and is within its share.

    Raises: BadInput for a client that sets no limit, of which there is no share.
    """
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
    return Asked(
        {
            query: noise_multipliers(share * sized, **settings, accountant=experiment.privacy.accountant)
            for query, share in planned.items()
        },
        split(experiment),
    )


def budgets(population: Population) -> np.ndarray:
    """What noise is sized for, where queries are asked: what is left of each epsilon; of many, the next smaller step of 2 %."""
    left = population.to_spread
    if len(np.unique(left)) <= FEW:
        return left
    steps = np.exp(GRID * np.floor(np.log(left) / GRID))
    return np.minimum(steps, left)
