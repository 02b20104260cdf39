"""Who takes part in a round and pays, on disk; who still can, and what the tightest and the loosest client have spent."""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from dp_accounting import DpEvent

from tacit.engine.assemble import Parts
from tacit.privacy.accounting import price
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.samplers import Sampler
from tacit.random import Derive
from tacit.types import Budget, Client

MARKS = 16  # while a run goes on, epsilon is shown rounded up to the next of so many marks; at the end it is exact


class BudgetTracker:
    """Draws the clients of a round and charges them. Without a ledger nobody pays, and nobody is ever out of budget."""

    def __init__(self, parts: Parts, ledger: Ledger | None, *, first_round: int = 0):
        self._parts, self._ledger = parts, ledger
        self._sampler, self._rounds = parts.plan.sampler, parts.experiment.train.rounds
        self._out, self._able = set[int](), set[int]()  # who is out of budget; who could pay after its last charge
        # while a device trains, the price that is shown next is computed; processes fork, beside which there are no threads
        self._beside = ThreadPoolExecutor(1) if ledger is not None and parts.theta.is_cuda else None
        self._coming: dict[tuple[Budget, price.Composition], Future[float]] = {}
        if ledger is not None:
            epsilons = parts.population.epsilons
            self._ends = (parts.population[int(np.argmin(epsilons))], parts.population[int(np.argmax(epsilons))])
            self._find_ends(ledger)
            self._stride = -(-self._sampler.turns(None, rounds=self._rounds) // MARKS)
            if not self._sampler.charges_all:
                charged = ledger.charged()
                again = [
                    index
                    for index, name in enumerate(parts.population.names)
                    if name in charged and self._sampler.asked_from(index, first_round, rounds=self._rounds)
                ]
                self._affording(again, len(again))
        self._told = set(self._out) if first_round else set()  # a resumed run named them before it was stopped

    def draw(
        self, round: int, derive: Derive, *, unpaid: Collection[int] = (), away: Collection[int] = ()
    ) -> list[Client] | None:
        """The clients that a round is to have; None where too few can pay. **Nobody has paid.**
        Whose own ledger does not pay (`unpaid`) has left. Who is `away` is asked nothing and pays nothing, unless too few are left
        without. Where all pay together, nobody leaves."""
        if self._sampler.charges_all:
            drawn = cast(Sampler, self._sampler).draw(derive(round, "cohort"), round)
            return [self._parts.population[int(index)] for index in drawn]
        self._out |= set(unpaid)
        cohort = self.sample(round, derive)
        here = [client for client in cohort if client.index not in away]
        return self._enough(here) or self._enough(cohort)

    def sample(self, round: int, derive: Derive) -> list[Client]:
        """Clients that can still pay: whose turn it is, or a uniform choice at a cost that does not depend on others."""
        turn = self._sampler.scheduled(round)
        if turn is not None:
            return self._affording(turn, len(turn))
        everybody, size = len(self._parts.population), self._parts.cohort
        rng = derive(round, "cohort").generator()
        if size >= everybody:
            return self._affording(range(everybody), everybody)
        first = rng.choice(everybody, size=min(everybody, 2 * size + 16), replace=False)
        cohort = self._affording(first.tolist(), size)
        if len(cohort) < size:  # many are out of budget: look at all
            cohort = self._affording(rng.permutation(everybody).tolist(), size)
        return sorted(cohort, key=lambda client: client.index)

    def charge(self, cohort: list[Client] | None) -> list[Client] | None:
        """Those of a cohort that have paid, on disk; None where too few (or, if all must pay together, not all) can pay."""
        if cohort is None or (self._ledger is None and self._sampler.charges_all):
            return None
        if self._ledger is None:
            return self._enough(cohort)
        if self._sampler.charges_all:
            return cohort if self._ledger.admit_everybody(self.budget, self.price_of_all, hint=self._hint) else None
        return self._enough(self._ledger.admit(cohort, self.cost, hint=self._hint))

    def after(self, round: int, cohort: Sequence[Client]) -> dict[str, Any]:
        """The numbers of a round: who is out of budget from the next one on, and what the tightest and the loosest client have
        spent."""
        if self._ledger is None:
            return {"out_of_budget": 0}
        self._find_ends(self._ledger)
        others = self._ledger.other_runs(self._parts.population.unit)  # whose seals are in the two epsilons
        tightest, loosest = (self._at_most(client, self._ledger) for client in self._ends)
        outside = len(self._out) if round == self._rounds - 1 else self._outside(round, cohort, self._ledger)
        names, self._told = sorted(self._out - self._told), set(self._out)
        dropped = [self._parts.population.names[index] for index in names]
        ends = {"epsilon_tightest": tightest, "epsilon_loosest": loosest, "other_runs": others}
        return {"out_of_budget": outside, "dropped": dropped, **ends}

    @property
    def budget(self) -> Budget:
        """The budget of the tightest client."""
        return self._ends[0].budget

    @property
    def price_of_all(self) -> DpEvent:
        """What the open round costs everybody, where all pay together."""
        return self.cost(self._ends[0])

    def cost(self, client: Client) -> DpEvent:
        """What the open round costs the client."""
        return self._parts.cost(client)

    @property
    def _hint(self) -> int:
        return self._parts.plan.participations

    def _enough(self, cohort: list[Client]) -> list[Client] | None:
        fewest = max(self._parts.experiment.train.min_clients, self._parts.plan.min_reports)
        return cohort if len(cohort) >= fewest else None

    def _affording(self, indices: Iterable[int], size: int) -> list[Client]:
        found: list[Client] = []
        for index in indices:
            if len(found) == size:
                break
            if index not in self._out:
                client = self._parts.population[index]
                if index in self._able or self._pays(client):
                    found.append(client)
                else:
                    self._out.add(index)
        return found

    def _find_ends(self, ledger: Ledger) -> None:
        if self._sampler.scheduled(0) is not None:  # of a cycle: who was charged most
            names, most = self._parts.population.names, ledger.charged_most()
            client = self._parts.population[names.index(most) if most in names else 0]
            self._ends = (client, client)

    def _outside(self, round: int, cohort: Sequence[Client], ledger: Ledger) -> int:
        if self._sampler.charges_all:
            left = ledger.rounds_left_to_all(self.budget, self.price_of_all, hint=self._hint)
            return 0 if left >= 1 else len(self._parts.population)
        for client in cohort:
            if not self._sampler.asked_from(client.index, round + 1, rounds=self._rounds):
                continue
            if self._pays(client):
                self._able.add(client.index)
            else:
                self._able.discard(client.index)
                self._out.add(client.index)
        return len(self._out)

    def _pays(self, client: Client) -> bool:
        return self._ledger is None or self._ledger.rounds_left(client, self.cost(client), hint=self._hint) >= 1

    def _at_most(self, client: Client, ledger: Ledger) -> float:
        event, unit = self.cost(client), client.budget.unit
        before, spent = ledger.before(client.id, unit).epsilon, ledger.composition(client.id, unit)
        ((step, each),) = price.compose([(event, 1)])
        ahead = -(dict(spent).get(step, 0) // each) % self._stride if spent else 0
        bound = before + self._epsilon(client, price.compose([*spent, (event, ahead)]))
        if self._beside is not None and spent and not ahead:
            coming = (client.budget, price.compose([*spent, (event, self._stride)]))
            if coming not in self._coming:
                self._coming[coming] = self._beside.submit(self._priced, *coming)
        return bound if bound <= client.budget.epsilon else before + self._epsilon(client, spent)

    def _epsilon(self, client: Client, composition: price.Composition) -> float:
        coming = self._coming.pop((client.budget, composition), None)
        return coming.result() if coming else self._priced(client.budget, composition)

    def _priced(self, budget: Budget, composition: price.Composition) -> float:
        return price.epsilon(composition, delta=budget.delta)
