"""Central DP: the server is trusted, clips every update and noises the sum; secret cohorts make the noise count for more."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tacit.algorithms import Algorithm
from tacit.algorithms.central_dp import CentralDP
from tacit.data.population import Population
from tacit.digest import mark
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import smallest
from tacit.privacy.central.mechanism import CohortGaussian, QuantileClip, Sampler
from tacit.privacy.guarantee import EMPTIED, ONE_CLIENT, REPLACED, Words
from tacit.privacy.plan import Plan, Purse
from tacit.privacy.wiring import Wiring
from tacit.random import Stream
from tacit.types import Client

# Central DP in words and rows.


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


# The plan of central DP: one mechanism for all, from the budget and the planned rounds.

CLIP_RATE = 0.2  # eta_C: section 3.1 of arXiv:1905.03871
COUNT_SHARE = 20  # sigma_b = m / 20: section 3.1 of arXiv:1905.03871


@dataclass(frozen=True, eq=False)
class WeighedSums(Plan):
    """A trusted server that noises sums of clipped updates: its mechanism, how often a client is in one at most, and every client's
    weight (at most 1). The sum is divided by `expected_weight`, which is public.
    """

    summed: ClassVar[bool] = True
    trusts_server: ClassVar[bool] = True
    own_training: ClassVar[bool] = False

    mechanism: Any  # a CohortMechanism with a `rate` and a noise multiplier
    participations: int
    weights: np.ndarray = field(repr=False)

    @property
    def training_clip(self) -> float:
        """The clip that rounds begin with."""
        return self.mechanism.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        """The one noise multiplier."""
        return np.array([self.mechanism.noise_multiplier])

    @property
    def expected_weight(self) -> float:
        """The rate times the sum of all weights: what a sum is divided by, whoever was asked and whoever answered."""
        return self.mechanism.rate * float(self.weights.sum())

    def key(self, client: Client) -> str:
        """The mechanism, and the client's own weight in the sum."""
        return repr((self.mechanism, float(self.weights[client.index]), self.expected_weight))

    def rule(self, experiment: Experiment, population: Population) -> None:
        """None: the server releases one noised sum."""


@dataclass(frozen=True, eq=False)
class CentralPlan(WeighedSums):
    """What the server runs in every round, and the rounds it is made to last.

    Guarantee: client level, against everybody who sees the models; who was drawn or answered shows in nothing but the noised sum.

    Assumes: the server is trusted with single updates, and with the secret of who was drawn.
    """

    together: ClassVar[bool] = True

    mechanism: CohortGaussian

    def drawn(self, stream: Stream) -> Sequence[int]:
        """The cohort of one round: everybody has paid before it is drawn."""
        _, drawn = self.mechanism.sample(self.mechanism.init(), stream, len(self.weights))
        return [int(index) for index in drawn]

    def server_key(self) -> str:
        """The mechanism: the noise on sums and the cohorts are the server's."""
        return repr(self.mechanism)

    def digest(self) -> str:
        """The mechanism and all weights."""
        return mark(repr(self.mechanism), self.weights.tobytes())

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """CentralDP, with a clip that follows a quantile where the experiment names one."""
        weights = dict(zip(wiring.population.names, self.weights.tolist(), strict=True))
        privacy = wiring.experiment.privacy
        adapt = (
            QuantileClip(privacy.adaptive_clip.quantile, privacy.adaptive_clip.learning_rate or CLIP_RATE)
            if privacy.adaptive_clip
            else None
        )
        return CentralDP(self.mechanism, weights, self.expected_weight, wiring.training, wiring.optimizer, adapt)

    def words(self, experiment: Experiment) -> Words:
        """Against everybody who sees the models, by cohorts of random or of fixed size, or by everybody in every round."""
        return promised(self.mechanism, experiment)

    def title(self, experiment: Experiment) -> str:
        """Names the kind of cohorts."""
        if not experiment.secret_cohorts:
            return "central DP (everybody in every round)"
        return f"central DP ({self.mechanism.sampler.capitalize()} cohorts)"

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """One row: all clients pay alike."""
        return [row(self, purse)]


def capped_weights(sizes: np.ndarray, cap: int | None) -> np.ndarray:
    """w_k = min(n_k, cap) / max over clients, so that none exceeds 1 and C bounds a weighted update; without a cap all are 1.

    Assumes: the clients' numbers of records are public.

    >>> capped_weights(np.array([5, 20, 400]), 50).tolist()
    [0.1, 0.4, 1.0]
    """
    if cap is None:
        return np.ones(len(sizes))
    capped = np.minimum(sizes, cap)
    return capped / capped.max()


def central_plan(
    population: Population,
    *,
    cohort: int,
    sampler: Sampler,
    rounds: int,
    clip: float,
    multiplier: float | None,
    adaptive: bool,
    count_noise: float | None,
    weight_cap: int | None,
    accountant: str,
) -> CentralPlan:
    """The given multiplier, or the smallest that makes the budget last the planned rounds.

    Guarantee: with a multiplier derived here, `rounds` rounds cost at most what other runs have left of the common epsilon, as
    priced by this accountant. A given multiplier is not checked against the budget: the ledger stops the run before the round
    that would pass it. Counting for an adaptive clip is part of the same price.

    Raises: BadInput where the budgets differ, where none sets a limit and no multiplier is given, and as `CohortGaussian`.
    """
    epsilon = one_budget(population)
    mechanism = CohortGaussian(multiplier or 1.0, clip, len(population), cohort, sampler)
    if multiplier is None and epsilon == float("inf"):
        raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")
    if multiplier is None:

        def cost(z: float) -> float:
            event = replace(mechanism, noise_multiplier=z).event()
            return price.epsilon(((event, rounds),), delta=population.delta, accountant=accountant)

        mechanism = replace(mechanism, noise_multiplier=smallest(cost, epsilon=epsilon))
    if adaptive:
        mechanism = replace(mechanism, count_std=count_noise or cohort / COUNT_SHARE)
    return CentralPlan(mechanism, rounds, capped_weights(population.sizes, weight_cap))


def one_budget(population: Population) -> float:
    """The epsilon that all clients share, less what other runs of the ledger have sealed.

    Where only a crumb of it is left it is the whole epsilon: noise is sized for that, and the ledger keeps the run out.

    Raises: BadInput where the clients' epsilons differ.
    """
    low, high = float(population.epsilons.min()), float(population.epsilons.max())
    if low != high:
        raise BadInput(
            f"Central DP protects all clients by one noise, but their epsilons differ ({low:.4g} to {high:.4g}):"
            ' give one epsilon, or say privacy.level = "minimum".'
        )
    return float(population.to_spread.min())


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
            sampler="fixed" if privacy.sampler == "fixed" else "poisson",  # "cyclic" is another kind
            rounds=train.rounds,
            clip=privacy.clip,
            multiplier=privacy.noise_multiplier,
            adaptive=privacy.adaptive_clip is not None,
            count_noise=privacy.adaptive_clip.count_noise if privacy.adaptive_clip else None,
            weight_cap=privacy.weight_cap,
            accountant=privacy.accountant,
        )

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: that the server is trusted is what the kind says, and a site accepts it by accepting the experiment."""


KIND = Central()
