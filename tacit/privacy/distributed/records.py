"""Distributed DP of records: noise once on a sum that nobody opens one by one, each client at a rate of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tacit.algorithms import Algorithm
from tacit.algorithms.encrypted import Group
from tacit.algorithms.record_sums import SecretRecordSums
from tacit.crypto.grid import RoundedSum, SumGrid
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import SUMS, SampledSumDpEvent
from tacit.privacy.distributed.kind import ALL, Distributed, DistributedPlan, OneProcess, refuse_threshold
from tacit.privacy.distributed.mechanism import LOG2_CUT, SharedNoise
from tacit.privacy.guarantee import ACCOUNTANT, UNITS, Words
from tacit.privacy.integers import distance
from tacit.privacy.mechanism import NoiseState
from tacit.privacy.plan import Plan, Remaining, Traits
from tacit.privacy.rates import Rates, advice, choose, rows
from tacit.privacy.wiring import Wiring, descent_of
from tacit.random import Stream
from tacit.types import Client, Guarantee, Shared
from tacit.wire import digest_of


@dataclass(frozen=True)
class RecordShare:
    """What one client runs in a round: it draws a batch at its own rate and adds its share to the batch's sum.

    Guarantee: an opened sum costs `event()`, for its records. `failure` is the probability that rounding moves one further.
    """

    share: SharedNoise
    sampling_rate: float
    failure: float

    def init(self) -> NoiseState:
        """No round knows of another one."""
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """Each record independently, at the client's rate."""
        return state, stream.bernoulli(size, self.sampling_rate)

    def noise(self, state: NoiseState, stream: Stream, bounded: RoundedSum) -> tuple[NoiseState, Shared]:
        """Adds the client's share. Raises: TypeError for integers whose sensitivity is not one record's."""
        if not isinstance(bounded, RoundedSum):
            raise TypeError("a record's share of noise is for sums of records, rounded as such")
        return self.share.noise(state, stream, bounded)  # type: ignore[arg-type]

    def event(self) -> SampledSumDpEvent:
        """The price of one opened sum for this client's records."""
        noise = self.share
        slack = noise.dimension * noise.most * distance(noise._law) + 2.0**LOG2_CUT + self.failure
        return SUMS[noise.law](
            noise.share_variance, noise.honest, noise.l2_squared, noise.dimension, self.sampling_rate, slack
        )


@dataclass(frozen=True, eq=False)
class SecretRecordsPlan(DistributedPlan):
    """One share for all, and every client's own rate.

    Guarantee: record level, for whoever sees opened sums (or the models) and no single report.
    """

    traits: ClassVar[Traits] = Traits(summed=True, own_training=True)

    chosen: Rates
    sizes: np.ndarray = field(repr=False)

    def mechanism(self, client: Client) -> RecordShare:  # type: ignore[override]
        """What the client runs in a round."""
        return self._mechanisms[client.index]

    @cached_property
    def _mechanisms(self) -> list[RecordShare]:
        (noise,), failure = self.noises, self.grid.failure  # type: ignore[attr-defined]
        return [RecordShare(noise, float(rate), failure) for rate in self.chosen.rates]

    def digest(self) -> str:
        """Grid, share and all rates."""
        return digest_of(repr((self.grid, self.noises, self.participations)), self.chosen.rates.tobytes())

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """SecretRecordSums. Raises BadInput or KeyRefused for seals that cannot be had."""
        population, train, noise = wiring.population, wiring.experiment.train, self.noises[0]
        rule = wiring.rule("mean")
        statistics = wiring.statistics(self.report_noise, wiring.takes_part(1.0))
        facts = dict(zip(population.names, wiring.facts(statistics), strict=True))
        records = dict(zip(population.names, (self.chosen.rates * self.sizes).tolist(), strict=True))
        noise.prepare()  # before the client processes fork
        seals = wiring.seals or OneProcess(wiring.experiment, len(population))
        group = Group(ALL, noise, seals.seal(self, 0, ALL, list(facts), population.names), facts, records)
        grid = replace(self.grid, factor=-train.learning_rate)  # type: ignore[type-var]
        server = wiring.server(rule, statistics, schedule=descent_of(wiring.experiment).schedule)
        groups = dict.fromkeys(population.names, group)
        return SecretRecordSums(groups, grid, server, wiring.training, self.mechanism, wiring.views)  # type: ignore[arg-type]

    def words(self, experiment: Experiment) -> Words:
        """As of other sums, for one record."""
        said = super().words(experiment)
        who = f"{self.chosen.words}, in {said.sampler}"
        who, assumes = who.partition(" (nothing is claimed")[0], (*said.assumes, *self.chosen.assumes)
        return replace(said, relation=UNITS[self.chosen.unit], sampler=who, accountant=ACCOUNTANT, assumes=assumes)

    def single_reports(self, guarantee: Guarantee, experiment: Experiment) -> tuple[Guarantee, ...]:
        """As of other sums: drawn batches stay secret, so their price keeps the rate."""
        (other,) = super().single_reports(guarantee, experiment)
        sampler = other.sampler + " and a secret batch" * self.chosen.drawn
        return (replace(other, sampler=sampler, assumes=(*other.assumes, *self.chosen.assumes)),)

    def title(self, experiment: Experiment) -> str:
        """Names where the noise stands."""
        return f"distributed DP of {self.chosen.unit}s (noise once, on the sum{self.chosen.ratio})"

    @property
    def batch_shares(self) -> np.ndarray:
        """By rates."""
        return self.chosen.shares(self.sizes)

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        """A row for every group of clients with the same budget: rates, and what is left if batches are known or secrecy fails."""
        noise, delta, events = self.noises[0], remaining.population.delta, [one.event() for one in self._mechanisms]

        def most(of: Sequence[SampledSumDpEvent]) -> float:
            return max(price.epsilon(((event, self.participations),), delta=delta) for event in of)

        unit = self.chosen.unit
        level = f"{unit} level, {UNITS[unit]}, {noise.law} shares on the sum of all clients' {self.chosen.summed}"

        def more(ends: Sequence[int]) -> dict[str, Any]:
            return {
                "epsilon_batches_known": most([replace(events[k], sampling_rate=1.0) for k in ends]),
                "fewest_reports": noise.fewest,
                "epsilon_single_reports": most([events[k].alone() for k in ends]),
                "guarantee": level,
            }

        return rows(self.chosen, self.sizes, remaining, events, rounds=self.participations, more=more)

    def advice(self, remaining: Remaining) -> str:
        """Where noise at every client, or a trusted server, would leave less; all reports are in the sum."""
        noise, batch = self.noises[0], self.chosen.batch(self.sizes)
        whole = noise.multiplier * math.sqrt(noise.most / noise.honest)
        of = {"noise": whole / batch, "trusted": noise.multiplier / whole}
        return advice(remaining, rounds=self.participations, **of)


