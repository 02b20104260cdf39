"""A search all of whose runs are seen: each client's epsilon is divided so that all runs together keep it.

Every run is an ordinary one with a ledger of its own, in which a client has a smaller epsilon. That ledger lets it release at most
so many times, whatever happens; the price of the search is that of so many releases in each of the runs, composed as one. A run
that is scored by rows which clients hold out asks them once: that answer, with its noise, is a release of the run like any other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.build.parts import Parts, assemble
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import BadInput, BudgetExhausted
from tacit.privacy.accounting import price
from tacit.privacy.accounting.selected import Repetitions
from tacit.privacy.ledger.filter import Spent, most_releases
from tacit.privacy.ledger.tables import ALL
from tacit.tuning.grid import Candidate
from tacit.tuning.price import Priced, Releases, all_seen

LOOKS, NEAR, STEP, SMALLER = (
    5,
    0.99,
    5.0,
    0.8,
)  # how often a share is bettered, when it is good enough, and by how much it moves
LEAST_SHARE = 1e-3  # of an epsilon, for one run

Paid = dict[str, Releases]


def composed(candidates: Sequence[Candidate], dataset: Dataset, population: Population, law: Repetitions) -> Priced:
    """The price of a search all of whose runs are seen, each with an epsilon for every client such that together they keep its own.

    Guarantee: what each client may release in all runs costs at most what other runs of the ledger have left of its epsilon.

    Raises: BadInput where candidates differ in what a client pays, BudgetExhausted where a client could pay for no round.
    """
    first, count = candidates[0], round(law.mean)
    accountant, left = first.experiment.privacy.accountant, population.to_spread

    def at(share: np.ndarray) -> tuple[np.ndarray, Paid]:
        paid = _paid(_parts(first, dataset, population, left * share))
        how = {"delta": population.delta, "accountant": accountant}
        return np.array([price.epsilon(one.in_runs(count), **how) for one in paid.values()]), paid

    share = _shares(at, left, count)
    epsilons = left * share
    runs = tuple(_with_budgets(candidate, population, epsilons) for candidate in candidates)
    paid = at(share)[1]
    for name, one in paid.items():
        if one.times == 0:
            who, whose = (name, "its") if name != ALL else ("The clients together", "their")
            raise BudgetExhausted(f"{who} could pay for no round of {count} runs: raise {whose} epsilon, or the noise.")
    for candidate in candidates[1:]:
        if _paid(_parts(candidate, dataset, population, epsilons)) != paid:
            raise BadInput(
                f"All runs of this search are seen, so they have one price, and {candidate.label!r} has another than"
                f" {first.label!r}: vary what costs nothing, such as a learning rate, a model or a rule."
            )
    return all_seen(runs, paid, law, delta=population.delta, accountant=accountant)


def refuse_other_price(priced: Priced, parts: Parts) -> None:
    """Refuses a run in which some client would release anything else, or more often, than what is charged. Raises BadInput."""
    law = priced.repetitions
    made = all_seen((), _paid(parts), law, delta=priced.delta, accountant=parts.experiment.privacy.accountant)
    if (made.events, made.asked) != (priced.events, priced.asked):
        raise BadInput("its clients would pay another price than that of the search: name their epsilons otherwise.")


def _shares(at: Any, left: np.ndarray, count: int) -> np.ndarray:
    """The share of its epsilon that a run may cost each client, such that `count` of them keep it: by a few secant steps."""
    limited, share = np.isfinite(left), np.full(len(left), count**-0.5)
    kept = np.where(limited, 0.0, 1.0)
    for _ in range(LOOKS):
        costs, _ = at(share)
        fits = costs <= left
        kept = np.where(limited & fits, np.maximum(kept, share), kept)
        if np.all(~limited | (fits & (costs >= NEAR * left))):
            break
        ratio = np.divide(left, costs, out=np.ones_like(left), where=limited & (costs > 0))
        share = np.minimum(1.0, share * np.clip(ratio, 1 / STEP, STEP) * (1 + NEAR) / 2)
    while not kept.all() or not np.all(at(kept)[0] <= left):
        share = np.where(kept > 0, kept, share) * SMALLER
        if share.min() < LEAST_SHARE:
            raise BudgetExhausted(
                f"No share of epsilon pays for {count} runs: raise epsilon or the noise, or run fewer."
            )
        costs, _ = at(share)
        kept = np.where(costs <= left, share, 0.0)
    return kept


def _parts(candidate: Candidate, dataset: Dataset, population: Population, epsilons: np.ndarray) -> Parts:
    return assemble(candidate.experiment, dataset, replace(population, epsilons=epsilons, sealed=None))


def _paid(parts: Parts) -> Paid:
    """What each client releases in a run, how often its ledger would let it, and what it answers beside that."""
    privacy, found, known = parts.experiment.privacy, {}, {}
    names = (
        [ALL] if parts.plan.together else parts.population.names
    )  # where the draw is in the price, all pay the same in one row
    for index, name in enumerate(names):
        client = parts.population[index]
        event = parts.algorithm.cost(client)
        if event is None:
            raise BadInput("Nothing is promised here, so that a search has no price: use `tacit compare`.")
        asked = tuple(sorted(parts.plan.asked(index).items()))
        if (event, client.budget, asked) not in known:
            known[event, client.budget, asked] = most_releases(
                client.budget,
                event,
                before=Spent(),
                total_delta=privacy.delta,
                rounds=parts.experiment.train.rounds,
                accountant=privacy.accountant,
                hint=parts.plan.participations,
                asked=dict(asked),
            )
        found[name] = Releases(event, known[event, client.budget, asked], asked)
    return found


def _with_budgets(candidate: Candidate, population: Population, epsilons: np.ndarray) -> Candidate:
    """The candidate with every client's epsilon for one run."""
    same = bool((epsilons == epsilons[0]).all())
    spec = float(epsilons[0]) if same else dict(zip(population.names, epsilons.tolist(), strict=True))
    privacy = candidate.experiment.privacy.model_copy(update={"epsilon": spec, "level": "own"})
    return replace(candidate, experiment=candidate.experiment.model_copy(update={"privacy": privacy}))
