"""Federated algorithms, one file per paper: what a client trains and releases, and what the server does with it; and what an
aggregation rule is (one file per rule in `rules/`). The simulator and a deployment call the same methods: `cost` before `train`,
and the ledger is paid in between. The loop adds messages one at a time, each once (engine/loop.py)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms.mean_regularised import MeanRegularised
from tacit.algorithms.scaffold import Scaffold, correction_of
from tacit.errors import BadInput, TacitError
from tacit.plugin import failed
from tacit.random import Derive
from tacit.training.optimizer import CONSTANT, Schedule, ServerOptimizer, Sgd
from tacit.training.sgd import Trained, Workspace
from tacit.types import Client, Message, State

ROUND = "round"  # the fact that `in_round` adds
MEND = "Mend the rule; `tacit --debug` shows the traceback."
PAID = f"What the round cost stays charged, and the last checkpoint is kept for --resume. {MEND}"
Control = Scaffold | MeanRegularised  # what the server keeps for every client, and sends to those of a round
Memory = dict[str, torch.Tensor]  # what a rule keeps from round to round, by name
Layout = Sequence[tuple[int, int]]  # (start, stop) of every parameter in the flat vector


class Collecting(Protocol):
    def add(self, message: Message) -> None:
        """Takes one message. Where invalid ones are tolerated, it raises for nothing that a client sent."""
        ...

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The state after the round, and JSON for the reader that never feeds back (a number on a device may be a tensor).
        Guarantee: the state that the round began from is left as it is, so a round can be repeated from it."""
        ...


class Algorithm(Protocol):
    """The parts of one round. Guarantee, of every implementation: what the adversary that its file names sees of released messages
    and of the states that follow from them is private at the price of `cost`. The same arguments and streams give the same bits."""

    tolerates_invalid: ClassVar[bool]  # whether `add` refuses invalid messages by name; else they stop the run
    depends_on_round: ClassVar[bool]  # whether what a client sends is of no use in another round from the same model

    def init(self, params: torch.Tensor) -> State:
        """The server's state before the first round. It draws nothing: the initial weights are given."""
        ...

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        """What every client of the round receives. It is public: everybody in the round sees it."""
        ...

    def cost(self, client: Client) -> DpEvent | None:
        """What one round costs this client, by public settings and sizes alone; None where nothing is promised or charged."""
        ...

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """Local training, on the client's own rows and randomness; nothing of it has left the client."""
        ...

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """All that others ever see of `trained`; its `info` stays. Raises: TypeError for an update without its paid noise."""
        ...

    def collect(self, state: State, *, round: int) -> Collecting:
        """The server's part of the round that starts from `state`, which is left as it is; a new one for every round."""
        ...


# Aggregation rules: how a server combines updates.


@dataclass(frozen=True, eq=False)
class PopulationStatistics:
    """What the server knows of all clients beforehand. Public by assumption: sizes, budgets and settings are declared, and nothing
    here depends on rows. `epsilons` are cut to `most_epsilon` already (`aggregate.most_share`)."""

    epsilons: np.ndarray = field(repr=False)
    noise_stds: np.ndarray = field(repr=False)  # per coordinate
    rounds: float = 1.0  # in how many a client is expected to take part
    most_epsilon: float = math.inf
    most_examples: float = math.inf
    least_noise: float = 0.0  # what a client that adds none is weighed by

    def facts(self, examples: int, epsilon: float) -> dict[str, Any]:
        """What a client is weighed by: what it declares, up to what one may count for."""
        return {"examples": min(examples, self.most_examples), "epsilon": min(epsilon, self.most_epsilon)}


@dataclass(frozen=True)
class Applied:
    """The combined update, what the rule remembers, and numbers that are recorded with the round and never read again."""

    update: torch.Tensor = field(repr=False)
    memory: Memory = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sum:
    """The sum of w x, that of w, and how many clients are in it: one vector, however many updates were added.

    >>> gathered = Sum()
    >>> for weight, update in ((3.0, torch.tensor([1.0])), (1.0, torch.tensor([5.0]))): gathered.add(weight, update)
    >>> gathered.mean(), gathered.weight, gathered.clients
    (tensor([2.]), 4.0, 2)
    """

    rule: str = ""
    weight: float = 0.0
    clients: int = 0
    _total: torch.Tensor | None = field(default=None, repr=False)

    def add(self, weight: float, update: torch.Tensor, *, clients: int = 1) -> None:
        """Raises: BadInput for a weight that is negative or not finite; nothing was added then."""
        if not (np.isfinite(weight) and weight >= 0):
            raise BadInput(f"Expected weights that are finite and not negative, got {weight}.")
        self._total = update * weight if self._total is None else self._total.add_(update, alpha=weight)
        self.weight += weight
        self.clients += clients

    @property
    def total(self) -> torch.Tensor:
        """The sum of w x, which the next `add` changes in place. Raises: BadInput where no weight is above zero."""
        if self._total is None or self.weight <= 0:
            raise BadInput(
                "Expected at least one update with a weight above zero: the weights of this round sum to zero."
            )
        return self._total

    def mean(self) -> torch.Tensor:
        """A convex combination of the updates, as a tensor of its own. Raises: BadInput where no weight is above zero."""
        return self.total / self.weight

    def __iter__(self) -> Iterator[Message]:
        raise BadInput(
            f"The rule {self.rule} went over the messages twice: it sees sums, for which each was added as it arrived. Use the"
            ' sum\'s `total`, `weight` and `clients`, or say sees = "rows" and get a list of them.'
        )


