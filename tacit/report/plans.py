"""`tacit plan`: what noise costs and what a budget buys, before anything runs."""

from decimal import ROUND_CEILING, Context
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from rich.table import Table

from tacit import check
from tacit.build.parts import build, clients, make_plan
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import affordable
from tacit.privacy.accounting.calibrate import noise_multiplier as solve
from tacit.privacy.central.plan import CentralPlan
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.privacy.guarantee import shown_delta

GROUPS = 12  # distinct budgets beyond this are shown in so many groups of similar epsilon
RELATION = "record level, add or remove one, Poisson-sampled Gaussian"
LEVELS = {"record": RELATION, "client": "client level, one client's data against none, Gaussian on its whole update"}
CENTRAL = {
    "poisson": "client level, add or remove one client, Gaussian on the sum of a secret Poisson cohort",
    "fixed": "client level, replace one client, Gaussian on the sum of a secret cohort of fixed size",
}


def of_numbers(
    *,
    epsilon: float | None,
    delta: float,
    sampling_rate: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    accountant: str,
) -> dict[str, Any]:
    """Computes whichever of epsilon, steps and noise_multiplier is missing; with all three given it says if they agree."""
    if sampling_rate is None:
        raise BadInput(
            "Give an experiment, or --sampling-rate (the probability with which a record enters a step) and the other numbers."
        )
    check.rate(sampling_rate=sampling_rate)
    check.one_of(price.ACCOUNTANTS, accountant=accountant)
    missing = [name for name, value in (("epsilon", epsilon), ("noise-multiplier", noise_multiplier)) if value is None]
    if len(missing) == 2:
        raise BadInput(
            "Give --epsilon to get the noise, --noise-multiplier to get the epsilon, or both to get the steps."
        )
    answer: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    answer |= {"sampling_rate": sampling_rate, "steps": steps, "accountant": accountant, "guarantee": RELATION}
    if steps is None and missing:
        raise BadInput("--steps is needed: how many noisy steps are released.")
    if noise_multiplier is None and epsilon is not None and steps is not None:
        answer["noise_multiplier"] = z = solve(
            epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant
        )
        return answer | {"computed": "noise_multiplier", "epsilon_spent": _spent(z, answer, steps)}
    check.positive(noise_multiplier=noise_multiplier or 0)
    if epsilon is None:
        check.at_least(1, steps=steps or 0)
        return answer | {"computed": "epsilon", "epsilon": _spent(noise_multiplier or 0, answer, steps or 0)}
    check.positive(epsilon=epsilon)
    event = _event(noise_multiplier or 0, sampling_rate)
    most = affordable(event, epsilon=epsilon, delta=delta, accountant=accountant)
    spent = _spent(noise_multiplier or 0, answer, most) if most else 0.0
    return answer | {"computed": "steps", "steps": most, "epsilon_spent": spent}


def of_experiment(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per budget group of the experiment's clients."""
    if experiment.privacy.kind == "distributed":
        return _distributed(experiment)
    _, _, population = clients(experiment)
    plan = make_plan(experiment, population, size=0)
    if plan is None or isinstance(plan, DistributedPlan):
        raise BadInput('This experiment promises nothing (privacy.kind = "none"), so there is nothing to plan.')
    if isinstance(plan, CentralPlan):
        return [_central(experiment, population, plan)]
    order = np.argsort(population.epsilons, kind="stable")
    distinct = len(np.unique(population.epsilons))
    groups = _equal(order, population.epsilons) if distinct <= GROUPS else np.array_split(order, GROUPS)
    accountant, rows = experiment.privacy.accountant, []
    for members in groups:
        ends = [population[int(members[0])], population[int(members[-1])]]
        costs = [plan.mechanism(client) for client in ends]
        left = [
            affordable(
                cost.event(), epsilon=c.budget.epsilon, delta=c.budget.delta, accountant=accountant,
                most=experiment.train.rounds, hint=plan.participations,
            )
            for c, cost in zip(ends, costs, strict=True)
        ]  # fmt: skip
        z, rate, steps = plan.multipliers[members], plan.rates[members], plan.steps[members]
        rows.append(
            {
                "clients": len(members),
                "epsilon": [ends[0].budget.epsilon, ends[1].budget.epsilon],
                "delta": population.delta,
                "noise_multiplier": [float(z.min()), float(z.max())],
                "sampling_rate": [float(rate.min()), float(rate.max())],
                "steps": [int(steps.min()), int(steps.max())],
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(left), max(left)],
                "accountant": accountant,
                "guarantee": LEVELS[plan.unit],
            }
        )
    return rows


