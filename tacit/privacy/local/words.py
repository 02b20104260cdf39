"""Local DP in words and rows."""

from typing import TYPE_CHECKING, Any

from tacit.privacy.guarantee import EMPTIED, Words
from tacit.privacy.purse import Purse
from tacit.types import Unit

if TYPE_CHECKING:
    from tacit.privacy.local.plan import LocalPlan

SIGHT = "the server, the other clients and everybody who sees updates or models"
RELATION = "record level, add or remove one, Poisson-sampled Gaussian"
LEVELS = {"record": RELATION, "client": "client level, one client's data against none, Gaussian on its whole update"}


def promised(unit: Unit) -> Words:
    """What a client is promised, whose records or whose whole data are the unit."""
    if unit == "client":
        return Words(SIGHT, EMPTIED, "whole updates (nothing is claimed for choosing clients at random)")
    sampler = "Poisson batches within a client (nothing is claimed for choosing clients at random)"
    return Words(SIGHT, "add or remove one record of one client", sampler)


def rows(plan: "LocalPlan", purse: Purse) -> list[dict[str, Any]]:
    """A row for every group of clients with the same budget: noise, steps and affordable rounds from the least to the most."""
    table = []
    for members in purse.groups():
        ends = purse.ends(members)
        left = [
            purse.rounds(end, plan.mechanism(purse.population[end]).event(), hint=plan.participations) for end in ends
        ]
        z, rate, steps = plan.multipliers[members], plan.rates[members], plan.steps[members]
        table.append(
            {
                **purse.whose(members),
                "noise_multiplier": [float(z.min()), float(z.max())],
                "sampling_rate": [float(rate.min()), float(rate.max())],
                "steps": [int(steps.min()), int(steps.max())],
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(left), max(left)],
                "accountant": purse.experiment.privacy.accountant,
                "guarantee": LEVELS[plan.unit],
            }
        )
    return table
