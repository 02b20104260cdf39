"""Central DP: the server is trusted, clips every update and noises the sum of a cohort, drawn in secret or public in a cycle."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from tacit import check
from tacit.algorithms import Algorithm
from tacit.algorithms.central_dp import CentralDP, QuantileClip
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.central.banded import BandedGaussian, banded
from tacit.privacy.central.records import CentralRecords
from tacit.privacy.guarantee import Words
from tacit.privacy.mechanism import CohortMechanism, NoiseState
from tacit.privacy.plan import Kind, Plan, Remaining, Traits
from tacit.privacy.rates import Rates, choose, rows, sampled
from tacit.privacy.wiring import Wiring
from tacit.random import Stream
from tacit.training.optimizer import Momentum
from tacit.types import Client, Private
from tacit.wire import digest_of

# The mechanism: McMahan et al. 2018 (DP-FedAvg, arXiv:1710.06963), with the noisy count of Andrew et al. 2021 (arXiv:1905.03871).


@dataclass(frozen=True)
class CohortGaussian(CohortMechanism):
    """Draw a cohort, sum its vectors of norm at most C, add N(0, (z C)^2 I). With `count_std` the number of clients whose
    update was within C is released too, under that noise; the noise on the sum then grows so that both cost z. Guarantee: one
    round costs `event()`, whoever answers. Assumes: nobody is told who was drawn; floats stand for real numbers. Raises:
    BadInput for public cohorts, and for a count whose noise alone would cost more."""

    noise_multiplier: float
    clip: float
    cohorts: samplers.Sampler  # type: ignore[override]
    count_std: float | None = None

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        if not self.cohorts.charges_all:
            raise BadInput(
                f"Noise that begins anew in every round is priced for secret cohorts, and those of {type(self.cohorts).__name__}"
                " are public: use a sampler whose `charges_all` is true, or samplers.Cyclic."
            )
        if self.count_std is not None:
            check.positive(count_std=self.count_std)
            if self.noise_multiplier >= 2 * self.count_std:
                text = f"Counting unclipped updates with noise {self.count_std:g} costs more than a noise multiplier of"
                raise BadInput(
                    f"{text} {self.noise_multiplier:.3g} allows: set privacy.adaptive_clip.count_noise higher."
                )

    def __repr__(self) -> str:
        # the key of the noise: every number of the sampler is in it
        who = self.cohorts
        how = "poisson" if type(who) is samplers.Poisson else repr(who)
        noise = f"noise_multiplier={self.noise_multiplier!r}, clip={self.clip!r}"
        cohorts = f"population={who.population!r}, cohort={who.cohort!r}, sampler={how!r}"
        return f"{type(self).__qualname__}({noise}, {cohorts}, count_std={self.count_std!r})"

    @property
    def noise_std(self) -> float:
        """The standard deviation on the sum, per coordinate."""
        return self.update_multiplier * self.sensitivity

    @property
    def update_multiplier(self) -> float:
        """Noise over sensitivity on the sum alone: z where nothing is counted, more where the count takes a part of the
        price."""
        if self.count_std is None:
            return self.noise_multiplier
        # z_Delta = (z^-2 - z_b^-2)^(-1/2), Theorem 1; a client adds b - 1/2 to the count, so z_b = 2 sigma_b
        return (self.noise_multiplier**-2 - (2 * self.count_std) ** -2) ** -0.5

    def init(self) -> NoiseState:
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The clients of one round. Raises BadInput for another number of clients than was priced."""
        if size != self.cohorts.population:
            raise BadInput(f"This cohort is priced for {self.cohorts.population} clients, got {size}.")
        return state, self.cohorts.draw(stream, 0)

    def _noised(self, state: NoiseState, stream: Stream, total: torch.Tensor) -> tuple[NoiseState, Private]:
        return state, Private(total.add(stream.normal_like(total), alpha=self.noise_std), self.noise_std)

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates that were *not* clipped, over the expected cohort, with its noise; it may lie outside [0, 1]."""
        if self.count_std is None:
            return super().noised_share(stream, unclipped, answers)
        centred = unclipped - answers / 2 + self.count_std * float(stream.normal(1))
        return 0.5 + centred / self.cohorts.expected(np.ones(self.cohorts.population))


# The plans.

MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"
UNWATCHED = (
    "everybody who sees the models, and neither the network's traffic nor the server's log, which show who took part in which round"
    " (the server is trusted)"
)
ALL_SEEN = "everybody who sees the models and who took part in which round (the server is trusted)"
CLIP_RATE = 0.2  # eta_C: section 3.1 of arXiv:1905.03871
M = TypeVar("M", bound=CohortMechanism)
COUNT_SHARE = 20  # sigma_b = m / 20: section 3.1 of arXiv:1905.03871


@dataclass(frozen=True, eq=False)
class WeighedSums(Plan):
    """A trusted server that noises sums of clipped updates: its mechanism, how often a client is in one at most, and every
    client's weight (at most 1). The sum is divided by `expected_weight`, which is public."""

    traits: ClassVar[Traits] = Traits(summed=True, trusts_server=True, own_training=False)

    mechanism: CohortMechanism
    participations: int
    weights: np.ndarray = field(repr=False)

    @property
    def sampler(self) -> samplers.Sampler:  # type: ignore[override]
        """Who is in a round: of the mechanism, whose price rests on it."""
        return self.mechanism.cohorts

    @property
    def training_clip(self) -> float:
        return self.mechanism.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        return np.array([self.mechanism.noise_multiplier])

    @property
    def expected_weight(self) -> float:
        """The weight of an expected cohort: what a sum is divided by, whoever was asked and whoever answered."""
        return self.sampler.expected(self.weights)

    def key(self, client: Client | None) -> str:
        if client is None:
            return repr(self.mechanism)
        return repr((self.mechanism, float(self.weights[client.index]), self.expected_weight))

    def digest(self) -> str:
        return digest_of(self.key(None), self.weights.tobytes())

    def rule(self, experiment: Experiment, population: Population) -> None:
        """None: the server releases one noised sum."""

    def _row(self, remaining: Remaining, left: list[int], rate: float, unit: str, level: str) -> dict[str, Any]:
        m = self.mechanism
        spent = price.epsilon(((m.event(), max(*left, 1)),), delta=remaining.population.delta)
        return {
            **remaining.whose(np.arange(len(self.weights))),
            "noise_multiplier": [m.noise_multiplier, m.noise_multiplier],
            "sampling_rate": [rate, rate],
            "steps": [1, 1],
            f"planned_{unit}": self.participations,
            f"affordable_{unit}": left,
            "epsilon_spent": spent if max(left) else 0.0,
            "guarantee": f"client level, {level}",
        }


