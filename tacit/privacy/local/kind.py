"""Local DP: each client noises what it sends, and is protected from everybody who sees it."""

from typing import Any

import numpy as np

from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.local.plan import LocalPlan
from tacit.privacy.local.strategies import pfa_code_noise, same_noise, sampling_rates, spread
from tacit.privacy.plan import Plan, planned_participations
from tacit.privacy.queries.plan import asked_of


class Local:
    """The kind `local`: each client noises what it sends.

    The server, the other clients and everybody who sees updates or models are adversaries: nobody is trusted but the client's
    own machine. Each client pays for the rounds it takes part in, from its own budget.
    """

    plans = LocalPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """Every client's noise, by the strategy that the experiment names.

        `own` is the one client whose noise is needed (a site): by the strategy spread the others' stay NaN, which is cheaper
        and changes nothing of its own.

        Raises: BadInput where there is no budget to derive noise from, or no noise keeps it.
        """
        privacy, train = experiment.privacy, experiment.train
        if experiment.run.precision != "float32" and privacy.unit_kept == "record":
            raise BadInput(
                f'run.precision = "{experiment.run.precision}" rounds the factors of products, and gradients that are clipped'
                " example by example could exceed the clip: leave it out."
            )
        cohort = train.clients_per_round or len(population)
        rates, steps = record_steps(experiment, population)
        participations = planned_participations(rounds=train.rounds, share=cohort / len(population))
        common: dict[str, Any] = {
            "rates": rates,
            "steps": steps,
            "participations": participations,
            "accountant": privacy.accountant,
            "asked": asked_of(experiment, population),
        }
        if privacy.noise_formula:
            multipliers = pfa_code_noise(population, rates=rates)
        elif privacy.rule == "spread":
            multipliers = spread(population, **common, own=own)
        else:
            given = {
                "clip": privacy.clip,
                "multiplier": privacy.noise_multiplier,
                "noise_on_mean": privacy.noise_on_mean,
            }
            multipliers = same_noise(population, **(common | given))
        priced = privacy.noise_formula is None
        noise = (rates, steps, multipliers)
        return LocalPlan(privacy.clip, participations, *noise, priced, privacy.unit_kept, common["asked"])

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: the site's own noise protects it from every server."""


def record_steps(experiment: Experiment, population: Population) -> tuple[np.ndarray, np.ndarray]:
    """The sampling rate and the noised steps of each client's round; a noised whole update is one step without sampling.

    With local epochs a client takes ceil(epochs / q) steps: as many as sample its records `epochs` times on average.
    """
    train, everybody = experiment.train, len(population)
    if experiment.privacy.unit_kept == "client":
        return np.ones(everybody), np.ones(everybody, dtype=int)
    rates = sampling_rates(population.sizes, batch_size=train.batch, sampling_rate=train.sampling_rate)
    if train.local_epochs:
        return rates, np.ceil(train.local_epochs / rates).astype(int)
    return rates, np.full(everybody, train.steps)


KIND = Local()
