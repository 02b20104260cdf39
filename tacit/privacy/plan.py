"""What the rest of the house may ask about privacy: one plan a run, of one kind. A plan is three protocols in one: who pays
and how often (`Charging`), which noise is drawn (`Noising`), and what may be said (`Statement`). A kind makes it from a
run's experiment; whoever admits, pays, trains, names attempts or writes words asks the plan."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import plugin
from tacit.algorithms import Algorithm, rules
from tacit.algorithms.fedavg import FedAvg
from tacit.data.population import Population
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.privacy import KINDS
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import Words, spent_by
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import NO_QUERIES, Before, Ledger, QueryEvents, most_releases
from tacit.privacy.queries.mechanism import EXACT, NOTHING, Queries
from tacit.privacy.wiring import Wiring
from tacit.training.optimizer import PLAIN, Descent
from tacit.types import Client, Guarantee

GROUPS = 12  # distinct budgets beyond this are shown in so many groups of similar epsilon


@dataclass(frozen=True)
class Remaining:
    """The clients' budgets, and what is gone of them: what plans are priced from. Nothing is charged."""

    experiment: Experiment
    population: Population = field(repr=False)
    before: Before

    def rounds(self, index: int | None, event: DpEvent, *, hint: int, queries: QueryEvents = NO_QUERIES) -> int:
        """How many of the planned rounds a client can pay for beside its queries, as the ledger would say; without an index,
        all. Raises: BadInput for an event without a price."""
        privacy, rounds = self.experiment.privacy, self.experiment.train.rounds
        known = self.before.of(ALL if index is None else self.population.names[index])
        limits = {"before": known, "total_delta": privacy.delta, "rounds": rounds}
        return min(
            rounds, most_releases(self.population[index or 0].budget, event, **limits, hint=hint, queries=queries)
        )

    def ends(self, members: np.ndarray) -> tuple[int, int]:
        """The clients with the least and with the most left."""
        left = self.population.left[members]
        return int(members[np.argmin(left)]), int(members[np.argmax(left)])

    def whose(self, members: np.ndarray) -> dict[str, Any]:
        """The first columns of a row: how many clients and which, what they allow, and what other runs have sealed of that."""
        epsilons, sealed = self.population.epsilons[members], self.population.sealed
        names = [self.population.names[index] for index in sorted(members)]
        row = {"clients": len(members), "names": names, "epsilon": [float(epsilons.min()), float(epsilons.max())]}
        if sealed is not None:
            row["epsilon_sealed"] = [float(sealed[members].min()), float(sealed[members].max())]
        return row | {"delta": self.population.delta}

    def groups(self) -> Sequence[np.ndarray]:
        """Clients with equal epsilon and equal rest of it; of many such groups, a few of similar ones. Each client is in one
        group."""
        order = np.lexsort((self.population.left, self.population.epsilons))
        epsilons, left = self.population.epsilons[order], self.population.left[order]
        cuts = np.flatnonzero((epsilons[1:] != epsilons[:-1]) | (left[1:] != left[:-1])) + 1
        return np.split(order, cuts) if len(cuts) < GROUPS else np.array_split(order, GROUPS)


@dataclass(frozen=True)
class Traits:
    """What holds for all plans of a kind, and is asked before there is one."""

    summed: bool = False  # what is released is a sum over clients, and nobody's update alone
    trusts_server: bool = False  # the noise is the server's
    own_training: bool = True  # the promise is made in Tacit's own training, and in no other
    single_release: bool = False  # noise goes on from round to round, so that a round must never be released twice

    @property
    def hidden_together(self) -> bool:
        """Whether a client is hidden by what others draw too, in one sum: their shares of the noise, and everybody's batches."""
        return self.summed and (self.own_training or not self.trusts_server)