@dataclass(frozen=True, eq=False)
class CentralPlan(WeighedSums):
    """What the server runs in every round, and the rounds it is made to last. Guarantee: client level, against everybody who
    sees the models; who was drawn or answered shows in nothing but the noised sum. Assumes: the server is trusted with
    single updates, and with the secret of who was drawn."""

    mechanism: CohortGaussian
    chosen: Rates | None = None  # where each client is drawn at a rate of its own

    @property
    def batch_shares(self) -> np.ndarray | None:
        return None if self.chosen is None else self.chosen.shares(self.weights)

    def algorithm(self, wiring: Wiring) -> Algorithm:
        weights = dict(zip(wiring.population.names, self.weights.tolist(), strict=True))
        privacy, adapt = wiring.experiment.privacy, None
        if privacy.adaptive_clip:
            adapt = QuantileClip(privacy.adaptive_clip.quantile, privacy.adaptive_clip.learning_rate or CLIP_RATE)
        return CentralDP(self.mechanism, weights, self.expected_weight, wiring.training, wiring.optimizer, adapt)

    def words(self, experiment: Experiment) -> Words:
        relation = self.sampler.relation(secret=experiment.secret_cohorts)
        if not experiment.secret_cohorts:
            return Words(ALL_SEEN, relation, f"all {self.sampler.population} clients in every round")
        return Words(
            MODELS_ONLY if experiment.privacy.network is None else UNWATCHED, relation, self.sampler.words.whom
        )

    def title(self, experiment: Experiment) -> str:
        return f"central DP ({self.sampler.words.title if experiment.secret_cohorts else 'everybody in every round'})"

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        if self.chosen is not None:
            whom, events = self.sampler.words.level, [self.mechanism.event(k) for k in range(len(self.weights))]
            level = f"client level, {self.sampler.relation()}, Gaussian on the sum of {whom}"
            more = {"expected_cohort": self.chosen.batch(np.ones(len(self.weights))), "guarantee": level}
            limits = {"rounds": self.participations, "more": lambda _: more, "of": "cohort"}
            return rows(self.chosen, self.weights, remaining, events, **limits)
        left = remaining.rounds(None, self.mechanism.event(), hint=self.participations)
        secret = remaining.experiment.secret_cohorts
        whom = self.sampler.words.level if secret else "all clients"
        level = f"{self.sampler.relation(secret=secret)}, Gaussian on the sum of {whom}"
        return [self._row(remaining, [left, left], self.sampler.rate, "rounds", level)]


