"""Local DP: each client noises what it sends, and is protected from everybody who sees it. The mechanism is DP-SGD's (Abadi et al.
2016, arXiv:1607.00133, Algorithm 1); the strategies are those of Liu et al., PVLDB 15(4), section 4.2: *spread* makes each budget
last the planned rounds, under *same-noise* a client drops out when it cannot pay another round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.algorithms import Algorithm
from tacit.algorithms.local_dp import LocalDP
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, TRAINED_ON
from tacit.experiment.privacy import ALL_OPT_OUT
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import SideDpEvent
from tacit.privacy.guarantee import EMPTIED, NOTHING_PROMISED, RECORD_LEVEL, UNITS, Words
from tacit.privacy.mechanism import NoiseState
from tacit.privacy.plan import Plan, Remaining
from tacit.privacy.queries.mechanism import NOTHING, Queries, budgets, priced, queries_of
from tacit.privacy.wiring import Wiring
from tacit.random import Stream
from tacit.training.optimizer import PLAIN, Descent
from tacit.training.sgd import DpSgd, NoisedUpdate
from tacit.types import Bounded, Client, Private, Unit
from tacit.wire import digest_of

OBSERVED = "the server, the other clients and everybody who sees updates or models"
LEVELS = {
    "record": RECORD_LEVEL,
    "person": f"person level, {UNITS['person']}, Poisson-sampled Gaussian",
    "client": f"client level, {EMPTIED}, Gaussian on its whole update",
}


def promised(unit: Unit, queries: Sequence[str] = ()) -> Words:
    """What a client is promised, whose records, persons or whole data are the unit; its queries are in the same price."""
    if unit == "client":
        return Words(OBSERVED, EMPTIED, "whole updates (nothing is claimed for choosing clients at random)")
    batches = "Poisson batches of persons" if unit == "person" else "Poisson batches"
    sampler = f"{batches} within a client (nothing is claimed for choosing clients at random)"
    if queries:
        many = f"answer, once, to 1 query ({queries[0]}), which is"
        if len(queries) > 1:
            many = f"answers, once each, to {len(queries)} queries ({', '.join(queries)}), which are"
        sampler = f"{sampler}, and its {many} in this epsilon"
    if EVALUATION in queries:
        sampler += f" ({EVALUATION} is about held-out records alone, which nothing else is about)"
    return Words(OBSERVED, UNITS[unit], sampler)


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` times: sample each record with probability q, sum vectors of norm at most C, add N(0, (zC)^2 I). Guarantee: all
    steps cost `event()`, for whoever sees every noised sum: add or remove one record; where the whole update is noised (q =
    1, one step), empty one client. Assumes: every vector was clipped to C, batches stay secret, floats stand for real
    numbers. Raises: BadInput for numbers out of range.

    >>> SampledGaussian(noise_multiplier=1.0, clip=0.5, sampling_rate=0.1, steps=2).noise_std
    0.5
    """

    noise_multiplier: float
    clip: float
    sampling_rate: float
    steps: int = 1
    split: str = ""  # where some records are held out of training: the coin that decides which

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        check.rate(sampling_rate=self.sampling_rate)
        check.at_least(1, steps=self.steps)

    @property
    def noise_std(self) -> float:
        """The standard deviation on the sum, z * C."""
        return self.noise_multiplier * self.clip

    @property
    def noise_growth(self) -> float:
        """The noise of the steps is independent."""
        return self.steps**0.5

    def init(self) -> NoiseState:
        """No step knows of another one."""
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The records of one step: each of `size` independently with probability q; often none, never a fixed number."""
        return state, stream.bernoulli(size, self.sampling_rate)

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds N(0, (zC)^2 I) to a sum whose sensitivity is C; float32 from then on. Raises: BadInput for any other
        sensitivity, whose noise would not be the one that is paid for."""
        if bounded.sensitivity != self.clip:
            raise BadInput(f"This noise is made for sensitivity {self.clip}, got a vector of {bounded.sensitivity}.")
        noisy = bounded.vector.add(stream.normal_like(bounded.vector), alpha=self.noise_std)
        return state, Private(noisy.float(), self.noise_std)

    def event(self) -> DpEvent:
        """The price of all steps."""
        return _event(self.noise_multiplier, self.sampling_rate, self.steps, self.split)


@dataclass(frozen=True)
class Unnoised(SampledGaussian):
    """The steps of a client that opted out: drawn and clipped like everybody's, and released without any noise. Nothing is promised
    of them, so they have no price. Raises: BadInput for noise."""

    def __post_init__(self) -> None:
        if self.noise_multiplier:
            raise BadInput("A client that opted out adds no noise.")
        SampledGaussian(1.0, self.clip, self.sampling_rate, self.steps)  # refuses numbers that are out of range

    def event(self) -> None:  # type: ignore[override]
        """None: nothing is charged."""