class Rule(ABC):
    """How the server combines updates. Options are the fields of a frozen dataclass; whatever changes is in `memory`. Guarantee
    of every rule that ships, held by tests/test_contracts.py: messages are left as they were, what is remembered is tensors,
    equal updates come back unchanged (but by the random control), and with `sees = "sums"` the same comes out of sums by group
    as of single messages. A rule looks at nothing but messages, memory and statistics, so it is post-processing and free."""

    sees: ClassVar[Literal["sums", "rows"]] = "rows"  # "sums" if (group) sums are all it needs
    private_sum: ClassVar[bool] = False  # whether of rows it needs those of "public" clients alone, and the others' sum
    needs: ClassVar[tuple[str, ...]] = ("epsilon",)  # facts beside "examples" that a client must state
    whole: ClassVar[bool] = True  # whether `send` always sends the whole update, as SCAFFOLD needs it

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        """What the rule remembers before the first round: named tensors, which a checkpoint holds."""
        return {}

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        """What everybody in the round receives beside the model; `epsilons` are those of the cohort, which the server knows."""
        return Message("server", {})

    def refuse(self, received: Message, *, size: int) -> None:  # noqa: B027 - most rules tell nothing
        """A site's check, before it trains, of what a server may have crafted: what `tell` cannot have said. Raises: BadInput."""

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], received: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a client uploads of an update that is already private, and states beside. Assumes: `refuse` let `received` pass."""
        return {"update": update}, {}

    def weight(self, facts: dict[str, Any]) -> float:
        """The weight of a client in sums, from public facts alone: under encryption it is needed before anybody sees an update."""
        raise BadInput(f"The rule {type(self).__name__} sees sums but does not say of what: give it `weight(facts)`.")

    def start(self) -> Any:
        """What the messages of one round are added to: a `Sum` by `weight` for a rule that sees sums, a list for rows."""
        return Sum(type(self).__name__) if self.sees == "sums" else []

    def add(self, gathered: Any, message: Message, /) -> None:
        """Takes one message, which comes once; it may stand for several clients (`group_message`). Raises: BadInput."""
        if self.sees == "sums":
            gathered.add(self.weight(message.facts), message.tensors["update"], clients=message.facts.get("clients", 1))
        else:
            gathered.append(message)

    @abstractmethod
    def apply(self, memory: Memory, gathered: Any, /) -> Applied:
        """Combines what was gathered, which is used up; `memory` is left as it is. Raises: BadInput where nothing was gathered."""


def combined(rule: Rule, memory: Memory, messages: Iterable[Message]) -> Applied:
    """A whole round of a rule, for messages that are all there: for tests and one's own scripts. Raises: what the rule raises."""
    gathered = rule.start()
    for message in messages:
        rule.add(gathered, message)
    return rule.apply(memory, gathered)


def weighted_sum(pairs: Iterable[tuple[float, torch.Tensor]]) -> tuple[torch.Tensor, float]:
    """The sum of w x and of w, one vector at a time. Raises: as `Sum`.

    >>> weighted_sum([(3.0, torch.tensor([1.0])), (1.0, torch.tensor([5.0]))])
    (tensor([8.]), 4.0)
    """
    gathered = Sum()
    for w, x in pairs:
        gathered.add(w, x)
    return gathered.total, gathered.weight


def group_message(sender: str, update: torch.Tensor, members: Sequence[dict[str, Any]]) -> Message:
    """One message for a group of clients: the mean of their updates by the rule's weights, and their facts added up; noise_std is
    that of the mean by inverse variance, so that 1/sigma^2 adds up as well: under every rule that ships and sees sums the group
    weighs what its members weigh together. Assumes: at least one member, and every noise_std above zero."""
    facts: dict[str, Any] = {"clients": len(members)}
    for key in ("examples", "epsilon"):
        facts[key] = sum(float(member[key]) for member in members)
    facts["noise_std"] = sum(float(member["noise_std"]) ** -2 for member in members) ** -0.5
    return Message(sender, {"update": update}, facts | {k: v for k, v in members[0].items() if k == "group"})