@dataclass(frozen=True, eq=False)
class BandedPlan(WeighedSums):
    """What the server runs where cohorts are public, and the most slots that a client has. Guarantee: client level, against
    everybody who sees the models, who takes part in which round included. Assumes: the server is trusted with single
    updates and with its noise, and releases every round once."""

    traits: ClassVar[Traits] = replace(WeighedSums.traits, single_release=BandedGaussian.single_release)

    mechanism: BandedGaussian

    def key(self, client: Client | None) -> str:
        groups = self.mechanism.groups
        return digest_of(repr(self.mechanism), repr(groups)) if client is None else super().key(client)

    def algorithm(self, wiring: Wiring) -> Algorithm:
        names, m = wiring.population.names, self.mechanism
        weights = dict(zip(names, self.weights.tolist(), strict=True))
        groups = tuple(frozenset(names[index] for index in m.cohorts.scheduled(group)) for group in range(m.cycle))
        return CentralDP(m, weights, self.expected_weight, wiring.training, wiring.optimizer, groups=groups)

    @property
    def _bands(self) -> str:
        return f"{self.mechanism.strategy.bands} bands"

    def words(self, experiment: Experiment) -> Words:
        how = f"{self.sampler.words.whom} and at most {self.participations} times, with noise in {self._bands} across rounds"
        return Words(ALL_SEEN, self.sampler.relation(), how)

    def title(self, experiment: Experiment) -> str:
        return f"central DP ({self.sampler.words.title}, {self._bands})"

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        event, everybody = self.mechanism.event(), np.arange(len(self.weights))
        ends = [remaining.rounds(index, event, hint=self.participations) for index in remaining.ends(everybody)]
        level = f"{self.sampler.relation()}, {self.sampler.words.level}, noise in {self._bands}"
        return [self._row(remaining, [min(self.participations, one) for one in ends], 1.0, "turns", level)]


def capped_weights(sizes: np.ndarray, cap: int | None) -> np.ndarray:
    """w_k = min(n_k, cap) / max over clients, so that none exceeds 1 and C bounds a weighted update; without a cap all are 1.
    Assumes: the clients' numbers of records are public."""
    if cap is None:
        return np.ones(len(sizes))
    capped = np.minimum(sizes, cap)
    return capped / capped.max()


def one_budget(population: Population) -> float:
    """The epsilon that all clients share, less what other runs of the ledger have sealed. Where next to none of it is left it
    is the whole epsilon: noise is sized for that, and the ledger keeps the run out. Raises: BadInput where the clients'
    epsilons differ."""
    low, high = float(population.epsilons.min()), float(population.epsilons.max())
    if low != high:
        raise BadInput(
            f"Here one price holds for all clients, but their epsilons differ ({low:.4g} to {high:.4g}): give one epsilon, or say"
            ' privacy.level = "minimum"; with secret cohorts, list each client\'s own in privacy.epsilon.'
        )
    return float(population.to_spread.min())


def _noised(mechanism: M, experiment: Experiment, population: Population, rounds: int) -> M:
    """The given multiplier, or the smallest that makes the budget last so many rounds. A given
    multiplier is not checked against the budget: the ledger stops the run before the round that would pass it."""
    privacy, epsilon = experiment.privacy, one_budget(population)
    if privacy.noise_multiplier is not None:
        return mechanism
    if epsilon == float("inf"):
        raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")

    def cost(z: float) -> float:
        return price.epsilon(((mechanism.with_noise(z).event(), rounds),), delta=population.delta)

    return mechanism.with_noise(price.smallest(cost, epsilon=epsilon))


