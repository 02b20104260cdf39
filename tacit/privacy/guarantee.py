"""The promise of a run in words and numbers: what a privacy officer signs."""

import math
from dataclasses import replace

import numpy as np

from tacit.experiment import Experiment
from tacit.population import Population
from tacit.privacy import price
from tacit.privacy.client_mechanism import CohortGaussian
from tacit.privacy.client_plan import CentralPlan
from tacit.privacy.ledger import Ledger
from tacit.privacy.plan import Plan
from tacit.types import Guarantee, Unit

SEEDED = "a seed (an experiment: whoever knows the seed can remove the noise)"
FROM_OS = "the operating system's entropy"


SIGHT = "the server, the other clients and everybody who sees updates or models"
MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"
PUBLIC = (
    "the test set and all settings, their tuning included, are public",
    "floating-point noise stands for real-valued noise",
)
WHO = {
    "record": ("a record belongs to one client only", "each client's number of records is public"),
    "client": (
        "a person's data is with one client only",
        "the number of clients and their numbers of records are public",
    ),
}


def promise(experiment: Experiment, plan: Plan | CentralPlan) -> Guarantee:
    """The statement of a run before anything is spent: for whom, against whom, under which change."""
    privacy = experiment.privacy
    words = _central_words(plan.mechanism) if isinstance(plan, CentralPlan) else _local_words(privacy.unit_kept)
    return Guarantee(
        unit=privacy.unit_kept,
        **words,
        accountant={"pld": "PLD (dp-accounting)", "rdp": "RDP (dp-accounting)"}[privacy.accountant],
        delta=privacy.delta,
        epsilon_min=0.0,
        epsilon_median=0.0,
        epsilon_max=0.0,
        randomness=SEEDED if experiment.run.randomness == "seeded" else FROM_OS,
        assumes=(*WHO[privacy.unit_kept], *PUBLIC),
    )


def _local_words(unit: Unit) -> dict[str, str]:
    if unit == "client":
        relation = "empty one client, so that its update is zero"
        return {
            "adversary": SIGHT,
            "relation": relation,
            "sampler": "whole updates (nothing is claimed for choosing clients at random)",
        }
    sampler = "Poisson batches within a client (nothing is claimed for choosing clients at random)"
    return {"adversary": SIGHT, "relation": "add or remove one record of one client", "sampler": sampler}


def _central_words(mechanism: CohortGaussian) -> dict[str, str]:
    m = mechanism
    if m.sampler == "fixed":
        sampler = f"cohorts of {m.cohort} of {m.population} clients, without replacement"
        return {"adversary": MODELS_ONLY, "relation": "replace one client by another", "sampler": sampler}
    sampler = f"Poisson cohorts, each of {m.population} clients with probability {m.rate:.4g} in every round"
    return {"adversary": MODELS_ONLY, "relation": "add or remove one client", "sampler": sampler}


def spent_by(guarantee: Guarantee, ledger: Ledger, population: Population) -> Guarantee:
    """The statement with what the ledger says was spent, over all clients; who was never charged spent nothing."""
    spent = np.zeros(len(population))
    compositions, shared = ledger.compositions(guarantee.unit), ledger.composition(None, guarantee.unit)
    for index, name in enumerate(population.names):
        composition = compositions.get(name, shared)
        spent[index] = price.epsilon(composition, delta=guarantee.delta, accountant=ledger.accountant)
    low, middle, high = (float(value) for value in (spent.min(), np.median(spent), spent.max()))
    return replace(guarantee, epsilon_min=low, epsilon_median=middle, epsilon_max=high)


def shown(epsilon: float) -> str:
    """An epsilon for print, rounded up: a promise is never rounded in our favour.

    >>> shown(2.0921), shown(float("inf"))
    ('2.093', 'inf')
    """
    return "inf" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1000 - 1e-9) / 1000:.3f}"


def sentence(guarantee: Guarantee | None, *, other_runs: int = 0) -> str:
    """The guarantee in one sentence that a privacy officer can read."""
    if guarantee is None:
        return "No privacy is promised: nothing proves that whoever sees the updates cannot learn about single records."
    g = guarantee
    counted = "this run" if not other_runs else f"this run and the {other_runs} others in its ledger together"
    return (
        f"For every client, {g.unit}-level differential privacy: to {g.relation} changes the probability of anything that"
        f" {g.adversary} can observe by at most a factor of e^epsilon, except with probability delta = {g.delta:g};"
        f" the epsilon spent in {counted} is at most {shown(g.epsilon_max)} (smallest {shown(g.epsilon_min)}, median"
        f" {shown(g.epsilon_median)} over the clients), computed by {g.accountant} for {g.sampler}, with noise drawn from"
        f" {g.randomness}, provided that {', that '.join(g.assumes)}."
    )
