"""Central DP: the server is trusted, clips every update and noises the sum; secret cohorts make the noise count for more."""

from tacit.data.population import Population
from tacit.experiment import Experiment
from tacit.privacy.central.plan import CentralPlan, central_plan
from tacit.privacy.plan import Plan


class Central:
    """The kind `central`: client-level DP at a trusted server.

    The server sees every clipped update and who sent it; whoever sees the models sees one noised sum a round. Who was drawn is
    the server's secret. All clients pay for every round, because the price rests on nobody knowing who is in it.
    """

    plans = CentralPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """One noise for all clients, from their one budget: the given multiplier, or the smallest that makes it last the rounds.

        Raises: BadInput where budgets differ, no noise can be derived or keeps the budget, or the cohort exceeds the
        population.
        """
        privacy, train = experiment.privacy, experiment.train
        return central_plan(
            population,
            cohort=train.clients_per_round or len(population),
            sampler="fixed" if train.sampler == "fixed" else "poisson",  # "cyclic" is another kind
            rounds=train.rounds,
            clip=privacy.clip,
            multiplier=privacy.noise_multiplier,
            adaptive=privacy.clip_quantile is not None,
            count_noise=privacy.count_noise,
            weight_cap=privacy.weight_cap,
            accountant=privacy.accountant,
        )

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: that the server is trusted is what the kind says, and a site accepts it by accepting the experiment."""


KIND = Central()
