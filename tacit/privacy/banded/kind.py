"""Central DP with public cohorts: the server is trusted with updates, and nothing rests on who took part staying secret."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tacit.algorithms import Algorithm
from tacit.algorithms.central_dp import CentralDP
from tacit.data.population import Population
from tacit.digest import mark
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import smallest
from tacit.privacy.banded.mechanism import BandedGaussian, banded
from tacit.privacy.central.kind import ALL_SEEN, WeighedSums, capped_weights, one_budget
from tacit.privacy.guarantee import EMPTIED, Words
from tacit.privacy.plan import Plan, Purse
from tacit.privacy.wiring import Wiring
from tacit.random import seeded
from tacit.training.optimizer import Momentum

# The plan of central DP with public cohorts: clients are dealt into groups that take turns, and pay for their own turns
# alone.


@dataclass(frozen=True, eq=False)
class BandedPlan(WeighedSums):
    """What the server runs, and the most turns that a client has.

    Guarantee: client level, against everybody who sees the models, who takes part in which round included: that is public.

    Assumes: the server is trusted with single updates and with its noise, and releases every round once.
    """

    once: ClassVar[bool] = True

    mechanism: BandedGaussian

    def scheduled(self, round: int) -> Sequence[int]:
        """The group whose turn the round is."""
        return self.mechanism.turn(round)

    def turns(self, index: int | None, *, rounds: int) -> int:
        """How often the client's group is asked: the first group most."""
        group = 0 if index is None else self.mechanism.groups[index]
        return len(range(group, rounds, self.mechanism.cycle))

    def server_key(self) -> str:
        """The mechanism, and who is in which group."""
        return mark(repr(self.mechanism), repr(self.mechanism.groups))

    def digest(self) -> str:
        """The mechanism, the groups and all weights."""
        return mark(self.server_key(), self.weights.tobytes())

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """CentralDP, whose sums take nobody out of turn."""
        names, m = wiring.population.names, self.mechanism
        weights = dict(zip(names, self.weights.tolist(), strict=True))
        groups = tuple(frozenset(names[index] for index in m.turn(group)) for group in range(m.cycle))
        return CentralDP(m, weights, self.expected_weight, wiring.training, wiring.optimizer, groups=groups)

    def words(self, experiment: Experiment) -> Words:
        """Against everybody, by turns that are public."""
        m = self.mechanism
        how = (
            f"public cohorts in a cycle of {m.cycle} rounds, each of {len(m.groups)} clients once in a cycle and at most"
            f" {self.participations} times, with noise in {m.strategy.bands} bands across rounds"
        )
        return Words(ALL_SEEN, EMPTIED, how)

    def title(self, experiment: Experiment) -> str:
        """Names the kind of cohorts."""
        return (
            f"central DP (public cohorts in a cycle of {self.mechanism.cycle}, {self.mechanism.strategy.bands} bands)"
        )

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """One row: a turn costs all clients alike. `epsilon_spent` is the price of the turns that can be paid for."""
        m, accountant = self.mechanism, purse.experiment.privacy.accountant
        everybody = np.arange(len(self.weights))
        ends = [purse.rounds(index, m.event(), hint=self.participations) for index in purse.ends(everybody)]
        left = [min(self.participations, one) for one in ends]
        spent, delta = ((m.event(), max(*left, 1)),), purse.population.delta
        return [
            {
                **purse.whose(everybody),
                "noise_multiplier": [m.noise_multiplier, m.noise_multiplier],
                "sampling_rate": [1.0, 1.0],
                "steps": [1, 1],
                "planned_turns": self.participations,
                "affordable_turns": left,
                "epsilon_spent": price.epsilon(spent, delta=delta, accountant=accountant) if max(left) else 0.0,
                "accountant": accountant,
                "guarantee": f"client level, {EMPTIED}, public cohorts in a cycle of {m.cycle} rounds, noise in"
                f" {m.strategy.bands} bands",
            }
        ]


def dealt(clients: int, *, cycle: int, seed: int) -> tuple[int, ...]:
    """Every client's group: cards are dealt in the order of a public permutation, so that groups differ by at most one client.

    >>> sorted(dealt(5, cycle=2, seed=0))
    [0, 0, 0, 1, 1]
    """
    groups = np.empty(clients, dtype=np.int64)
    groups[seeded(seed)("groups").generator().permutation(clients)] = np.arange(clients) % cycle
    return tuple(groups.tolist())


def banded_plan(experiment: Experiment, population: Population) -> BandedPlan:
    """The given multiplier, or the smallest that makes the budget last a client's turns; as many bands as groups unless said.

    Guarantee: with a multiplier derived here, the turns of any client cost at most what other runs have left of the common epsilon.

    Raises: BadInput where some clients would never have a turn, and as `BandedGaussian`, `banded` and `one_budget`.
    """
    privacy, train, everybody = experiment.privacy, experiment.train, len(population)
    epsilon, cycle = one_budget(population), -(-everybody // (train.clients_per_round or everybody))
    if train.rounds < cycle:
        raise BadInput(
            f"{everybody} clients in groups of {train.clients_per_round} take turns in a cycle of {cycle} rounds, and there are"
            f" {train.rounds}: raise train.rounds or train.clients_per_round."
        )
    turns = -(-train.rounds // cycle)
    momentum = Momentum.momentum if train.server_momentum is None else train.server_momentum
    momentum = momentum if train.server_optimizer == "momentum" else 0.0
    strategy = banded(train.rounds, privacy.bands or cycle, momentum)
    groups = dealt(everybody, cycle=cycle, seed=experiment.seeds.noise)
    mechanism = BandedGaussian(privacy.noise_multiplier or 1.0, privacy.clip, strategy, groups, cycle)
    if privacy.noise_multiplier is None:
        if epsilon == float("inf"):
            raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")

        def cost(z: float) -> float:
            event = replace(mechanism, noise_multiplier=z).event()
            return price.epsilon(((event, turns),), delta=population.delta, accountant=privacy.accountant)

        mechanism = replace(mechanism, noise_multiplier=smallest(cost, epsilon=epsilon))
    return BandedPlan(mechanism, turns, capped_weights(population.sizes, privacy.weight_cap))


class BandedCentral:
    """The kind `central` with `privacy.sampler = "cyclic"`: client-level DP at a trusted server whose cohorts everybody may know.

    The server sees every clipped update; whoever sees the models sees one noised sum a round, and may know whose it is. A client
    pays in the rounds in which it takes part.
    """

    plans = BandedPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """One noise for all clients, from their one budget. Raises BadInput as `banded_plan`."""
        return banded_plan(experiment, population)

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: that the server is trusted is what the kind says, and a site accepts it by accepting the experiment."""


KIND = BandedCentral()
