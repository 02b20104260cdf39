"""Who takes part in a round: one object draws the cohort and knows what a client's part in it is priced as, so that the two
cannot differ. Sources: Poisson, McMahan et al. 2018 (arXiv:1710.06963); public cohorts in a cycle, Choquette-Choo et al. 2023
(arXiv:2306.08153)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.accounting.price import sampled_gaussian
from tacit.privacy.guarantee import EMPTIED, ONE_CLIENT
from tacit.random import Stream, seeded
from tacit.wire import digest_of


@dataclass(frozen=True)
class Participation:
    """Rounds of `cohort` clients, exactly or on average, of a `population`: here chosen uniformly of those who can pay.
    Nothing is claimed for such a choice. Raises: BadInput for an empty cohort, and one larger than the population."""

    charges_all: ClassVar[bool] = (
        False  # whether all pay for every round, because the price rests on nobody's knowing who is in it
    )

    population: int
    cohort: int

    def __post_init__(self) -> None:
        check.at_least(1, population=self.population, cohort=self.cohort)
        if self.cohort > self.population:
            raise BadInput(f"Expected train.clients_per_round <= {self.population} clients, got {self.cohort}.")

    @property
    def rate(self) -> float:
        """The probability with which a client is in a round."""
        return self.cohort / self.population

    @property
    def charges_alike(self) -> bool:
        """Whether all pay for every round, and all the same: the ledger then has one row for everybody."""
        return self.charges_all

    def expected(self, weights: np.ndarray) -> float:
        """The weight that is in a round on average."""
        return self.rate * float(weights.sum())

    def planned(self, rounds: int) -> int:
        """The rounds that a client's budget is made to last: all where all take part, else mean + 2 std of a Binomial(rounds,
        rate). It decides how much noise there is, never whether a budget holds."""
        if self.rate >= 1:
            return rounds
        mean = rounds * self.rate
        return max(1, min(rounds, math.ceil(mean + 2 * math.sqrt(mean * (1 - self.rate)))))

    def scheduled(self, round: int) -> Sequence[int] | None:
        """Where it is public whose slot a round is: their indices. None where chance decides."""
        return None

    def slots(self, index: int | None, *, rounds: int) -> int:
        """In how many of the first so many rounds a client may be asked; without an index, the one that is asked most."""
        return rounds

    def asked_from(self, index: int, round: int, *, rounds: int) -> bool:
        """Whether a client may be asked in one of the rounds from `round` on."""
        return self.slots(index, rounds=rounds) > self.slots(index, rounds=round)


class Words(NamedTuple):
    """`whom` ends a sentence, `title` is the head of a run's, `level` a table's."""

    whom: str
    title: str
    level: str


class Sampler(Participation, ABC):
    """Cohorts that a trusted server draws and noises: what a client's part in a round costs rests on this very draw. Everybody
    pays for every round, unless the cohorts are public (`charges_all` false). Assumes: it is frozen and its repr holds every
    number of the draw, which is keyed by it. Raises: TypeError for a public sampler that does not say whose slot a round is."""

    charges_all: ClassVar[bool] = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in () if cls.charges_all else ("scheduled", "slots"):
            if getattr(cls, name) is getattr(Participation, name):
                raise TypeError(f"{cls.__name__} charges only those who take part, so it needs `{name}`")

    @abstractmethod
    def draw(self, stream: Stream, round: int) -> np.ndarray:
        """The indices of a round's clients: nothing but chance and the round decides."""

    @abstractmethod
    def event(self, noise_multiplier: float) -> DpEvent:
        """The price of a round, to each who pays for it, of Gaussian noise with this multiplier on the sum of the cohort."""

    def event_of(self, index: int, noise_multiplier: float) -> DpEvent:
        """The same for one client: everybody's, unless clients differ in how often they are drawn."""
        return self.event(noise_multiplier)

    @abstractmethod
    def relation(self, *, secret: bool = True) -> str:
        """The change that the price is for; where everybody is in every round, nothing is `secret`."""

    @property
    @abstractmethod
    def words(self) -> Words:
        """What is said of the cohorts."""


class Poisson(Sampler):
    """Each client by a coin of its own; a cohort may be empty, and stays so."""

    def draw(self, stream: Stream, round: int) -> np.ndarray:
        return stream.bernoulli(self.population, self.rate)

    def event(self, noise_multiplier: float) -> DpEvent:
        return sampled_gaussian(noise_multiplier, self.rate)

    def relation(self, *, secret: bool = True) -> str:
        return ONE_CLIENT if secret else EMPTIED

    @property
    def words(self) -> Words:
        whom = f"Poisson cohorts, each of {self.population} clients with probability {self.rate:.4g} in every round"
        return Words(whom, "Poisson cohorts", "a secret Poisson cohort")


