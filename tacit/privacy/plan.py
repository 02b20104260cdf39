"""What the rest of the house may ask about privacy: one plan a run, of one kind.

A kind is one folder here (`none`, `local`, `central`, `distributed`) with a `KIND`, or somebody else's "package.module:name".
It makes the plan of a run from its experiment; whoever admits, pays, trains, names attempts or writes words asks the plan."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from dp_accounting import DpEvent

from tacit.algorithms import Algorithm
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.guarantee import Words
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, most_releases
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.reader import Before
from tacit.privacy.ledger.sql import ALL
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.privacy.wiring import Wiring
from tacit.random import Stream
from tacit.training.optimizer import PLAIN, Descent
from tacit.types import Client, Guarantee

# What budgets pay for after what other runs of a ledger have sealed: the rows of `tacit plan` that every kind has.

GROUPS = 12  # distinct budgets beyond this are shown in so many groups of similar epsilon


@dataclass(frozen=True)
class Purse:
    """The clients' budgets, and what is gone of them: what plans are priced from. Nothing is charged."""

    experiment: Experiment
    population: Population = field(repr=False)
    before: Before

    def rounds(self, index: int | None, event: DpEvent, *, hint: int, asked: Asked = NOTHING_ASKED) -> int:
        """How many of the planned rounds a client can pay for beside its queries, as the ledger would say; without an index,
        everybody together.

        Raises: BadInput for an event without a price.
        """
        privacy, rounds = self.experiment.privacy, self.experiment.train.rounds
        known = self.before.of(ALL if index is None else self.population.names[index])
        limits = {"before": known, "total_delta": privacy.delta, "rounds": rounds, "accountant": privacy.accountant}
        return min(rounds, most_releases(self.population[index or 0].budget, event, **limits, hint=hint, asked=asked))

    def ends(self, members: np.ndarray) -> tuple[int, int]:
        """The clients with the least and with the most left."""
        left = self.population.left[members]
        return int(members[np.argmin(left)]), int(members[np.argmax(left)])

    def whose(self, members: np.ndarray) -> dict[str, Any]:
        """The first columns of a row: how many clients and which, what they allow, and what other runs have sealed of that."""
        epsilons, sealed = self.population.epsilons[members], self.population.sealed
        row: dict[str, Any] = {
            "clients": len(members),
            "names": [self.population.names[index] for index in sorted(members)],
        }
        row["epsilon"] = [float(epsilons.min()), float(epsilons.max())]
        if sealed is not None:
            row["epsilon_sealed"] = [float(sealed[members].min()), float(sealed[members].max())]
        return row | {"delta": self.population.delta}

    def groups(self) -> Sequence[np.ndarray]:
        """Clients with equal epsilon and equal rest of it; of many such groups, a few of similar ones.

        Guarantee: every client is in exactly one group, in the order of their epsilons.
        """
        order = np.lexsort((self.population.left, self.population.epsilons))
        epsilons, left = self.population.epsilons[order], self.population.left[order]
        cuts = np.flatnonzero((epsilons[1:] != epsilons[:-1]) | (left[1:] != left[:-1])) + 1
        return np.split(order, cuts) if len(cuts) < GROUPS else np.array_split(order, GROUPS)