def _central(experiment: Experiment, population: Population, plan: CentralPlan) -> dict[str, Any]:
    """The one row of central DP: every client pays the same for every round."""
    mechanism, budget, accountant = plan.mechanism, population[0].budget, experiment.privacy.accountant
    limits = {"epsilon": budget.epsilon, "delta": budget.delta, "accountant": accountant}
    left = affordable(mechanism.event(), **limits, most=experiment.train.rounds, hint=plan.participations)
    z, spent = mechanism.noise_multiplier, ((mechanism.event(), max(left, 1)),)
    return {
        "clients": len(population),
        "epsilon": [budget.epsilon, budget.epsilon],
        "delta": budget.delta,
        "noise_multiplier": [z, z],
        "sampling_rate": [mechanism.rate, mechanism.rate],
        "steps": [1, 1],
        "planned_rounds": plan.participations,
        "affordable_rounds": [left, left],
        "epsilon_spent": price.epsilon(spent, delta=budget.delta, accountant=accountant) if left else 0.0,
        "accountant": accountant,
        "guarantee": CENTRAL[mechanism.sampler],
    }


def _distributed(experiment: Experiment) -> list[dict[str, Any]]:
    """One row for each group that is summed apart, with both prices: of the sums, and of single reports."""
    parts, rows = build(experiment), []
    population, plan = parts.population, parts.plan
    if not isinstance(plan, DistributedPlan):
        raise TypeError("distributed DP has a plan of its own")
    for number, noise in enumerate(plan.noises):
        mine = population.epsilons[plan.groups == number]
        low, high, rounds = float(mine.min()), float(mine.max()), experiment.train.rounds
        left = affordable(noise.event(), epsilon=low, delta=population.delta, most=rounds, hint=plan.participations)
        used = max(1, min(left, plan.participations))
        spent, alone = (price.epsilon(((e, used),), delta=population.delta) for e in (noise.event(), noise.alone()))
        rows.append(
            {
                "clients": len(mine),
                "epsilon": [low, high],
                "delta": population.delta,
                "noise_multiplier": [noise.multiplier, noise.multiplier],
                "fewest_reports": noise.fewest,
                "planned_rounds": plan.participations,
                "affordable_rounds": [left, left],
                "epsilon_spent": spent,
                "epsilon_single_reports": alone,
                "accountant": "rdp",
                "guarantee": f"client level, one client's data against none, {noise.law} shares on the sum of the reports",
            }
        )
    return rows


def table(answer: dict[str, Any] | list[dict[str, Any]]) -> Table:
    """The answer as a table."""
    if isinstance(answer, dict):
        shown = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in answer.items():
            if name != "computed" and value is not None:
                mark = " (computed)" if name == answer["computed"] else ""
                number = isinstance(value, int | float)
                shown.add_row(name.replace("_", " "), f"{_rounded(name, value, 6)}{mark}" if number else str(value))
        return shown
    names = [name for name in answer[0] if name not in ("delta", "accountant", "guarantee")]
    caption = f"{answer[0]['guarantee']}; delta {shown_delta(answer[0]['delta'])}; {answer[0]['accountant'].upper()}"
    shown = Table(*(name.replace("_", " ") for name in names), caption=caption)
    for row in answer:
        shown.add_row(*(_span(name, row[name]) for name in names))
    return shown


def _equal(order: np.ndarray, epsilons: np.ndarray) -> list[np.ndarray]:
    return np.split(order, np.flatnonzero(np.diff(epsilons[order])) + 1)


def _span(name: str, value: Any) -> str:
    low, high = (_rounded(name, end, 4) for end in (value if isinstance(value, list) else [value, value]))
    return low if low == high else f"{low} to {high}"


def _rounded(name: str, value: float, digits: int) -> str:
    """A number for print. What is spent, and the noise that keeps a budget, are rounded up: what is read must hold.

    >>> _rounded("epsilon", 2.00001, 4), _rounded("steps", 100.0, 4)
    ('2.001', '100')
    """
    up = "epsilon" in name or "multiplier" in name or name == "delta"
    exact = Context(prec=12).create_decimal(repr(float(value)))
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(exact)) if up else value:.{digits}g}"


def _event(z: float, rate: float) -> DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(z)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


def _spent(z: float, answer: dict[str, Any], steps: int) -> float:
    composition = ((_event(z, answer["sampling_rate"]), steps),)
    return price.epsilon(composition, delta=answer["delta"], accountant=answer["accountant"])
