"""`tacit plan`: what noise costs and what a budget buys, before anything runs. The ledger is read, never written."""

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as Drawn

from tacit.algorithms.rules import share_of
from tacit.data.population import LEAST_REMAINING, Population
from tacit.engine.assemble import Parts, clients, model_size, refuse_unfit
from tacit.engine.ledgers import population_id, who_holds
from tacit.engine.queries import columns_asked, judged_by, query_of
from tacit.engine.start import start_of
from tacit.errors import BudgetExhausted
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, WORDS, shares
from tacit.parts import metrics, tasks
from tacit.personal import one
from tacit.privacy.guarantee import NOTHING_PROMISED, shown, shown_delta
from tacit.privacy.ledger import reader as ledgers
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import NOTHING, ROUNDING, Before
from tacit.privacy.plan import Plan, Remaining, kind_of
from tacit.privacy.queries.evaluation import Judgement, is_informative
from tacit.report.price import rounded
from tacit.report.writers import load_writers
from tacit.table import Column, Table

CAPTIONED = ("delta", "guarantee", "ledger", "ledger_runs", "ledger_delta", "note", "most_share")
KEPT = ("clients", "names", "epsilon", "noise_multiplier", "affordable_rounds", "affordable_turns")  # above the line
BESIDE = ("epsilon_spent", "epsilon_batches_known")  # above it, too, where batches' secrecy is all that parts them
HEADS = {
    "names": "who",
    "noise_multiplier": "noise over clip",
    "affordable_rounds": "rounds paid for",
    "planned_rounds": "rounds planned",
    "affordable_turns": "turns paid for",
    "planned_turns": "turns planned",
}
LONGEST_NAME = 16  # characters of a client's name in a table
MOST_NAMES = 4  # of a group's clients that are named; --json names all
MOST_EPSILON = 1e6  # beyond, no noise is left to speak of
CLOSE = 2e-3  # of an epsilon that is looked for


def table(answer: list[dict[str, Any]]) -> Drawn:
    """A row per budget group; what is the same for all of them stands below."""
    first = answer[0]
    # of what is asked beside training a terminal has room for the price alone; one row is everybody
    names = [name for name in first if name not in CAPTIONED and not name.endswith("_noise_multiplier")]
    heads = {name: HEADS.get(name, name.replace("_", " ")) for name in names if name != "names" or len(answer) > 1}
    if "epsilon_single_reports" in heads and any(row.get("sampling_rate", [1.0])[0] < 1 for row in answer):
        heads["epsilon_single_reports"] += " (batches secret)"
    above = KEPT + BESIDE * (BESIDE[-1] in first)
    same = [name for name in heads if name not in above and all(row[name] == first[name] for row in answer)]
    caption = [first["guarantee"], f"delta {shown_delta(first['delta'])}"]
    caption += [f"{heads[name]} {_span(name, first[name])}" for name in same]
    caption += [f"{_who(row['names'])}: {NOTHING_PROMISED}" for row in answer if row["guarantee"] == NOTHING_PROMISED]
    if (share := first.get("most_share", 1.0)) < 1:
        caption.append(f"one client counts for at most {100 * share:.3g} % of what all declare")
    if "ledger" in first:
        runs = f"{first['ledger_runs']} run{'s' * (first['ledger_runs'] != 1)}"
        spent = f"counts as spent (at delta {shown_delta(first['ledger_delta'])})"
        caption.append(f"{first['ledger']} holds {runs} of this unit: what they sealed, used or not, {spent}")
        caption.append("planned with what is left")
    kept = [name for name in heads if name not in same]
    return Table([Column(heads[name], [_span(name, row[name]) for row in answer]) for name in kept]).terminal(
        caption="; ".join(caption)
    )


def _who(names: Sequence[str]) -> str:
    """
    >>> _who(["a", "b"]), _who(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c and 3 more')
    """
    said = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]
    if len(said) <= MOST_NAMES:
        return ", ".join(said)
    return f"{', '.join(said[: MOST_NAMES - 1])} and {len(said) - MOST_NAMES + 1} more"


def _span(name: str, value: Any) -> str:
    if name == "names":
        return _who(value)
    return " to ".join(dict.fromkeys(rounded(name, end, 4) for end in (value if isinstance(value, list) else [value])))