@dataclass(frozen=True, repr=False)
class OwnRates(Poisson):
    """Each client by a coin of its own at a rate of its own, and at a price of its own: individualised DP-FedAvg (Lange et al.
    2025, arXiv:2501.17634). `cohort` is the expected one, rounded up. Raises: BadInput for a rate outside (0, 1]."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        for rate in self.rates:
            check.rate(rate=rate)
        super().__post_init__()

    @cached_property
    def _rates(self) -> np.ndarray:
        return np.array(self.rates)

    @cached_property
    def _name(self) -> str:  # of many thousands of rates, once
        return f"OwnRates({self.population}, {self.cohort}, {digest_of('rates', self._rates.tobytes())})"

    def __repr__(self) -> str:
        return self._name

    @property
    def charges_alike(self) -> bool:
        return False

    @property
    def rate(self) -> float:
        """The mean of all rates."""
        return float(self._rates.mean())

    def expected(self, weights: np.ndarray) -> float:
        return float(self._rates @ weights)

    def draw(self, stream: Stream, round: int) -> np.ndarray:
        return stream.bernoulli(self.population, self._rates)

    def event(self, noise_multiplier: float) -> DpEvent:
        """The price to whoever is drawn most often."""
        return sampled_gaussian(noise_multiplier, max(self.rates))

    def event_of(self, index: int, noise_multiplier: float) -> DpEvent:
        return sampled_gaussian(noise_multiplier, self.rates[index])

    @property
    def words(self) -> Words:
        ends = f"{min(self.rates):.4g} to {max(self.rates):.4g}"
        whom = f"Poisson cohorts, each of {self.population} clients at a rate of its own in every round (from {ends})"
        return Words(
            whom, "Poisson cohorts, each client at a rate of its own", "a secret Poisson cohort, at its own rate"
        )


@dataclass(frozen=True)
class Cyclic(Sampler):
    """Groups that take public slots in a cycle: client k is in every round t with t mod `cycle` == `groups[k]`, and pays for
    those. Raises: BadInput for a group out of range."""

    groups: tuple[int, ...] = field(repr=False)
    cycle: int
    charges_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.at_least(1, cycle=self.cycle, clients=len(self.groups))
        if not all(0 <= group < self.cycle for group in self.groups):
            raise BadInput(f"Expected groups from 0 to {self.cycle - 1}.")
        super().__post_init__()

    @property
    def rate(self) -> float:
        return 1 / self.cycle

    def scheduled(self, round: int) -> list[int]:
        return [index for index, group in enumerate(self.groups) if group == round % self.cycle]

    def slots(self, index: int | None, *, rounds: int) -> int:
        return len(range(0 if index is None else self.groups[index], rounds, self.cycle))

    def draw(self, stream: Stream, round: int) -> np.ndarray:
        return np.array(self.scheduled(round), dtype=np.int64)

    def event(self, noise_multiplier: float) -> DpEvent:
        return dp_accounting.GaussianDpEvent(noise_multiplier)

    def relation(self, *, secret: bool = False) -> str:
        return EMPTIED

    @property
    def words(self) -> Words:
        title = f"public cohorts in a cycle of {self.cycle}"
        return Words(f"{title} rounds, each of {self.population} clients once in a cycle", title, f"{title} rounds")


def cyclic(population: int, cohort: int, *, seed: int) -> Cyclic:
    """Clients are dealt in the order of a public permutation, so that groups differ by at most one client."""
    cycle, groups = -(-population // cohort), np.empty(population, dtype=np.int64)
    groups[seeded(seed)("groups").generator().permutation(population)] = np.arange(population) % cycle
    return Cyclic(population, cohort, tuple(groups.tolist()), cycle)


SAMPLERS: dict[str, type[Sampler]] = {"poisson": Poisson, "cyclic": Cyclic}


def named(name: str | None) -> type[Sampler]:
    """The sampler of this name, the Poisson sampler unless said. Raises BadInput for a name that there is not."""
    check.one_of(tuple(SAMPLERS), sampler=name or "poisson")
    return SAMPLERS[name or "poisson"]


def of(experiment: Experiment, clients: int) -> Participation:
    """Who takes part where a kind says nothing else. Raises BadInput for a cohort larger than the population."""
    return Participation(clients, experiment.train.clients_per_round or clients)


def drawn(experiment: Experiment, clients: int) -> Sampler:
    """The sampler that a trusted server draws an experiment's cohorts with. Raises BadInput as `of`, and where the experiment
    takes a public sampler's cohorts for a secret, or a secret one's for public."""
    privacy, kind = experiment.privacy, named(experiment.privacy.sampler)
    if kind.charges_all == privacy.public_cohorts:
        is_so, said = ("secret", "public") if kind.charges_all else ("public", "secret")
        raise BadInput(
            f"The cohorts of privacy.sampler = {privacy.sampler or 'poisson'!r} are {is_so}, and [privacy] says {said}:"
            " let `public_cohorts` of its table (tacit/experiment/privacy.py) say what the sampler does."
        )
    cohort = experiment.train.clients_per_round or clients
    return cyclic(clients, cohort, seed=experiment.seeds.noise) if kind is Cyclic else kind(clients, cohort)
