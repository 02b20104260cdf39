"""Local DP in words and rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.experiment.asking import EVALUATION
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import EMPTIED, ONE_RECORD, Words
from tacit.privacy.purse import Purse
from tacit.privacy.queries.mechanism import priced
from tacit.types import Unit

if TYPE_CHECKING:
    from tacit.privacy.local.plan import LocalPlan

SIGHT = "the server, the other clients and everybody who sees updates or models"
RELATION = f"record level, {ONE_RECORD}, Poisson-sampled Gaussian"
LEVELS = {"record": RELATION, "client": f"client level, {EMPTIED}, Gaussian on its whole update"}


def promised(unit: Unit, queries: Sequence[str] = ()) -> Words:
    """What a client is promised, whose records or whose whole data are the unit; its queries are in the same price.

    >>> promised("record", ["ranges"]).sampler.partition("), ")[2]
    'and its answer, once, to 1 query (ranges), which is in this epsilon'
    """
    if unit == "client":
        return Words(SIGHT, EMPTIED, "whole updates (nothing is claimed for choosing clients at random)")
    sampler = "Poisson batches within a client (nothing is claimed for choosing clients at random)"
    if queries:
        many = f"answer, once, to 1 query ({queries[0]}), which is"
        if len(queries) > 1:
            many = f"answers, once each, to {len(queries)} queries ({', '.join(queries)}), which are"
        sampler = f"{sampler}, and its {many} in this epsilon"
    if EVALUATION in queries:
        sampler += f" ({EVALUATION} is about held-out records alone, which nothing else is about)"
    return Words(SIGHT, ONE_RECORD, sampler)


def rows(plan: "LocalPlan", purse: Purse) -> list[dict[str, Any]]:
    """A row for every group of clients with the same budget: noise, steps and affordable rounds from the least to the most."""
    table = []
    for members in purse.groups():
        ends = purse.ends(members)
        left = [
            purse.rounds(
                end,
                plan.mechanism(purse.population[end]).event(),
                hint=plan.participations,
                asked=plan.queries.events(end),
            )
            for end in ends
        ]
        z, rate, steps = plan.multipliers[members], plan.rates[members], plan.steps[members]
        table.append(
            {
                **purse.whose(members),
                "noise_multiplier": [float(z.min()), float(z.max())],
                "sampling_rate": [float(rate.min()), float(rate.max())],
                "steps": [int(steps.min()), int(steps.max())],
                **_asked(plan, purse, members),
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(left), max(left)],
                "accountant": purse.experiment.privacy.accountant,
                "guarantee": LEVELS[plan.unit],
            }
        )
    return table


def _asked(plan: "LocalPlan", purse: Purse, members: np.ndarray) -> dict[str, Any]:
    """What each query costs by itself, and its noise over the sensitivity, from the least to the most."""
    found: dict[str, Any] = {}
    population, accountant = purse.population, purse.experiment.privacy.accountant
    for query, z in plan.queries.multipliers.items():
        ends = float(z[members].max()), float(z[members].min())
        found[f"{query}_epsilon"] = [
            price.epsilon(((priced(end), 1),), delta=population.delta, accountant=accountant) for end in ends
        ]
        found[f"{query}_noise_multiplier"] = [ends[1], ends[0]]
    return found