class Charging(ABC):
    """Who pays for a round, how often, and for what else. What a kind leaves out means what stands here."""

    traits: ClassVar[Traits] = Traits()
    priced: ClassVar[bool] = True  # False where nothing is charged and nothing promised
    participations: int  # rounds that a budget is made to last
    sampler: samplers.Participation
    queries: Queries = NOTHING  # what clients answer beside training, each once

    @property
    def min_reports(self) -> int:
        """With fewer reports than this a round releases nothing; a round of fewer clients is not begun."""
        return 1


class Noising(ABC):
    """Which noise is drawn, and what it is keyed by. Guarantee asked of every kind: `key` and `digest` name everything of the
    plan that its releases are a function of. Two plans that noise otherwise and share a key would draw the same noise for
    both, which shows the difference of what it hides."""

    @abstractmethod
    def algorithm(self, wiring: Wiring) -> Algorithm:
        """What clients train and release, and what the server does with it. Raises BadInput for what cannot be wired.
        Guarantee asked: nothing but what the algorithm's `release` returns leaves a client, and `cost` is its whole price."""

    def rule(self, experiment: Experiment, population: Population) -> str | None:
        """The name of the rule that combines updates, asked for or the kind's own choice; None where there is none."""
        return experiment.aggregate.rule or "mean"

    @abstractmethod
    def key(self, client: Client | None) -> str:
        """What a client's noise is keyed by, of the plan: every number that its release depends on. Of None, what the
        server's noise and cohorts are keyed by; empty where the server draws none."""

    @abstractmethod
    def digest(self) -> str:
        """Every number of the plan, as one text: a resumed run with another one is another release, and is paid again."""

    def update_noise(self, sizes: np.ndarray, *, learning_rate: float, descent: Descent = PLAIN) -> np.ndarray | None:
        """The noise per coordinate of every client's update as it is sent, where clients noise their own, else None: public."""
        return None

    def longest(self, index: int, sizes: np.ndarray, sent: torch.Tensor, *, rate: float, descent: Descent) -> float:
        """No number that an honest client sends back, which was sent these parameters, is larger; a deployed server refuses a
        message with one. Infinite: not known."""
        return float("inf")


class Statement(ABC):
    """What may be promised of a plan, and to whom, in words."""

    opted_out: frozenset[int] = frozenset()  # clients that are promised nothing: neither noised nor charged

    @abstractmethod
    def words(self, experiment: Experiment) -> Words:
        """Against whom, under which change and on which conditions the epsilon holds."""

    def single_reports(self, guarantee: Guarantee, experiment: Experiment) -> tuple[Guarantee, ...]:
        """The guarantee in the words for somebody who sees single reports, where that is more than it is about; its numbers
        are to be replaced: every charge is then priced as one report (`price.alone`)."""
        return ()

    def also(
        self, guarantee: Guarantee, experiment: Experiment, ledger: Ledger, population: Population
    ) -> tuple[Guarantee, ...]:
        """What was spent against somebody who sees more. `guarantee` says what was spent beside that."""
        others = self.single_reports(guarantee, experiment)
        return tuple(spent_by(other, ledger, population, seen=price.alone) for other in others)

    def title(self, experiment: Experiment) -> str:
        """The plan in a few words, for the head of a run."""
        return f"{experiment.privacy.kind} DP"


class Figures(ABC):  # noqa: B024 - each has a usual answer
    """What a plan shows before and beside a run: rows, advice, and numbers for reports."""

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        """`tacit plan`: a row for every group of clients that pay alike. Raises BadInput where there is nothing to plan."""
        raise BadInput(f'privacy.kind = "{remaining.experiment.privacy.kind}" has nothing to plan.')

    def advice(self, remaining: Remaining) -> str:
        """What `tacit plan` adds where another kind of privacy would serve these clients better; else nothing."""
        return ""

    @property
    def batch_shares(self) -> np.ndarray | None:
        """Each client's share of the records in a round, where clients are drawn from at rates of their own."""
        return None

    @property
    def training_clip(self) -> float | None:
        """The norm that training bounds; None where it bounds nothing. It is for reports: what bounds is the mechanism."""
        return None

    @property
    def noise_multipliers(self) -> np.ndarray | None:
        """Noise over sensitivity: of every client, or the one of all."""
        return None


