"""A fourth kind of privacy, for tests: one client in two tosses a coin of noise. Clients clip and noise their whole update.

It is local DP on whole updates with one public noise multiplier for all, written by somebody who read docs/how-to-extend.md.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.algorithms import PopulationStatistics
from tacit.algorithms.local_dp import LocalDP
from tacit.errors import Refused
from tacit.privacy import samplers
from tacit.privacy.guarantee import EMPTIED, Words
from tacit.privacy.local import SampledGaussian
from tacit.privacy.plan import Plan
from tacit.privacy.samplers import Participation
from tacit.training.sgd import NoisedUpdate


@dataclass(frozen=True, eq=False)
class ToyPlan(Plan):
    mechanism: SampledGaussian
    clients: int
    participations: int
    sampler: Participation

    @property
    def training_clip(self):
        return self.mechanism.clip

    @property
    def noise_multipliers(self):
        return np.array([self.mechanism.noise_multiplier])

    def key(self, client):
        return "" if client is None else repr(self.mechanism)

    def digest(self):
        return repr((self.mechanism, self.clients))

    def algorithm(self, wiring):
        noise = np.full(self.clients, self.mechanism.noise_std)
        server = wiring.server(wiring.rule("mean"), PopulationStatistics(wiring.population.epsilons, noise))
        return LocalDP(lambda client: self.mechanism, server, NoisedUpdate(wiring.training))

    def words(self, experiment):
        return Words("whoever sees a toy", EMPTIED, "toys")

    def title(self, experiment):
        return "toy DP"

    def rows(self, remaining) -> list[dict[str, Any]]:
        everybody = np.arange(self.clients)
        left = remaining.rounds(
            int(np.argmin(remaining.population.left)), self.mechanism.event(), hint=self.participations
        )
        z = self.mechanism.noise_multiplier
        more = {"noise_multiplier": [z, z], "planned_rounds": self.participations, "affordable_rounds": [left, left]}
        return [remaining.whose(everybody) | more | {"guarantee": "toys"}]


class Toy:
    plans = ToyPlan

    def plan(self, experiment, population, *, size, own=None):
        mechanism = SampledGaussian(experiment.privacy.noise_multiplier or 4.0, experiment.privacy.clip, 1.0)
        return ToyPlan(mechanism, len(population), experiment.train.rounds, samplers.of(experiment, len(population)))

    def refuse_at_site(self, experiment):
        raise Refused("toys stay at home")