def of_experiment(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per budget group of the experiment's clients, after what other runs of the ledger have sealed. Raises BadInput
    where nothing is promised, and for a part (metric, rule, model, loss, writer) or an option that is none; LedgerError where
    the ledger would refuse a run, and BudgetExhausted where budgets, or what it left of them, pay for no round."""
    metrics.load(tasks.chosen(experiment))
    privacy = experiment.privacy
    ledger = Path(privacy.ledger) if privacy.ledger else None
    before = ledgers.read_before(ledger, unit=privacy.unit_kept) if ledger else NOTHING
    dataset, _, population = clients(experiment, before=before)
    if ledger:
        holds = who_holds(experiment, population, dataset)
        ledgers.refuse_before(ledger, population=population_id(experiment, population), conditions=holds)
    size = model_size(experiment, dataset)
    plan = kind_of(experiment).plan(experiment, population, size=size)
    query_of(experiment, dataset, plan, population)  # all three refuse what would be asked for in vain
    judged = judged_by(experiment, dataset)
    columns_asked(experiment, dataset)
    load_writers(experiment.run.writers)
    model = refuse_unfit(plan, experiment, dataset, population)
    start_of(experiment, model).refuse_before(ledger)
    one.refuse_unfit(experiment.personal.kind, model, dataset.x)
    rows = plan.rows(Remaining(experiment, population, before))
    if not _paid(experiment, plan, rows):
        raise BudgetExhausted(_exhausted(experiment, population, before, size=size))
    more: dict[str, Any] = {}
    if judged and plan.priced and (note := tells_nothing(experiment, judged, plan, population)):
        more["note"] = note
    if advice := plan.advice(Remaining(experiment, population, before)):
        more["note"] = advice
    if (
        plan.rule(experiment, population) is not None and plan.batch_shares is None
    ):  # without one, clients count alike, or up to privacy.weight_cap
        more["most_share"] = share_of(experiment.aggregate.most_share, len(population))
    if before.runs:
        more |= {"ledger": str(ledger), "ledger_runs": before.runs, "ledger_delta": before.of(ALL).delta}
    return [row | more for row in rows]


def refuse_spent(parts: Parts) -> None:
    """Refuses a run that could pay for no round, or not after what other runs of its ledger have sealed, as the plan does.
    Raises: BudgetExhausted, or LedgerError where the ledger would refuse the run whatever is left."""
    experiment, population, plan, before = parts.experiment, parts.population, parts.plan, parts.before
    if not plan.priced or not (before.runs or experiment.privacy.noise_said):  # noise made for a budget is within it
        return
    if _paid(experiment, plan, plan.rows(Remaining(experiment, population, before))):
        return
    if experiment.privacy.ledger:
        holds = who_holds(experiment, population, parts.dataset)
        kept = population_id(experiment, population)
        ledgers.refuse_before(Path(experiment.privacy.ledger), population=kept, conditions=holds)
    raise BudgetExhausted(_exhausted(experiment, population, before, size=parts.params.numel()))


def _paid(experiment: Experiment, plan: Plan, rows: list[dict[str, Any]]) -> bool:
    pays = (row["affordable_turns" if "affordable_turns" in row else "affordable_rounds"][1] >= 1 for row in rows)
    paying = sum(row["clients"] for row, one_round in zip(rows, pays, strict=True) if one_round)
    return paying >= max(1, plan.min_reports, experiment.train.min_clients)


def enough_epsilon(experiment: Experiment, population: Population, *, size: int) -> float:
    """The smallest epsilon, rounded up to three digits, at which enough clients pay for a round, if all had the same."""

    def pays(epsilon: float) -> bool:
        equal = replace(population, epsilons=np.full(len(population), epsilon))
        plan = kind_of(experiment).plan(experiment, equal, size=size)
        return _paid(experiment, plan, plan.rows(Remaining(experiment, equal, NOTHING)))

    low, high = 0.0, float(np.min(population.epsilons))
    while not pays(high):
        low, high = high, 2 * high
        if high > MOST_EPSILON:
            return math.inf
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(high)))


def tells_nothing(experiment: Experiment, judged: Judgement, plan: Plan, population: Population) -> str:
    """A sentence where the answers about held-out rows would tell no more than a coin, by public numbers; else nothing."""
    share, sensitive = experiment.data.held_out or 0.0, {"l2_squared": judged.l2_squared, "cells": judged.cells}
    noises = [plan.queries.mechanism(EVALUATION, index, **sensitive) for index in range(len(population))]
    stds = np.array([noise.noise_std for noise in noises if noise is not None])
    expected = np.maximum(1.0, population.sizes * share / (1 - share))
    metric = metrics.key(tasks.chosen(experiment))
    if len(stds) < len(expected) or is_informative(judged, metric, stds, expected):
        return ""
    return (
        f"Note: beside its noise, {metrics.words(metric)} on about {expected.sum():.0f} held-out rows would tell no more than a"
        " coin: raise privacy.query_shares.evaluation, data.held_out or epsilon, or leave out data.held_out."
    )


def _exhausted(experiment: Experiment, population: Population, before: Before, *, size: int) -> str:
    if not before.runs:
        asked = "".join(f"{WORDS[query]} ({share:g} of epsilon) and " for query, share in shares(experiment).items())
        enough = enough_epsilon(experiment, population, size=size)
        would = f"privacy.epsilon = {enough:g} would be enough" if enough < math.inf else "no epsilon would be enough"
        return (
            f"Too few clients can pay for {asked}one round of training with this noise: {would}; or raise the noise, or leave it"
            " out and it follows from epsilon. Nothing was written."
        )
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
    if most <= LEAST_REMAINING * limit:
        return f"Nothing is left of any client's epsilon: {said}; another run needs a larger privacy.epsilon, if they agree."
    raised = "raise privacy.noise_multiplier, or leave it out."
    return f"What is left of epsilon pays for no round of enough clients: {said} than {_rest(most)}: {raised}"


def _rest(epsilon: float) -> str:
    """Rounded down to three decimals, or to three digits that count where it is small.

    >>> _rest(1.23456), _rest(0.00012345)
    ('1.234', '0.000123')
    """
    if epsilon >= 0.1:
        return f"{math.floor(epsilon * 1000) / 1000:.3f}"
    return f"{Context(prec=3, rounding=ROUND_FLOOR).create_decimal(repr(epsilon)):f}"
