"""The rows of `tacit plan EXPERIMENT`: noise, price and affordable rounds of every budget group, after what other runs of the
ledger have sealed. The ledger is read, never written.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from tacit.build.parts import Parts, clients, model_size, population_id
from tacit.data.dataset import Dataset
from tacit.data.population import CRUMB, Population
from tacit.engine.at_clients import judged_by
from tacit.engine.describing import columns_asked
from tacit.engine.ranges import query_of
from tacit.errors import BudgetExhausted
from tacit.experiment import Experiment
from tacit.experiment.asking import WORDS, shares
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger import before as ledgers
from tacit.privacy.ledger.before import NOTHING, Before
from tacit.privacy.ledger.filter import ROUNDING
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.tables import ALL
from tacit.privacy.plan import Plan
from tacit.privacy.purse import Purse


def of_experiment(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per budget group of the experiment's clients.

    Raises BadInput where nothing is promised, LedgerError where the ledger would refuse a run, and BudgetExhausted where it has
    left too little for one round.
    """
    privacy = experiment.privacy
    before = ledgers.read(Path(privacy.ledger), unit=privacy.unit_kept) if privacy.ledger else NOTHING
    dataset, _, population = clients(experiment, before=before)
    if privacy.ledger:
        _refuse(experiment, dataset, population, Path(privacy.ledger))
    plan = kind_of(experiment).plan(experiment, population, size=model_size(experiment, dataset))
    query_of(experiment, dataset, plan, population)  # all three refuse what would be asked for in vain
    judged_by(experiment, dataset)
    columns_asked(experiment, dataset)
    rows = plan.rows(Purse(experiment, population, before))
    if not before.runs:
        if shares(experiment) and not _paid(experiment, plan, rows):
            raise BudgetExhausted(_too_dear(experiment))
        return rows
    if not _paid(experiment, plan, rows):
        raise BudgetExhausted(_exhausted(experiment, population, before))
    known = {"ledger": str(privacy.ledger), "ledger_runs": before.runs, "ledger_delta": before.of(ALL).delta}
    return [row | known for row in rows]


def refuse_spent(parts: Parts) -> None:
    """Refuses a run that could pay for no round after what other runs of its ledger have sealed, in the sentence of the plan.

    Raises: BudgetExhausted, or LedgerError where the ledger would refuse the run whatever is left.
    """
    experiment, population, plan, before = parts.experiment, parts.population, parts.plan, parts.before
    if not before.runs or not plan.priced or _paid(experiment, plan, plan.rows(Purse(experiment, population, before))):
        return
    if experiment.privacy.ledger:
        _refuse(experiment, parts.dataset, population, Path(experiment.privacy.ledger))
    raise BudgetExhausted(_exhausted(experiment, population, before))


def _paid(experiment: Experiment, plan: Plan, rows: list[dict[str, Any]]) -> bool:
    """Whether enough clients can pay for a round."""
    paying = sum(row["clients"] for row in rows if row["affordable_rounds"][1] >= 1)
    return paying >= max(1, plan.fewest, experiment.train.min_clients)


def _refuse(experiment: Experiment, dataset: Dataset, population: Population, path: Path) -> None:
    natural = experiment.data.partition == "natural"
    conditions = [holdings(population, dataset)] if natural else []
    ledgers.refuse(path, population=population_id(experiment, population), conditions=conditions)


def _too_dear(experiment: Experiment) -> str:
    asked = " and ".join(f"{WORDS[query]} ({share:g} of epsilon)" for query, share in shares(experiment).items())
    return (
        f"Too few clients can pay for {asked} and one round of training: raise privacy.noise_multiplier, or leave it out, or"
        " raise privacy.epsilon."
    )


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
