"""Central DP in words and rows."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.guarantee import EMPTIED, ONE_CLIENT, REPLACED, Words
from tacit.privacy.purse import Purse

if TYPE_CHECKING:
    from tacit.privacy.central.plan import CentralPlan

MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"
UNWATCHED = (
    "everybody who sees the models, and neither the network's traffic nor the server's log, which show who took part in which round"
    " (the server is trusted)"
)
ALL_SEEN = "everybody who sees the models and who took part in which round (the server is trusted)"
LEVELS = {
    "poisson": f"client level, {ONE_CLIENT}, Gaussian on the sum of a secret Poisson cohort",
    "fixed": f"client level, {REPLACED}, Gaussian on the sum of a secret cohort of fixed size",
}


def promised(mechanism: CohortGaussian, experiment: Experiment) -> Words:
    """What every client is promised, by cohorts of random or of fixed size: the relation is that of the mechanism's price.

    Where everybody is in every round nothing is secret: then a client that comes or goes is seen to, and what is promised is that
    nobody can tell it from one that sends nothing, at the same price.
    """
    m = mechanism
    if not experiment.secret_cohorts:
        relation = REPLACED if m.sampler == "fixed" else EMPTIED
        return Words(ALL_SEEN, relation, f"all {m.population} clients in every round")
    adversary = MODELS_ONLY if experiment.privacy.network is None else UNWATCHED
    if m.sampler == "fixed":
        sampler = f"cohorts of {m.cohort} of {m.population} clients, without replacement"
        return Words(adversary, REPLACED, sampler)
    sampler = f"Poisson cohorts, each of {m.population} clients with probability {m.rate:.4g} in every round"
    return Words(adversary, ONE_CLIENT, sampler)


def level(mechanism: CohortGaussian, experiment: Experiment) -> str:
    """The promise in a few words, for a table."""
    if experiment.secret_cohorts:
        return LEVELS[mechanism.sampler]
    return f"client level, {promised(mechanism, experiment).relation}, Gaussian on the sum of all clients"


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
        "guarantee": level(mechanism, purse.experiment),
    }
