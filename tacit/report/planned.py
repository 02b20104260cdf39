"""The rows of `tacit plan EXPERIMENT`: noise, price and affordable rounds of every budget group, after what other runs of the
ledger have sealed. The ledger is read, never written.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit.build.parts import build, clients, make_plan, population_id
from tacit.data.dataset import Dataset
from tacit.data.population import CRUMB, Population
from tacit.errors import BadInput, BudgetExhausted
from tacit.experiment import Experiment
from tacit.privacy import before as ledgers
from tacit.privacy.accounting import price
from tacit.privacy.before import NOTHING, Before
from tacit.privacy.central.plan import CentralPlan
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger import filter as seals
from tacit.privacy.ledger.filter import ROUNDING
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.ledger import ALL
from tacit.privacy.local.plan import Plan
from tacit.report.plans import RELATION

GROUPS = 12  # distinct budgets beyond this are shown in so many groups of similar epsilon
LEVELS = {"record": RELATION, "client": "client level, one client's data against none, Gaussian on its whole update"}
CENTRAL = {
    "poisson": "client level, add or remove one client, Gaussian on the sum of a secret Poisson cohort",
    "fixed": "client level, replace one client, Gaussian on the sum of a secret cohort of fixed size",
}
Plans = Plan | CentralPlan | DistributedPlan


def of_experiment(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per budget group of the experiment's clients.

    Raises BadInput where nothing is promised, LedgerError where the ledger would refuse a run, and BudgetExhausted where it has
    left too little for one round.
    """
    privacy = experiment.privacy
    before = ledgers.read(Path(privacy.ledger), unit=privacy.unit_kept) if privacy.ledger else NOTHING
    dataset, population, plan = _parts(experiment, before)
    if privacy.ledger:
        _refuse(experiment, dataset, population, Path(privacy.ledger))
    if isinstance(plan, CentralPlan):
        rows = [_central(experiment, population, plan, before)]
    elif isinstance(plan, DistributedPlan):
        rows = _distributed(experiment, population, plan, before)
    else:
        rows = _local(experiment, population, plan, before)
    if not before.runs:
        return rows
    fewest = plan.fewest if isinstance(plan, DistributedPlan) else experiment.train.min_clients
    paying = sum(row["clients"] for row in rows if row["affordable_rounds"][1] >= 1)
    if paying < max(1, fewest):
        raise BudgetExhausted(_exhausted(experiment, population, before))
    known = {"ledger": str(privacy.ledger), "ledger_runs": before.runs, "ledger_delta": before.of(ALL).delta}
    return [row | known for row in rows]


def _parts(experiment: Experiment, before: Before) -> tuple[Dataset, Population, Plans]:
    if experiment.privacy.kind == "distributed":  # its noise depends on the size of the model
        parts = build(experiment, before=before)
        dataset, population, plan = parts.dataset, parts.population, parts.plan
    else:
        dataset, _, population = clients(experiment, before=before)
        plan = make_plan(experiment, population, size=0)
    if plan is None:
        raise BadInput('This experiment promises nothing (privacy.kind = "none"), so there is nothing to plan.')
    return dataset, population, plan


def _refuse(experiment: Experiment, dataset: Dataset, population: Population, path: Path) -> None:
    natural = experiment.data.partition == "natural"
    conditions = [holdings(population, dataset)] if natural else []
    ledgers.refuse(path, population=population_id(experiment, population), conditions=conditions)


def _local(experiment: Experiment, population: Population, plan: Plan, before: Before) -> list[dict[str, Any]]:
    rows = []
    for members in _groups(population):
        ends = [
            int(members[index]) for index in (np.argmin(population.left[members]), np.argmax(population.left[members]))
        ]
        events = [plan.mechanism(population[end]).event() for end in ends]
        left = [
            _rounds(experiment, population, index, event, before, hint=plan.participations)
            for index, event in zip(ends, events, strict=True)
        ]
        z, rate, steps = plan.multipliers[members], plan.rates[members], plan.steps[members]
        rows.append(
            {
                **_whose(population, members),
                "noise_multiplier": [float(z.min()), float(z.max())],
                "sampling_rate": [float(rate.min()), float(rate.max())],
                "steps": [int(steps.min()), int(steps.max())],
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(left), max(left)],
                "accountant": experiment.privacy.accountant,
                "guarantee": LEVELS[plan.unit],
            }
        )
    return rows