class Plan(Charging, Noising, Statement, Figures):
    """One run's noise, who pays for it, what is promised of it and what is shown."""


class Kind(Protocol):
    """A kind of privacy, by which plans are made. It is asked in a simulation, by a deployed server and at every site alike."""

    plans: type[Plan]  # what it makes: what holds for all of them is asked before there is one

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """The plan for a model of `size` parameters. One client (`own`) may leave out what is the others'. Guarantee asked:
        the same experiment and population give a client the same noise and price everywhere, or a site and the server
        would not mean the same run. Raises: BadInput for settings that cannot keep the promise."""
        ...

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused for what would leave a site unprotected from a server that it does not trust."""
        ...


# No privacy: FedAvg, and a sentence that says that nothing is promised.


@dataclass(frozen=True)
class NoPlan(Plan):
    """Nothing is promised, charged or noised."""

    sampler: samplers.Participation
    priced: ClassVar[bool] = False
    participations: int = 1
    queries: Queries = EXACT

    def key(self, client: Client | None) -> str:
        return "" if client is None else "none"

    def digest(self) -> str:
        return "none"

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """FedAvg. Raises BadInput for a rule that weighs clients by their privacy."""
        name, population = self.rule(wiring.experiment, wiring.population) or "mean", wiring.population
        rule = wiring.rule(name)
        if rule.needs:
            text = f'The rule {name} weighs clients by their privacy: with privacy.kind = "none"'
            able = ", ".join(name for name in rules.names() if not rules.load(name).needs)
            raise BadInput(f"{text} use one of {able}.")
        statistics = wiring.statistics(np.zeros(len(population)))
        return FedAvg(wiring.server(rule, statistics, control=wiring.control(rule, statistics)), wiring.training)

    def words(self, experiment: Experiment) -> Words:
        """Raises TypeError: there is no promise to put in words."""
        raise TypeError("nothing is promised")

    def title(self, experiment: Experiment) -> str:
        return "no privacy promised"

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        """Raises BadInput: there is nothing to plan."""
        raise BadInput('This experiment promises nothing (privacy.kind = "none"), so there is nothing to plan.')


class NoPrivacy:
    """The kind `none`: the server sees every update as it is, and no ledger is charged."""

    plans: type[Plan] = NoPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        return NoPlan(samplers.of(experiment, len(population)))

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused: a site gives nothing without privacy."""
        raise Refused('This experiment promises no privacy (privacy.kind = "none") and the site gives nothing without.')


def kind_of(experiment: Experiment) -> Kind:
    """The kind that an experiment names: a folder of this room, or what the factory at "package.module:name" makes. Assumes:
    somebody else's code does what it says; it runs in this process. Raises: BadInput in one sentence for what cannot be
    imported or made, and for what is no kind."""
    name = experiment.privacy.kind
    if name == "none":
        return NoPrivacy()
    if name in KINDS:
        home = "local" if name == "local" else f"{name}.kind"
        return importlib.import_module(f"tacit.privacy.{home}").kind(experiment)
    kind = plugin.make(plugin.find("tacit.privacy", name, key="privacy.kind"), {}, table="privacy")
    plans = getattr(kind, "plans", None)
    if not (isinstance(plans, type) and issubclass(plans, Plan)):
        raise BadInput(
            f"privacy.kind = {name!r} is no kind of privacy: it needs `plans`, the class of the plans it makes."
        )
    for method in ("plan", "refuse_at_site"):
        if not callable(getattr(kind, method, None)):
            raise BadInput(f"privacy.kind = {name!r} is no kind of privacy: it has no `{method}`.")
    return kind


def sampler_of(experiment: Experiment, clients: int) -> samplers.Participation:
    """Who takes part in an experiment's rounds: as its kind says, where that has a `sampler` of its own. Raises: BadInput for
    a cohort larger than the population."""
    own = getattr(kind_of(experiment), "sampler", samplers.of)
    return own(experiment, clients)
