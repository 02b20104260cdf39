"""The plan of local DP: the mechanism of every client, and who pays for it.

Guarantee: each client is protected by its own noise from everybody who sees its updates or the models, whatever the server and
the other clients do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit import rules
from tacit.algorithms import Algorithm
from tacit.algorithms.local_dp import LocalDP
from tacit.data.population import Population
from tacit.digest import mark
from tacit.experiment import Experiment
from tacit.privacy.guarantee import Words
from tacit.privacy.local import words
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.privacy.plan import Plan
from tacit.privacy.purse import Purse
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.privacy.queries.plan import NOTHING, Asked
from tacit.privacy.wiring import Wiring
from tacit.train.descent import PLAIN, Descent
from tacit.train.dp_sgd import DpSgd
from tacit.train.noised_update import NoisedUpdate
from tacit.types import Client, Unit

END = 11.0  # standard deviations: where the tails of tacit/random.py end


@dataclass(frozen=True, eq=False)
class LocalPlan(Plan):
    """The mechanism of every client. `participations` is how many rounds a spread budget is made to last, beside its `queries`.

    `priced` is False for a published rule of thumb that has no proof: then nothing is charged or promised. With the unit
    "record" the noise is added in every step of DP-SGD, with "client" once, to the whole clipped update.
    """

    clip: float
    participations: int
    rates: np.ndarray = field(repr=False)
    steps: np.ndarray = field(repr=False)
    multipliers: np.ndarray = field(repr=False)
    priced: bool = True
    unit: Unit = "record"
    queries: Asked = NOTHING

    @property
    def training_clip(self) -> float:
        """The norm that a record's gradient, or a whole update, is clipped to."""
        return self.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        """One of every client."""
        return self.multipliers

    def mechanism(self, client: Client) -> SampledGaussian:
        """What the client runs in one round, and what that costs.

        Raises: BadInput for a client whose noise is not known here (NaN): a site plans its own alone.
        """
        k = client.index
        if k not in self._known:
            noise = float(self.multipliers[k]), self.clip, float(self.rates[k]), int(self.steps[k])
            self._known[k] = SampledGaussian(*noise, split=self.queries.split)
        return self._known[k]

    @cached_property
    def _known(self) -> dict[int, SampledGaussian]:
        """The mechanisms that were asked for: a run asks for each many times in a round."""
        return {}

    def update_noise(self, sizes: np.ndarray, *, learning_rate: float, descent: Descent = PLAIN) -> np.ndarray:
        """The noise per coordinate of every client's update, as `DpSgd` states it: eta z C sqrt(steps) / (q n).

        In steps that are not plain, sqrt(steps) is what `descent` makes of it. An update that is noised as a whole (client level)
        has z C. It follows from public numbers alone, so a rule may weigh by it.
        """
        if self.unit == "client":
            return self.multipliers * self.clip
        growth = descent.growth(self.steps, learning_rate=learning_rate)
        return learning_rate * self.multipliers * self.clip * growth / (self.rates * sizes)

    def longest(
        self,
        index: int,
        sizes: np.ndarray,
        *,
        learning_rate: float,
        parameters: int,
        descent: Descent = PLAIN,
        largest: float = 0.0,
    ) -> float:
        """No honest client sends a larger number: a step moves by eta C / q and weight decay at most, normals end at 10.8 sigma."""
        root, steps = math.sqrt(parameters), int(self.steps[index])
        if self.unit == "client":
            return (self.clip + END * float(self.multipliers[index]) * self.clip) * root
        noise = (
            learning_rate * float(self.multipliers[index]) * self.clip / (float(self.rates[index]) * int(sizes[index]))
        )
        moved = learning_rate * (self.clip / float(self.rates[index]) + descent.weight_decay * largest)
        reach = float(np.abs(descent.responses(steps, learning_rate=learning_rate)).sum())
        return reach * (moved + END * noise) * root

    def key(self, client: Client) -> str:
        """The client's own mechanism, how many rounds it is made to last, and whether it is charged."""
        return repr((self.mechanism(client), self.participations, self.priced, self.queries.key(client.index)))

    def digest(self) -> str:
        """The rates, steps and multipliers of all clients, the clip and the unit."""
        arrays = (np.ascontiguousarray(part).tobytes() for part in (self.rates, self.steps, self.multipliers))
        asked = (part for query, z in sorted(self.queries.multipliers.items()) for part in (query, z.tobytes()))
        return mark(repr((self.clip, self.participations, self.priced, self.unit)), *arrays, *asked)

    def asked(self, index: int) -> Mapping[str, DpEvent]:
        """The queries that a client answers beside training."""
        return self.queries.events(index)

    def query_noise(self, query: str, index: int, *, l2_squared: int, cells: int) -> NoisyCounts:
        """The noise of one client's answer."""
        return self.queries.mechanism(query, index, l2_squared=l2_squared, cells=cells)

    def rule(self, experiment: Experiment, population: Population) -> str:
        """The rule that was asked for; else the mean where all clients bring the same noise, `random-effects` where they do not.

        docs/results.md says why, and where another rule is better.
        """
        if experiment.aggregate.rule is not None:
            return experiment.aggregate.rule
        differ = len(np.unique(population.epsilons)) > 1 and experiment.privacy.rule == "spread"
        return "random-effects" if differ else "mean"

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """LocalDP: DP-SGD in every step (record level), or noise on the whole clipped update (client level).

        Raises: BadInput for a rule that is not there, or views of what are no images.
        """
        population, rate, descent = wiring.population, wiring.experiment.train.learning_rate, wiring.descent
        rule = wiring.rule(self.rule(wiring.experiment, population))
        noise = self.update_noise(population.sizes, learning_rate=rate, descent=descent)
        crowd = rules.Crowd(population.epsilons, noise, wiring.takes_part)
        if self.unit == "client":
            server = wiring.server(rule, crowd, control=wiring.control(rule, crowd))
            return LocalDP(self.mechanism, server, NoisedUpdate(wiring.training))
        server = wiring.server(rule, crowd, schedule=descent.schedule, control=wiring.control(rule, crowd, self.steps))
        return LocalDP(self.mechanism, server, DpSgd(rate, wiring.views, descent))

    def words(self, experiment: Experiment) -> Words:
        """What a client is promised, by its unit."""
        return words.promised(self.unit, tuple(self.queries.multipliers))

    def title(self, experiment: Experiment) -> str:
        """Names the strategy, and what is asked beside training."""
        asked = " and ".join(self.queries.multipliers)
        return f"local DP ({experiment.privacy.rule}{f', beside it {asked}' if asked else ''})"

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """A row for every group of clients with the same budget."""
        return words.rows(self, purse)