# The server and the client of algorithms that have a rule.


@dataclass(frozen=True)
class Server:
    """The server's part of every algorithm that has a rule, with one memory for each of its parts in the state. Guarantee:
    post-processing. It sees messages and public facts, draws nothing and costs no privacy. `schedule` is given where clients
    send updates over the round's share of the learning rate (DP-SGD): it is multiplied by here."""

    rule: Rule
    layout: Layout
    statistics: PopulationStatistics
    optimizer: ServerOptimizer = field(default_factory=Sgd)
    schedule: Schedule = CONSTANT
    control: Control | None = None

    def init(self, params: torch.Tensor) -> State:
        with failing(self.rule, "The rule {name} failed before the first round", then=MEND):
            memory = self.rule.init(self.layout, self.statistics)
        control = self.control.init(params) if self.control else {}
        return State(params, memory, self.optimizer.init(params), control=control)

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        epsilons = np.minimum([client.budget.epsilon for client in cohort], self.statistics.most_epsilon)
        with failing(self.rule, "The rule {name} failed at what it tells the clients of a round", then=PAID):
            added = self.rule.tell(state.memory, epsilons)
        message = Message("server", {"params": state.params, **added.tensors}, added.facts)
        return self.control.tell(message, state.control, cohort) if self.control else message

    def collect(self, state: State, *, round: int = 0) -> "Combining":
        return Combining(self, state, self.rule.start(), round, share=self.schedule(round))


@contextmanager
def failing(rule: Rule, words: str, *, then: str) -> Iterator[None]:
    """Runs a rule: what it raises becomes PartFailed, in one sentence. Refusals pass as they are."""
    try:
        yield
    except TacitError:
        raise
    except Exception as error:
        raise failed(error, rule, words, then=then) from error


@dataclass(frozen=True)
class Combining:
    """A round of a rule: what it has gathered of the messages so far. Raises: PartFailed, which ends the run."""

    server: Server
    state: State
    gathered: Any
    round: int = 0
    share: float = 1.0  # of the learning rate
    controls: dict[int, torch.Tensor] = field(default_factory=dict)  # c_i+ of who has answered

    def add(self, message: Message) -> None:
        if control := self.server.control:
            self.controls.update(control.own(self.state.control, message, round=self.round, share=self.share))
        with failing(self.server.rule, f"The rule {{name}} failed in round {self.round + 1}", then=PAID):
            self.server.rule.add(self.gathered, message)

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The optimiser's step along the rule's update. Raises: BadInput where no message was added; PartFailed."""
        with failing(self.server.rule, f"The rule {{name}} failed in round {self.round + 1}", then=PAID):
            applied = self.server.rule.apply(self.state.memory, self.gathered)
            update = applied.update if self.share == 1.0 else applied.update * self.share
        params, memory = self.server.optimizer.step(self.state.params, self.state.optimizer, update)
        control = self.server.control.after(self.state.control, self.controls) if self.server.control else {}
        return State(params, applied.memory, memory, control=control), applied.info


class Served:
    server: Server

    def init(self, params: torch.Tensor) -> State:
        return self.server.init(params)

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        return self.server.broadcast(state, cohort)

    def collect(self, state: State, *, round: int) -> Combining:
        return self.server.collect(state, round=round)


@runtime_checkable
class ForRound(Protocol):
    """Local training that goes by the round: its learning rate, and SCAFFOLD's correction."""

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> Any: ...


def in_round(received: Message, round: int) -> Message:
    """What was broadcast, with the round in which a client was asked; whatever a server says there is put right."""
    return replace(received, facts=received.facts | {ROUND: round})


def local_for_round(local: Any, received: Message, client: Client, control: Control | None = None) -> Any:
    """Local training as it is in the round of a message (`in_round`); somebody else's is left as it is."""
    if not isinstance(local, ForRound):
        return local
    round: Any = received.facts.get(ROUND)  # a constant rate needs none
    return local.for_round(round, control.correction(correction_of(received, client)) if control else None)


def start_of(received: Message, client: Client, control: Control | None = None) -> torch.Tensor:
    """The parameters that a client's round begins with: the common model's, or its own where it keeps one (MR-MTL)."""
    params = received.tensors["params"]
    return control.start(params, correction_of(received, client)) if control else params


def finished(collecting: Collecting, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
    """A round whose messages are all there already. Raises: what `add` and `finish` raise."""
    for message in messages:
        collecting.add(message)
    return collecting.finish(derive)