def own_rates(experiment: Experiment, population: Population, weights: np.ndarray, *, size: int) -> Rates:
    """The multiplier, and every client's rate under it (`rates.choose`), by what is left of its own epsilon. Raises: BadInput for
    an epsilon without a limit, one that allows no rate, and a cohort that no multiplier gives."""
    privacy, train, epsilons = experiment.privacy, experiment.train, np.asarray(population.to_spread, dtype=float)
    for index in np.flatnonzero(np.isinf(epsilons))[:1]:
        raise BadInput(
            f"Client {population.names[int(index)]} sets no limit (epsilon = inf), so no sampling rate follows from it: give every"
            " client a number."
        )
    limits = {"rounds": train.rounds, "delta": population.delta}
    found = {"multiplier": privacy.noise_multiplier, "cap": privacy.rate_cap, "cohort": train.clients_per_round}
    return choose(epsilons, weights, cost=sampled(**limits), parameters=size, names=population.names, **limits, **found)


class Central:
    """The kind `central`: client-level DP at a trusted server, whose cohorts are a secret. The server sees every clipped
    update and who sent it; whoever sees the models sees one noised sum a round. All clients pay for every round, because
    the price rests on nobody knowing who is in it."""

    plans: type[Plan] = CentralPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """One noise for all clients, from their one budget or, where budgets differ, with each client's own rate; counting for an
        adaptive clip is part of the same price. Raises: BadInput where no noise or rate can be derived or keeps a budget, or the
        cohort exceeds the population."""
        privacy, rounds, chosen = experiment.privacy, experiment.train.rounds, None
        who, weights = self.sampler(experiment, len(population)), capped_weights(population.sizes, privacy.weight_cap)
        if privacy.own_rates:
            chosen = own_rates(experiment, population, weights, size=size)
            cohort = min(len(weights), math.ceil(chosen.rates.sum()))
            who = samplers.OwnRates(len(weights), cohort, tuple(chosen.rates.tolist()))
            mechanism = CohortGaussian(chosen.multiplier, privacy.clip, who)
        else:
            mechanism = CohortGaussian(privacy.noise_multiplier or 1.0, privacy.clip, who)
            mechanism = _noised(mechanism, experiment, population, rounds)
        if privacy.adaptive_clip is not None:
            mechanism = replace(mechanism, count_std=privacy.adaptive_clip.count_noise or who.cohort / COUNT_SHARE)
        return CentralPlan(mechanism, rounds, weights, chosen)

    def sampler(self, experiment: Experiment, clients: int) -> samplers.Sampler:
        """Who is drawn: what the plan draws and prices with; where each client has a rate of its own, before there is a plan, all
        at that of the expected cohort."""
        who = samplers.drawn(experiment, clients)
        if not experiment.privacy.own_rates:
            return who
        return samplers.OwnRates(clients, who.cohort, (who.rate,) * clients)

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: that the server is trusted is what the kind says, and a site accepts it by accepting the experiment."""


class BandedCentral(Central):
    """The kind `central` with public cohorts: a client pays in the rounds in which it takes part, and everybody may know which."""

    plans: type[Plan] = BandedPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """One noise for all clients, from their one budget; as many bands as groups unless said. Raises: BadInput where some
        clients would never have a slot, and as `BandedGaussian`, `banded` and `one_budget`."""
        privacy, train = experiment.privacy, experiment.train
        who = self.sampler(experiment, len(population))
        if type(who) is not samplers.Cyclic:  # the mechanism draws by groups and cycle alone
            raise BadInput(
                f"Noise across rounds is priced for clients whose slots are a whole cycle apart, which {type(who).__name__} does"
                " not promise: use samplers.Cyclic itself."
            )
        one_budget(population)
        if train.rounds < who.cycle:
            raise BadInput(
                f"{len(population)} clients in groups of {train.clients_per_round} take turns in a cycle of {who.cycle} rounds,"
                f" and there are {train.rounds}: raise train.rounds or train.clients_per_round."
            )
        optimizer, options = train.optimizer
        momentum = options.get("momentum", Momentum.momentum) if optimizer == "momentum" else 0.0
        strategy = banded(train.rounds, privacy.bands or who.cycle, momentum)
        mechanism = BandedGaussian(privacy.noise_multiplier or 1.0, privacy.clip, strategy, who.groups, who.cycle)
        turns = who.slots(None, rounds=train.rounds)
        mechanism = _noised(mechanism, experiment, population, turns)
        return BandedPlan(mechanism, turns, capped_weights(population.sizes, privacy.weight_cap))


def kind(experiment: Experiment) -> Kind:
    """Of records where that is the unit; of public turns for the cycle alone; else the price rests on the secret of who was
    drawn, and what is public is refused."""
    if experiment.privacy.sums_records:
        return CentralRecords()
    return BandedCentral() if samplers.named(experiment.privacy.sampler) is samplers.Cyclic else Central()
