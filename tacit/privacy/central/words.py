"""Central DP in words and rows."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.privacy.accounting import price
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.guarantee import Words
from tacit.privacy.purse import Purse

if TYPE_CHECKING:
    from tacit.privacy.central.plan import CentralPlan

MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"
LEVELS = {
    "poisson": "client level, add or remove one client, Gaussian on the sum of a secret Poisson cohort",
    "fixed": "client level, replace one client, Gaussian on the sum of a secret cohort of fixed size",
}


def promised(mechanism: CohortGaussian) -> Words:
    """What every client is promised, by cohorts of random or of fixed size: the relation is that of the mechanism's price."""
    m = mechanism
    if m.sampler == "fixed":
        sampler = f"cohorts of {m.cohort} of {m.population} clients, without replacement"
        return Words(MODELS_ONLY, "replace one client by another", sampler)
    sampler = f"Poisson cohorts, each of {m.population} clients with probability {m.rate:.4g} in every round"
    return Words(MODELS_ONLY, "add or remove one client", sampler)


def row(plan: "CentralPlan", purse: Purse) -> dict[str, Any]:
    """The one row: every client pays the same for every round. `epsilon_spent` is the price of the rounds that can be paid for."""
    mechanism, accountant = plan.mechanism, purse.experiment.privacy.accountant
    left = purse.rounds(None, mechanism.event(), hint=plan.participations)
    z, spent = mechanism.noise_multiplier, ((mechanism.event(), max(left, 1)),)
    return {
        **purse.whose(np.arange(len(purse.population))),
        "noise_multiplier": [z, z],
        "sampling_rate": [mechanism.rate, mechanism.rate],
        "steps": [1, 1],
        "planned_rounds": plan.participations,
        "affordable_rounds": [left, left],
        "epsilon_spent": price.epsilon(spent, delta=purse.population.delta, accountant=accountant) if left else 0.0,
        "accountant": accountant,
        "guarantee": LEVELS[mechanism.sampler],
    }
