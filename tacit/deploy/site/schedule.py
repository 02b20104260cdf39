"""Whether sites' budgets pay for what central DP asks of them, told before there is a run: `init` and `check` ask what sites will.

Under central DP a site does not leave when its budget ends: it is paid for in all its turns, or in every round, or there is no
agreement (`pay.refuse_unpaid_turns`, `pay.prepay`)."""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch

import tacit
from tacit import wire
from tacit.data.dataset import Dataset
from tacit.deploy.site.limits import Limits, Roster
from tacit.deploy.site.rows import OWN_FILES, shape
from tacit.errors import BudgetExhausted, Refused
from tacit.experiment import Experiment
from tacit.privacy.central.kind import WeighedSums, one_budget
from tacit.privacy.ledger.filter import Spent, most_releases
from tacit.privacy.plan import kind_of
from tacit.types import Budget

# What a site says of itself when it is greeted: its name, and what it declares to be public.

DEALT = "client-"  # how clients are named that rows are dealt out to


def declaration(experiment: Experiment, limits: Limits, *, name: str, rows: Dataset) -> dict[str, Any]:
    """What the server is told of a site: name, number of rows, shape of a row, number of classes, budget and versions.

    Guarantee: the number of rows, the shape of one and the number of classes are all that is told of the data; none of them is
    noised, and the run's promise treats them as public. The epsilon is the smaller of what the site allows and what the
    experiment names for it.

    Assumes: the site's people have accepted the experiment (`refuse_beyond`): how rows are read decides what the shape is.
    """
    return {
        "site": name,
        "examples": len(rows.y),
        "shape": list(shape(rows)),
        "classes": rows.classes,
        "epsilon": min(limits.epsilon, proposed(experiment, name)),
        "unit": limits.unit,
        "tacit": tacit.__version__,
        "torch": torch.__version__,
    }


def proposed(experiment: Experiment, name: str) -> float:
    """The epsilon that an experiment names for a site; infinity where it promises nothing.

    A table names sites, a list those that rows are dealt out to (`client-0`, `client-1`, ...), and one number is for everybody.

    Raises: Refused where it names none for this site: then whatever a site declares would be believed.

    >>> proposed(Experiment(privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0}}), "coast")
    3.0
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict):
        own = epsilon.get(name)
    elif isinstance(epsilon, tuple) and name.startswith(DEALT) and name.removeprefix(DEALT).isdecimal():
        index = int(name.removeprefix(DEALT))
        own = epsilon[index] if index < len(epsilon) else None
    else:
        own = math.inf if epsilon is None else epsilon
    if not isinstance(own, int | float):
        raise Refused(
            f"The experiment names no epsilon for {wire.shown(name)}: write one for every site into privacy.epsilon, as `tacit"
            " deploy init` does."
        )
    return float(own)


def refuse_unpaid(experiment: Experiment, epsilons: Mapping[str, float], *, delta: float, site: str) -> None:
    """Refuses an experiment whose schedule, or whose number of rounds, a site's budget does not pay for. Nothing is written.

    `epsilons` are all sites' budgets by name, in the roster's order, and `delta` is that of this site's file. What earlier runs
    have sealed is not counted: the site's ledger says it.

    Raises: BudgetExhausted; BadInput where budgets differ, which one noise cannot serve, and for what has no plan.
    """
    kind, privacy = kind_of(experiment), experiment.privacy
    if not issubclass(kind.plans, WeighedSums):
        return
    known = [min(epsilon, proposed(experiment, name)) for name, epsilon in epsilons.items()]
    known = [min(known)] * len(known) if privacy.level == "minimum" else known
    roster = Roster(tuple(epsilons), (1,) * len(known), tuple(known), privacy.run_delta, privacy.unit_kept)
    population = roster.population((1,))
    one_budget(population)
    if not privacy.noise_said:
        return  # it is made to last
    plan = cast(WeighedSums, kind.plan(experiment, population, size=1))
    turns = plan.sampler.turns(list(epsilons).index(site), rounds=experiment.train.rounds)
    budget = Budget(epsilons[site], privacy.run_delta, privacy.unit_kept)
    left = most_releases(
        budget,
        plan.mechanism.event(),
        before=Spent(),
        total_delta=delta,
        rounds=turns,
        accountant=privacy.accountant,
        hint=turns,
        most_epsilon=known[list(epsilons).index(site)],
    )
    if left < turns:
        what = (
            "turns that the schedule gives it"
            if plan.sampler.scheduled(0) is not None
            else "rounds, each of which every site pays for"
        )
        raise BudgetExhausted(
            f"The site's budget (epsilon {budget.epsilon:g}, delta {delta:g} per {privacy.unit_kept}) pays for {left} of {turns}"
            f" {what}: raise privacy.noise_multiplier, or leave it out and it follows from epsilon; or lower train.rounds."
        )


def everybody(experiment: Experiment, site: str, epsilon: float) -> dict[str, float] | None:
    """All sites as one of them knows them from the experiment, itself included; None where it cannot. One noise needs one epsilon,
    so all are taken to have the site's own.
    """
    if experiment.data.name not in OWN_FILES:
        names = [f"{DEALT}{number}" for number in range(experiment.data.clients or 0)]
    else:
        names = list(experiment.privacy.epsilon) if isinstance(experiment.privacy.epsilon, dict) else []
    return dict.fromkeys(names, epsilon) if site in names else None
