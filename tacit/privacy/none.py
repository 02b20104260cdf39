"""No privacy: FedAvg, and a sentence that says that nothing is promised."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tacit.algorithms import Algorithm, rules
from tacit.algorithms.fedavg import FedAvg
from tacit.data.population import Population
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.privacy import samplers
from tacit.privacy.guarantee import Words
from tacit.privacy.plan import Plan, Purse
from tacit.privacy.queries.mechanism import EXACT, Queries
from tacit.privacy.samplers import Participation
from tacit.privacy.wiring import Wiring
from tacit.types import Client


@dataclass(frozen=True)
class NoPlan(Plan):
    """Nothing is promised, charged or noised."""

    sampler: Participation
    priced: ClassVar[bool] = False
    participations: int = 1
    queries: Queries = EXACT

    def key(self, client: Client | None) -> str:
        return "" if client is None else "none"

    def digest(self) -> str:
        return "none"

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """FedAvg. Raises BadInput for a rule that weighs clients by their privacy."""
        name, population = self.rule(wiring.experiment, wiring.population) or "mean", wiring.population
        rule = wiring.rule(name)
        if rule.needs:
            text = f'The rule {name} weighs clients by their privacy: with privacy.kind = "none"'
            able = ", ".join(name for name in rules.names() if not rules.load(name).needs)
            raise BadInput(f"{text} use one of {able}.")
        statistics = wiring.statistics(np.zeros(len(population)))
        return FedAvg(wiring.server(rule, statistics, control=wiring.control(rule, statistics)), wiring.training)

    def words(self, experiment: Experiment) -> Words:
        """Raises TypeError: there is no promise to put in words."""
        raise TypeError("nothing is promised")

    def title(self, experiment: Experiment) -> str:
        return "no privacy promised"

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """Raises BadInput: there is nothing to plan."""
        raise BadInput('This experiment promises nothing (privacy.kind = "none"), so there is nothing to plan.')


class NoPrivacy:
    """The kind `none`: the server sees every update as it is, and no ledger is charged."""

    plans = NoPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        return NoPlan(samplers.of(experiment, len(population)))

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused: a site gives nothing without privacy."""
        raise Refused('This experiment promises no privacy (privacy.kind = "none") and the site gives nothing without.')


def kind(experiment: Experiment) -> NoPrivacy:
    """The one kind there is."""
    return NoPrivacy()