def _central(experiment: Experiment, population: Population, plan: CentralPlan, before: Before) -> dict[str, Any]:
    """The one row of central DP: every client pays the same for every round."""
    mechanism, accountant = plan.mechanism, experiment.privacy.accountant
    left = _rounds(experiment, population, None, mechanism.event(), before, hint=plan.participations)
    z, spent = mechanism.noise_multiplier, ((mechanism.event(), max(left, 1)),)
    return {
        **_whose(population, np.arange(len(population))),
        "noise_multiplier": [z, z],
        "sampling_rate": [mechanism.rate, mechanism.rate],
        "steps": [1, 1],
        "planned_rounds": plan.participations,
        "affordable_rounds": [left, left],
        "epsilon_spent": price.epsilon(spent, delta=population.delta, accountant=accountant) if left else 0.0,
        "accountant": accountant,
        "guarantee": CENTRAL[mechanism.sampler],
    }


def _distributed(
    experiment: Experiment, population: Population, plan: DistributedPlan, before: Before
) -> list[dict[str, Any]]:
    """One row for each group that is summed apart, with both prices: of the sums, and of single reports."""
    rows = []
    for number, noise in enumerate(plan.noises):
        mine = np.flatnonzero(plan.groups == number)
        ends = [int(mine[index]) for index in (np.argmin(population.left[mine]), np.argmax(population.left[mine]))]
        rounds = [_rounds(experiment, population, k, noise.event(), before, hint=plan.participations) for k in ends]
        used = max(1, min(*rounds, plan.participations))
        spent, alone = (price.epsilon(((e, used),), delta=population.delta) for e in (noise.event(), noise.alone()))
        rows.append(
            {
                **_whose(population, mine),
                "noise_multiplier": [noise.multiplier, noise.multiplier],
                "fewest_reports": noise.fewest,
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(rounds), max(rounds)],
                "epsilon_spent": spent,
                "epsilon_single_reports": alone,
                "accountant": "rdp",
                "guarantee": f"client level, one client's data against none, {noise.law} shares on the sum of the reports",
            }
        )
    return rows


def _whose(population: Population, members: np.ndarray) -> dict[str, Any]:
    """The first columns of a row: how many clients, what they allow, and what other runs have sealed of that."""
    epsilons, sealed = population.epsilons[members], population.sealed
    row: dict[str, Any] = {"clients": len(members), "epsilon": [float(epsilons.min()), float(epsilons.max())]}
    if sealed is not None:
        row["epsilon_sealed"] = [float(sealed[members].min()), float(sealed[members].max())]
    return row | {"delta": population.delta}


def _groups(population: Population) -> Sequence[np.ndarray]:
    """Clients with equal epsilon and equal rest of it; of many such groups, a few of similar ones."""
    order = np.lexsort((population.left, population.epsilons))
    epsilons, left = population.epsilons[order], population.left[order]
    cuts = np.flatnonzero((epsilons[1:] != epsilons[:-1]) | (left[1:] != left[:-1])) + 1
    return np.split(order, cuts) if len(cuts) < GROUPS else np.array_split(order, GROUPS)


def _rounds(
    experiment: Experiment, population: Population, index: int | None, event: DpEvent, before: Before, *, hint: int
) -> int:
    """How many of the planned rounds a client can pay for, as the ledger would say; without an index, everybody together."""
    privacy, rounds = experiment.privacy, experiment.train.rounds
    known = before.of(ALL if index is None else population.names[index])
    limits = {"before": known, "total_delta": privacy.delta, "rounds": rounds, "accountant": privacy.accountant}
    return min(rounds, seals.most_releases(population[index or 0].budget, event, **limits, hint=hint))


def _exhausted(experiment: Experiment, population: Population, before: Before) -> str:
    """Why nobody can pay for a round, and what can be done."""
    privacy, runs = experiment.privacy, f"{before.runs} run{'s' * (before.runs != 1)}"
    gone, of = before.of(ALL), f"of the ledger {privacy.ledger}"
    if gone.delta + privacy.run_delta > privacy.delta * (1 + ROUNDING):
        return (
            f"Too little of delta is left for another run: the {runs} {of} took {shown_delta(gone.delta)} of privacy.delta ="
            f" {privacy.delta:g}, and this one asks for {shown_delta(privacy.run_delta)}: lower privacy.delta_share, if there is"
            " a rest."
        )
    index = int(np.argmax(population.left))
    name, limit, most = population.names[index], float(population.epsilons[index]), float(population.left[index])
    sealed = shown(limit - most if population.sealed is None else float(population.sealed[index]))
    said = f"the {runs} {of} sealed epsilon {sealed} of the {limit:.4g} per {population.unit} of {name}, and nobody has more left"
    if most <= CRUMB * limit:
        return f"Nothing is left of any client's epsilon: {said}; another run needs a larger privacy.epsilon, if they agree."
    rest = math.floor(most * 1000) / 1000
    raised = "raise privacy.noise_multiplier, or leave it out."
    return f"What is left of epsilon pays for no round of enough clients: {said} than {rest:.3f}: {raised}"
