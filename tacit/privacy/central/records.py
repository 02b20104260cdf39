"""Central DP of records or persons: one noise on the sum of clipped gradients, and each client its epsilon by its own rate."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import dp_accounting
import numpy as np

from tacit.algorithms import Algorithm
from tacit.algorithms.record_sums import RecordSums, SumNoise
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import FLOATS, UNITS, Words
from tacit.privacy.local import SampledGaussian
from tacit.privacy.plan import Plan, Remaining, Traits
from tacit.privacy.rates import Rates, advice, choose, rows, sampled
from tacit.privacy.samplers import Participation
from tacit.privacy.wiring import Wiring, descent_of
from tacit.types import Client
from tacit.wire import digest_of

MODELS = "everybody who sees the models (the server is trusted: it sees every client's sum of clipped gradients)"
LENGTH = "no batch exceeds its expected size by ten standard deviations and ten records (probability below 3e-20 each)"


@dataclass(frozen=True, eq=False)
class RecordSumsPlan(Plan):
    """One multiplier for all, and every client's own rate; `participations` are the rounds that both were chosen for.

    Guarantee: record level, against everybody who sees the models; a round costs a client the sampled Gaussian of its own rate.
    """

    traits: ClassVar[Traits] = Traits(summed=True, trusts_server=True, own_training=True)

    clip: float
    chosen: Rates
    sizes: np.ndarray = field(repr=False)
    parameters: int
    participations: int
    sampler: Participation

    @property
    def training_clip(self) -> float:
        """The norm that a record's gradient is clipped to."""
        return self.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        """The one multiplier."""
        return np.array([self.chosen.multiplier])

    @cached_property
    def noise(self) -> SumNoise:
        """The noise on a round's sum."""
        largest = float((self.chosen.rates * self.sizes).max())
        return SumNoise(self.chosen.multiplier, self.clip, len(self.sizes), largest, self.parameters)

    def mechanism(self, client: Client) -> SampledGaussian:
        """What the client's records go through in a round: drawn here, noised on the sum, priced for both."""
        return self._mechanisms[client.index]

    @cached_property
    def _mechanisms(self) -> list[SampledGaussian]:
        return [SampledGaussian(self.chosen.multiplier, self.clip, float(rate)) for rate in self.chosen.rates]

    def key(self, client: Client | None) -> str:
        """The client's mechanism; of the server, the noise and what sums are divided by."""
        if client is None:
            return repr((self.noise, self.chosen.batch(self.sizes)))
        return repr((self.mechanism(client), self.noise, self.participations))

    def digest(self) -> str:
        """The noise, and all rates."""
        return digest_of(repr((self.noise, self.participations)), self.chosen.rates.tobytes())

    def rule(self, experiment: Experiment, population: Population) -> None:
        """None: the server releases one noised sum."""

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """RecordSums. Raises BadInput for views of what are no images."""
        train, names = wiring.experiment.train, wiring.population.names
        records = dict(zip(names, (self.chosen.rates * self.sizes).tolist(), strict=True))
        schedule = descent_of(wiring.experiment).schedule
        return RecordSums(
            self.mechanism, self.noise, records, train.learning_rate, schedule, wiring.optimizer, wiring.views
        )

    def words(self, experiment: Experiment) -> Words:
        """Against everybody who sees the models; batches, where any are drawn, are the clients' secrets."""
        who = f"{self.chosen.words}, and one noise on their sum"
        assumes = (*FLOATS, *self.chosen.assumes, *(LENGTH,) * self.chosen.drawn)
        return Words(MODELS, UNITS[self.chosen.unit], who, assumes=assumes)

    def title(self, experiment: Experiment) -> str:
        """Names where the noise stands."""
        return f"central DP of {self.chosen.unit}s (noise once, on the sum{self.chosen.ratio})"

    @property
    def batch_shares(self) -> np.ndarray:
        """By rates."""
        return self.chosen.shares(self.sizes)

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        """A row for every group of clients with the same budget, each with its rates and what remains if batches are known."""
        unit = self.chosen.unit
        level = f"{unit} level, {UNITS[unit]}, one Gaussian on the sum of all clients' {self.chosen.summed}"
        known = ((dp_accounting.GaussianDpEvent(self.chosen.multiplier), self.participations),)
        more = {"epsilon_batches_known": price.epsilon(known, delta=remaining.population.delta), "guarantee": level}
        events = [mechanism.event() for mechanism in self._mechanisms]
        return rows(self.chosen, self.sizes, remaining, events, rounds=self.participations, more=lambda _: more)

    def advice(self, remaining: Remaining) -> str:
        """Where noise at every client would be less."""
        noise = self.chosen.multiplier / self.chosen.batch(self.sizes)
        return advice(remaining, rounds=self.participations, noise=noise)


class CentralRecords:
    """The kind `central` with unit = "record" or "person": a trusted server adds the one noise that hides every one of them."""

    plans: type[Plan] = RecordSumsPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """The least noise over batch that all budgets pay for, and every client's rate under it.

        Raises: BadInput for a budget without a limit, and one that allows no rate.
        """
        privacy, rounds = experiment.privacy, experiment.train.rounds
        epsilons = np.asarray(population.to_spread, dtype=float)
        if not np.isfinite(epsilons).all():
            raise BadInput(
                "epsilon = inf sets no limit, so no sampling rate follows from it: give every client a number."
            )
        chosen = choose(
            epsilons,
            np.asarray(population.sizes),
            cost=sampled(rounds=rounds, delta=population.delta),
            rounds=rounds,
            delta=population.delta,
            parameters=size,
            multiplier=privacy.noise_multiplier,
            cap=privacy.rate_cap,
            names=population.names,
        )
        who = samplers.of(experiment, len(population))
        chosen = replace(chosen, unit=privacy.unit_kept)
        return RecordSumsPlan(privacy.clip, chosen, np.asarray(population.sizes), size, rounds, who)

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: the server is trusted, and the site's own ledger is charged for every answer."""