@lru_cache(maxsize=1 << 16)
def _event(noise_multiplier: float, sampling_rate: float, steps: int, split: str) -> DpEvent:
    one = dp_accounting.PoissonSampledDpEvent(sampling_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    return dp_accounting.SelfComposedDpEvent(SideDpEvent(split, TRAINED_ON, one) if split else one, steps)


DRAWN_AT_ONCE = (SampledGaussian, Unnoised)


def row_noise(mechanisms: Sequence[SampledGaussian], *, clip: float) -> torch.Tensor:
    """The standard deviations of one step of several clients, whose sums have the sensitivity `clip`: each its mechanism's
    own. Raises: BadInput for any other sensitivity, and TypeError for any other mechanism, whose noise may be something
    else."""
    for mechanism in mechanisms:
        if type(mechanism) not in DRAWN_AT_ONCE:
            raise TypeError("only the noise of SampledGaussian is drawn for several clients at once")
        if clip != mechanism.clip:
            raise BadInput(f"This noise is made for sensitivity {mechanism.clip}, got a vector of {clip}.")
    return torch.tensor([mechanism.noise_std for mechanism in mechanisms])


RATE_DIGITS = 3  # rates of clients with nearly equal sizes are made equal, so that they share one price
END = 11.0  # standard deviations: where the tails of tacit/random.py end


@dataclass(frozen=True, eq=False)
class LocalPlan(Plan):
    """The mechanism of every client. `participations` is how many rounds a spread budget is made to last, beside its
    `queries`. With the unit "record" the noise is added in every step of DP-SGD, with "client" once, to the whole clipped
    update."""

    clip: float
    participations: int
    rates: np.ndarray = field(repr=False)
    steps: np.ndarray = field(repr=False)
    multipliers: np.ndarray = field(repr=False)
    sampler: samplers.Participation
    unit: Unit = "record"
    queries: Queries = NOTHING
    opted_out: frozenset[int] = frozenset()

    @property
    def training_clip(self) -> float:
        return self.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        return self.multipliers

    def mechanism(self, client: Client) -> SampledGaussian:
        """What the client runs in one round, and what that costs. Raises: BadInput for a client whose noise is not known here
        (NaN): a site plans its own alone."""
        k = client.index
        if k not in self._known and k in self.opted_out:
            self._known[k] = Unnoised(0.0, self.clip, float(self.rates[k]), int(self.steps[k]))
        if k not in self._known:
            noise = float(self.multipliers[k]), self.clip, float(self.rates[k]), int(self.steps[k])
            self._known[k] = SampledGaussian(*noise, split=self.queries.split)
        return self._known[k]

    @cached_property
    def _known(self) -> dict[int, SampledGaussian]:
        return {}

    def update_noise(self, sizes: np.ndarray, *, learning_rate: float, descent: Descent = PLAIN) -> np.ndarray:
        """The noise per coordinate of every client's update, as `DpSgd` states it: eta z C sqrt(steps) / (q n). In steps that
        are not plain, sqrt(steps) is what `descent` makes of it. An update that is noised as a whole (client level) has z
        C. It follows from public numbers alone, so a rule may weigh by it. To a rule, a client that opted out has the least
        noise of all: with none it would count alone, however its data differ."""
        noise = self.multipliers * self.clip
        if self.unit != "client":
            growth = descent.growth(self.steps, learning_rate=learning_rate)
            noise = learning_rate * self.multipliers * self.clip * growth / (self.rates * sizes)
        return np.where(noise == 0, noise.min(where=noise > 0, initial=np.inf), noise)

    def longest(self, index: int, sizes: np.ndarray, sent: torch.Tensor, *, rate: float, descent: Descent) -> float:
        """A step moves by eta C / q and weight decay at most, and normals end at 10.8 sigma."""
        root, steps, z, q = math.sqrt(sent.numel()), int(self.steps[index]), self.multipliers[index], self.rates[index]
        if self.unit == "client":
            return float((self.clip + END * z * self.clip) * root)
        noise = rate * z * self.clip / (q * int(sizes[index]))
        moved = rate * (self.clip / q + descent.weight_decay * float(sent.abs().max()))
        reach = float(np.abs(descent.responses(steps, learning_rate=rate)).sum())
        return float(reach * (moved + END * noise) * root)

    def key(self, client: Client | None) -> str:
        if client is None:
            return ""
        return repr((self.mechanism(client), self.participations, self.priced, self.queries.key(client.index)))

    def digest(self) -> str:
        arrays = (np.ascontiguousarray(part).tobytes() for part in (self.rates, self.steps, self.multipliers))
        asked = (part for query, z in sorted(self.queries.multipliers.items()) for part in (query, z.tobytes()))
        return digest_of(repr((self.clip, self.participations, self.priced, self.unit)), *arrays, *asked)

    def rule(self, experiment: Experiment, population: Population) -> str:
        """The rule that was asked for; else the mean where all clients bring the same noise, `random-effects` where they do
        not. docs/results.md says why, and where another rule is better."""
        if experiment.aggregate.rule is not None:
            return experiment.aggregate.rule
        differ = len(np.unique(population.epsilons)) > 1 and experiment.privacy.rule == "spread"
        return "random-effects" if differ else "mean"

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """LocalDP: DP-SGD in every step (record level), or noise on the whole clipped update (client level). Raises: BadInput
        for a rule that is not there, or views of what are no images."""
        population, rate, descent = wiring.population, wiring.experiment.train.learning_rate, wiring.descent
        rule = wiring.rule(self.rule(wiring.experiment, population))
        noise = self.update_noise(population.sizes, learning_rate=rate, descent=descent)
        least = float(noise.min()) if self.opted_out else 0.0
        statistics = wiring.statistics(noise, wiring.takes_part(self.sampler.rate), least_noise=least)
        if self.unit == "client":
            server = wiring.server(rule, statistics, control=wiring.control(rule, statistics))
            return LocalDP(self.mechanism, server, NoisedUpdate(wiring.training))
        server = wiring.server(
            rule, statistics, schedule=descent.schedule, control=wiring.control(rule, statistics, self.steps)
        )
        return LocalDP(self.mechanism, server, DpSgd(rate, wiring.views, descent))

    def words(self, experiment: Experiment) -> Words:
        return promised(self.unit, tuple(self.queries.multipliers))

    def title(self, experiment: Experiment) -> str:
        asked = " and ".join(self.queries.multipliers)
        out = f", {len(self.opted_out)} opted out" if self.opted_out else ""
        return f"local DP ({experiment.privacy.rule}{f', beside it {asked}' if asked else ''}{out})"

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        table = []
        for members in remaining.groups():
            ends = remaining.ends(members)
            costs = {end: self.mechanism(remaining.population[end]).event() for end in ends}
            pays = {"hint": self.participations}
            left = [
                self.participations
                if cost is None
                else remaining.rounds(end, cost, queries=self.queries.events(end), **pays)
                for end, cost in costs.items()
            ]
            z, rate, steps = self.multipliers[members], self.rates[members], self.steps[members]
            table.append(
                {
                    **remaining.whose(members),
                    "noise_multiplier": [float(z.min()), float(z.max())],
                    "sampling_rate": [float(rate.min()), float(rate.max())],
                    "steps": [int(steps.min()), int(steps.max())],
                    **self._asked(remaining, members),
                    "planned_rounds": self.participations,
                    "affordable_rounds": [min(left), max(left)],
                    "guarantee": LEVELS[self.unit] if costs[ends[0]] else NOTHING_PROMISED,
                }
            )
        return table

    def _asked(self, remaining: Remaining, members: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for query, z in self.queries.multipliers.items():
            ends = float(z[members].max()), float(z[members].min())
            found[f"{query}_epsilon"] = [
                price.epsilon(((priced(end), 1),), delta=remaining.population.delta) for end in ends
            ]
            found[f"{query}_noise_multiplier"] = [ends[1], ends[0]]
        return found


class Local:
    """The kind `local`: each client noises what it sends. The server, the other clients and everybody who sees updates or
    models are adversaries: nobody is trusted but the client's own machine. Each client pays for the rounds it takes part
    in, from its own budget."""

    plans = LocalPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """Every client's noise, by the strategy that the experiment names. `own` is the one client whose noise is needed (a
        site): by the strategy spread the others' stay NaN, which is cheaper and changes nothing of its own. Raises:
        BadInput where there is no budget to derive noise from, or no noise keeps it."""
        privacy, train = experiment.privacy, experiment.train
        if experiment.run.precision != "float32" and privacy.unit_kept != "client":
            raise BadInput(
                f'run.precision = "{experiment.run.precision}" rounds the factors of products, and gradients that are clipped'
                " example by example could exceed the clip: leave it out."
            )
        who, unknown = samplers.of(experiment, len(population)), np.full(len(population), np.nan)
        turns, each = who.planned(train.rounds), record_steps(experiment, population)
        queries = queries_of(experiment, population)
        opted_out = frozenset(np.flatnonzero(np.isinf(population.epsilons)).tolist() if privacy.opts_out else ())
        plan = LocalPlan(privacy.clip, turns, *each, unknown, who, privacy.unit_kept, queries, opted_out)
        noised = spread if privacy.rule == "spread" else same_noise
        return replace(plan, multipliers=noised(plan, experiment, population, own=own))

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: the site's own noise protects it from every server."""


def spread(plan: LocalPlan, experiment: Experiment, population: Population, *, own: int | None = None) -> np.ndarray:
    """Each client's multiplier, so that its rounds, and its queries, cost at most what is left of its epsilon, as was
    computed. Whoever is one client (`own`) needs no other's, and 10,000 sizes are hours of work: those stay NaN. Who opted
    out has 0. Raises: BadInput where all opted out, and where no noise keeps an epsilon."""
    limited = np.isfinite(population.epsilons)
    if not limited.any():
        raise BadInput(ALL_OPT_OUT)
    multipliers = np.where(limited, np.nan, 0.0)
    kinds, inverse = np.unique(np.column_stack([plan.rates, plan.steps]), axis=0, return_inverse=True)
    for kind in range(len(kinds)):
        mine = np.flatnonzero((inverse.ravel() == kind) & limited)
        if not len(mine) or (own is not None and own not in mine):
            continue
        settings = _priced_as(plan, experiment, population, int(mine[0]))
        if plan.queries.multipliers:
            sized = budgets(population)
            multipliers[mine] = [
                price.noise_multiplier(epsilon=float(sized[k]), beside=plan.queries.beside_training(k), **settings)
                for k in mine.tolist()
            ]
        else:
            multipliers[mine] = price.noise_multipliers(population.to_spread[mine], **settings)
    return multipliers


def same_noise(
    plan: LocalPlan, experiment: Experiment, population: Population, *, own: int | None = None
) -> np.ndarray:
    """One multiplier for all: the given one, or the one that lets the largest finite budget last the planned rounds. A client
    whose budget is smaller drops out before the round it cannot pay: the ledger sees to that. Raises: BadInput where no
    client sets a limit and no noise is given."""
    if experiment.privacy.noise_multiplier is not None:
        return np.full(len(population), experiment.privacy.noise_multiplier)
    finite = np.where(np.isinf(population.epsilons), -1.0, population.to_spread)
    most = int(np.argmax(finite))
    if finite[most] < 0:
        raise BadInput("No client sets a limit, so there is no noise to derive: set privacy.noise_multiplier.")
    settings = _priced_as(plan, experiment, population, most)
    z = price.noise_multiplier(epsilon=float(finite[most]), beside=plan.queries.beside_training(most), **settings)
    return np.full(len(population), z)


def _priced_as(plan: LocalPlan, experiment: Experiment, population: Population, index: int) -> dict[str, Any]:
    return {
        "delta": population.delta,
        "sampling_rate": float(plan.rates[index]),
        "steps": int(plan.steps[index]) * plan.participations,
    }


def record_steps(experiment: Experiment, population: Population) -> tuple[np.ndarray, np.ndarray]:
    """The sampling rate and the noised steps of each client's round; a noised whole update is one step without sampling. With
    local epochs a client takes ceil(epochs / q) steps: as many as sample its records `epochs` times on average."""
    train, everybody = experiment.train, len(population)
    if experiment.privacy.unit_kept == "client":
        return np.ones(everybody), np.ones(everybody, dtype=int)
    rates = sampling_rates(population.sizes, batch_size=train.batch, sampling_rate=train.sampling_rate)
    if train.local_epochs:
        return rates, np.ceil(train.local_epochs / rates).astype(int)
    return rates, np.full(everybody, train.steps)


def sampling_rates(sizes: np.ndarray, *, batch_size: int, sampling_rate: float | None) -> np.ndarray:
    """The Poisson rate of each client: the given one, or the one that makes `batch_size` the expected batch. Such a rate has
    three digits and is at most 1; the divisor and the price both use the rounded one."""
    if sampling_rate is not None:
        return np.full(len(sizes), sampling_rate)
    distinct, inverse = np.unique(sizes, return_inverse=True)
    rates = [min(1.0, float(f"{batch_size / n:.{RATE_DIGITS}g}")) for n in distinct]
    return np.array(rates)[inverse]


def kind(experiment: Experiment) -> Local:
    """The one kind there is."""
    return Local()
