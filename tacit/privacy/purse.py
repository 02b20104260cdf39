"""What budgets pay for after what other runs of a ledger have sealed: the rows of `tacit plan` that every kind has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit.data.population import Population
from tacit.experiment import Experiment
from tacit.privacy.ledger.before import Before
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, most_releases
from tacit.privacy.ledger.tables import ALL

GROUPS = 12  # distinct budgets beyond this are shown in so many groups of similar epsilon


@dataclass(frozen=True)
class Purse:
    """The clients' budgets, and what is gone of them: what plans are priced from. Nothing is charged."""

    experiment: Experiment
    population: Population = field(repr=False)
    before: Before

    def rounds(self, index: int | None, event: DpEvent, *, hint: int, asked: Asked = NOTHING_ASKED) -> int:
        """How many of the planned rounds a client can pay for beside its queries, as the ledger would say; without an index,
        everybody together.

        Raises: BadInput for an event without a price.
        """
        privacy, rounds = self.experiment.privacy, self.experiment.train.rounds
        known = self.before.of(ALL if index is None else self.population.names[index])
        limits = {"before": known, "total_delta": privacy.delta, "rounds": rounds, "accountant": privacy.accountant}
        return min(rounds, most_releases(self.population[index or 0].budget, event, **limits, hint=hint, asked=asked))

    def ends(self, members: np.ndarray) -> tuple[int, int]:
        """The clients with the least and with the most left."""
        left = self.population.left[members]
        return int(members[np.argmin(left)]), int(members[np.argmax(left)])

    def whose(self, members: np.ndarray) -> dict[str, Any]:
        """The first columns of a row: how many clients and which, what they allow, and what other runs have sealed of that."""
        epsilons, sealed = self.population.epsilons[members], self.population.sealed
        row: dict[str, Any] = {
            "clients": len(members),
            "names": [self.population.names[index] for index in sorted(members)],
        }
        row["epsilon"] = [float(epsilons.min()), float(epsilons.max())]
        if sealed is not None:
            row["epsilon_sealed"] = [float(sealed[members].min()), float(sealed[members].max())]
        return row | {"delta": self.population.delta}

    def groups(self) -> Sequence[np.ndarray]:
        """Clients with equal epsilon and equal rest of it; of many such groups, a few of similar ones.

        Guarantee: every client is in exactly one group, in the order of their epsilons.
        """
        order = np.lexsort((self.population.left, self.population.epsilons))
        epsilons, left = self.population.epsilons[order], self.population.left[order]
        cuts = np.flatnonzero((epsilons[1:] != epsilons[:-1]) | (left[1:] != left[:-1])) + 1
        return np.split(order, cuts) if len(cuts) < GROUPS else np.array_split(order, GROUPS)