class Plan(ABC):
    """One run's noise, who pays for it, and what may be said of it. What a kind leaves out means what stands here.

    Guarantee asked of every kind: `algorithm(...).cost(client)` is the whole price of what the client's round releases, and
    `key`, `server_key` and `digest` name everything of the plan that those releases are a function of. Two plans that noise
    otherwise and share a key would draw the same noise for both, which shows the difference of what it hides.

    Raises: TypeError, when the class is made, for a plan by which all pay together and that cannot draw a cohort.
    """

    participations: int  # rounds that a budget is made to last
    priced: ClassVar[bool] = True  # False where nothing is charged and nothing promised
    summed: ClassVar[bool] = False  # whether what is released is a sum over clients, and nobody's update by itself
    together: ClassVar[bool] = False  # whether everybody pays for every round, whomever chance draws
    trusts_server: ClassVar[bool] = False  # whether the noise is the server's
    own_training: ClassVar[bool] = True  # whether the promise is made in Tacit's own training, and in no other
    once: ClassVar[bool] = (
        False  # whether noise goes on from round to round, so that a round must never be released twice
    )

    def __init_subclass__(cls, **rest: Any) -> None:
        """Refuses a plan by which all would pay for cohorts that it cannot draw: it would be found out when they have paid."""
        super().__init_subclass__(**rest)
        if cls.together and cls.drawn is Plan.drawn:
            raise TypeError(f"{cls.__name__} says `together`, so it must say by which chance a cohort is `drawn`.")

    @property
    def fewest(self) -> int:
        """With fewer reports than this a round releases nothing; a round of fewer clients is not begun."""
        return 1

    @property
    def training_clip(self) -> float | None:
        """The norm that training bounds; None where it bounds nothing. It is for reports: what bounds is the mechanism."""
        return None

    @property
    def noise_multipliers(self) -> np.ndarray | None:
        """Noise over sensitivity: of every client, or the one of all."""
        return None

    def drawn(self, stream: Stream) -> Sequence[int]:
        """Where all pay together: the indices of a round's clients, by chance alone.

        Raises: TypeError in a kind that never asks: one that says `together` cannot be defined without its own.
        """
        raise TypeError(f"{type(self).__name__} draws no cohorts")

    def scheduled(self, round: int) -> Sequence[int] | None:
        """Where it is public whose turn a round is: their indices. None where chance decides."""
        return None

    def turns(self, index: int | None, *, rounds: int) -> int:
        """In how many of the first so many rounds a client may be asked; without an index, the one that is asked most."""
        return rounds

    def asked_from(self, index: int, round: int, *, rounds: int) -> bool:
        """Whether a client may be asked in one of the rounds from `round` on."""
        return self.turns(index, rounds=rounds) > self.turns(index, rounds=round)

    @abstractmethod
    def key(self, client: Client) -> str:
        """What a client's noise is keyed by, of the plan: every number that the client's release depends on."""

    def server_key(self) -> str:
        """What the server's noise and cohorts are keyed by, of the plan; empty where the server draws none."""
        return ""

    @abstractmethod
    def digest(self) -> str:
        """Every number of the plan, as one text: a resumed run with another one is another release, and is paid again."""

    @abstractmethod
    def algorithm(self, wiring: Wiring) -> Algorithm:
        """What clients train and release, and what the server does with it.

        Guarantee asked: nothing but what the algorithm's `release` returns leaves a client, and `cost` is its whole price.

        Raises: BadInput for what cannot be wired.
        """

    def rule(self, experiment: Experiment, population: Population) -> str | None:
        """The name of the rule that combines updates; None where there is none.

        The one that was asked for, or the kind's own choice.
        """
        return experiment.aggregate.rule or "mean"

    def update_noise(self, sizes: np.ndarray, *, learning_rate: float, descent: Descent = PLAIN) -> np.ndarray | None:
        """The noise per coordinate of every client's update as it is sent, where clients noise their own, else None: public."""
        return None

    def longest(
        self,
        index: int,
        sizes: np.ndarray,
        *,
        learning_rate: float,
        parameters: int,
        descent: Descent = PLAIN,
        largest: float = 0.0,
    ) -> float:
        """No number that an honest client sends is larger; a deployed server refuses a message with one.

        `largest` is that of the parameters which it was sent. Infinite where nothing is known.
        """
        return float("inf")

    def asked(self, index: int) -> Mapping[str, DpEvent]:
        """The queries that a client answers beside training, each once, and what each costs; none, in most kinds."""
        return {}

    def query_noise(self, query: str, index: int, *, l2_squared: int, cells: int) -> NoisyCounts | None:
        """The noise of one client's answer to a query; None where nothing is promised, and the answer is exact."""
        return None

    @abstractmethod
    def words(self, experiment: Experiment) -> Words:
        """Against whom, under which change and on which conditions the epsilon holds."""

    def also(
        self, guarantee: Guarantee, experiment: Experiment, ledger: Ledger, population: Population
    ) -> tuple[Guarantee, ...]:
        """What holds beside the guarantee, against somebody who sees more. `guarantee` says what was spent."""
        return ()

    def title(self, experiment: Experiment) -> str:
        """The plan in a few words, for the head of a run."""
        return f"{experiment.privacy.kind} DP"

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """`tacit plan`: a row for every group of clients that pay alike. Raises BadInput where there is nothing to plan."""
        raise BadInput(f'privacy.kind = "{purse.experiment.privacy.kind}" has nothing to plan.')


def planned_participations(*, rounds: int, share: float) -> int:
    """Rounds a client is made to afford: all of them if all take part, else mean + 2 std of a Binomial(rounds, share).

    A client drawn more often than that runs out early and stays out; one drawn less often keeps what is left. So this number
    decides how much noise there is, never whether a budget holds.

    >>> planned_participations(rounds=100, share=1.0), planned_participations(rounds=100, share=0.1)
    (100, 16)
    """
    if share >= 1:
        return rounds
    mean = rounds * share
    return max(1, min(rounds, math.ceil(mean + 2 * math.sqrt(mean * (1 - share)))))


class Kind(Protocol):
    """A kind of privacy, by which plans are made. It is asked in a simulation, by a deployed server and at every site alike."""

    plans: type[Plan]  # what it makes: what holds for all of them is asked before there is one

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """The plan for a model of `size` parameters. One client (`own`) may leave out what is the others'.

        Guarantee asked: the same experiment and population give a client the same noise and price everywhere, or a site and
        the server would not mean the same run.

        Raises: BadInput for settings that cannot keep the promise.
        """
        ...

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused for what would leave a site unprotected from a server that it does not trust."""
        ...