class DistributedRecords:
    """The kind `distributed` with unit = "record" or "person"."""

    plans: type[Plan] = SecretRecordsPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """The least noise over batch that all budgets pay for, in shares for the fewest honest reports, and every client's rate.

        Raises: BadInput for budgets without a limit, shares that have no price and numbers of reports that cannot be.
        """
        privacy, rounds, clients = experiment.privacy, experiment.train.rounds, len(population)
        refuse_threshold(experiment, clients=clients)
        epsilons, sizes = np.asarray(population.to_spread, dtype=float), np.asarray(population.sizes)
        if not np.isfinite(epsilons).all():
            raise BadInput(
                "epsilon = inf sets no limit, so no sampling rate follows from it: give every client a number."
            )
        fewest, colluding = privacy.fewest_reports or clients, privacy.known_shares
        if not colluding < fewest <= clients:
            raise BadInput(
                f"Expected privacy.colluding < privacy.fewest_reports <= {clients} clients, got {colluding} and {fewest}:"
                " every client knows its own share of the noise, so at least one counts as colluding."
            )
        law, whole = privacy.noise or "discrete-gaussian", SumGrid(size, privacy.clip, float(sizes.max()))

        def shares(z: float, grid: SumGrid) -> SharedNoise:
            variance = z**2 * grid.l2_squared / (fewest - colluding)
            return SharedNoise(law, variance, grid.l2_squared, size, fewest, colluding, clients)

        def cost(z: float, rate: float) -> float:
            try:
                event = RecordShare(shares(z, whole), rate, whole.failure).event()
            except BadInput:  # a share too narrow to have a price
                return math.inf
            return price.epsilon(((event, rounds),), delta=population.delta)

        settings = {"rounds": rounds, "delta": population.delta, "parameters": size, "cap": privacy.rate_cap}
        settings["names"] = population.names
        chosen = choose(epsilons, sizes, cost=cost, multiplier=privacy.noise_multiplier, **settings)
        chosen = replace(chosen, unit=privacy.unit_kept)
        grid = SumGrid(size, privacy.clip, float((chosen.rates * sizes).max()))  # its sensitivity is that of any batch
        groups, who = np.zeros(clients, dtype=int), samplers.of(experiment, clients)
        return SecretRecordsPlan(grid, (shares(chosen.multiplier, grid),), groups, rounds, who, chosen, sizes)  # type: ignore[arg-type]

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused where the server could read the site's own report."""
        Distributed().refuse_at_site(experiment)
