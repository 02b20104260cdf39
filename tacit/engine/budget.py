"""Reads the ledger for the loop and for the reader: who can still pay, and what the tightest and the loosest client
have spent."""

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
    """Who is out of budget. Without a ledger nobody ever is."""

    def __init__(self, parts: Parts, ledger: Ledger | None, *, first_round: int = 0):
        self._parts, self._ledger = parts, ledger
        self.hint = parts.plan.participations
        self._out: set[int] = set()
        self._paying: set[int] = (
            set()
        )  # who was found able to pay after its last charge: what it is charged next asks again
        self._together = parts.plan.sampler.charges_all  # everybody pays for every round, drawn or not
        # while a device trains, the price that is shown next is computed; processes fork, beside which there are no threads
        self._beside = ThreadPoolExecutor(1) if ledger is not None and parts.theta.is_cuda else None
        self._coming: dict[tuple[Budget, price.Composition], Future[float]] = {}
        if ledger is not None:
            epsilons = parts.population.epsilons
            self._ends = (parts.population[int(np.argmin(epsilons))], parts.population[int(np.argmax(epsilons))])
            self._turns = parts.plan.sampler.scheduled(0) is not None
            self._find_most_turns(ledger)
            self._stride = -(-parts.plan.sampler.turns(None, rounds=parts.experiment.train.rounds) // MARKS)
            if not self._together:
                charged = ledger.charged()
                names, rounds = enumerate(parts.population.names), parts.experiment.train.rounds
                again = [
                    i
                    for i, name in names
                    if name in charged and parts.plan.sampler.asked_from(i, first_round, rounds=rounds)
                ]
                self.affording(again, len(parts.population))
        self._told = set(self._out) if first_round else set()  # a resumed run named them before it was stopped

    def affording(self, indices: Iterable[int], size: int) -> list[Client]:
        """The first `size` clients that can pay for the open round."""
        found: list[Client] = []
        for index in indices:
            if len(found) == size:
                break
            if index not in self._out:
                client = self._parts.population[index]
                if index in self._paying or self._pays(client):
                    found.append(client)
                else:
                    self._out.add(index)
        return found

    def leave(self, indices: Iterable[int]) -> None:
        """Takes clients for out of budget whose own ledgers say so; where all pay together, nobody leaves."""
        if not self._together:
            self._out |= set(indices)

    def after(self, cohort: Sequence[Client], *, last: bool) -> dict[str, Any]:
        """The numbers of a round, of whose cohort these may be asked again: who is out of budget from the next round on, and what
        the tightest and the loosest client have spent."""
        if self._ledger is None:
            return {"out_of_budget": 0}
        self._find_most_turns(self._ledger)
        others = self._ledger.other_runs(self._parts.population.unit)  # whose seals are in the two epsilons
        tightest, loosest = (self._at_most(client, self._ledger) for client in self._ends)
        outside = len(self._out) if last else self._outside(cohort)
        names, self._told = sorted(self._out - self._told), set(self._out)
        dropped = [self._parts.population.names[index] for index in names]
        ends = {"epsilon_tightest": tightest, "epsilon_loosest": loosest, "other_runs": others}
        return {"out_of_budget": outside, "dropped": dropped, **ends}

    def _find_most_turns(self, ledger: Ledger) -> None:
        if self._turns:
            names, most = self._parts.population.names, ledger.charged_most()
            client = self._parts.population[names.index(most) if most in names else 0]
            self._ends = (client, client)

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
        event = self._parts.algorithm.cost(client)
        if event is None:
            raise TypeError("a ledger is kept only for an algorithm that has a price")
        return event

    def _outside(self, cohort: Sequence[Client]) -> int:
        if self._together and self._ledger is not None:
            left = self._ledger.rounds_left_to_all(self.budget, self.price_of_all, hint=self.hint)
            return 0 if left >= 1 else len(self._parts.population)
        able = {client.index: self._pays(client) for client in cohort}
        spent = {index for index, pays in able.items() if not pays}
        self._out |= spent
        self._paying -= spent
        self._paying |= able.keys() - spent
        return len(self._out)

    def _pays(self, client: Client) -> bool:
        return self._ledger is None or self._ledger.rounds_left(client, self.cost(client), hint=self.hint) >= 1

    def _at_most(self, client: Client, ledger: Ledger) -> float:
        event = self.cost(client)
        before, spent = (
            ledger.before(client.id, client.budget.unit).epsilon,
            ledger.composition(client.id, client.budget.unit),
        )
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
        accountant = self._parts.experiment.privacy.accountant
        return price.epsilon(composition, delta=budget.delta, accountant=accountant)


# Who takes part in a round, and their payment: `draw` names them, `charged` has them pay, on disk, before it returns.


def gather(
    parts: Parts,
    ledger: Ledger | None,
    budgets: BudgetTracker,
    round: int,
    derive: Derive,
    *,
    away: Collection[int] = (),
) -> list[Client] | None:
    """The clients of a round, paid for; None where too few (or, if all must pay together, not all) can pay."""
    return charged(parts, ledger, budgets, draw(parts, budgets, round, derive, away=away))


def draw(
    parts: Parts, budgets: BudgetTracker, round: int, derive: Derive, *, away: Collection[int] = ()
) -> list[Client] | None:
    """The clients that a round is to have; None where too few can pay. **Nobody has paid.**
    Who is `away` is asked nothing and pays nothing, unless too few are left without, or all pay together."""
    if parts.plan.sampler.charges_all:
        drawn = cast(Sampler, parts.plan.sampler).draw(derive(round, "cohort"), round)
        return [parts.population[int(index)] for index in drawn]
    cohort = sample(parts, budgets, round, derive)
    here = [client for client in cohort if client.index not in away]
    cohort = here if len(here) >= _fewest(parts) else cohort
    return cohort if len(cohort) >= _fewest(parts) else None


def charged(
    parts: Parts, ledger: Ledger | None, budgets: BudgetTracker, cohort: list[Client] | None
) -> list[Client] | None:
    """Those of a cohort that have paid, on disk; None where too few (or, if all must pay together, not all) can pay."""
    if cohort is None:
        return None
    if parts.plan.sampler.charges_all:
        pays = ledger is not None and ledger.admit_everybody(budgets.budget, budgets.price_of_all, hint=budgets.hint)
        return cohort if pays else None
    paid = cohort if ledger is None else ledger.admit(cohort, budgets.cost, hint=budgets.hint)
    return paid if len(paid) >= _fewest(parts) else None


def _fewest(parts: Parts) -> int:
    return max(parts.experiment.train.min_clients, parts.plan.min_reports)


def sample(parts: Parts, budgets: BudgetTracker, round: int, derive: Derive) -> list[Client]:
    """The clients of a round that can still pay: whose turn it is, or a uniform choice at a cost that does not depend on others."""
    turn = parts.plan.sampler.scheduled(round)
    if turn is not None:
        return budgets.affording(turn, len(turn))
    everybody, size = len(parts.population), parts.cohort
    rng = derive(round, "cohort").generator()
    if size >= everybody:
        return budgets.affording(range(everybody), everybody)
    first = rng.choice(everybody, size=min(everybody, 2 * size + 16), replace=False)
    cohort = budgets.affording(first.tolist(), size)
    if len(cohort) < size:  # many are out of budget: look at all
        cohort = budgets.affording(rng.permutation(everybody).tolist(), size)
    return sorted(cohort, key=lambda client: client.index)
