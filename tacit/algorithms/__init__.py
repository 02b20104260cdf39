"""Federated algorithms, one file per paper: what a client trains and releases, and what the server does with it.

The simulator and a deployment call the same methods. `cost` is asked before `train`, and the ledger is paid in between, so
nothing that costs privacy exists before it is paid for. What arrives is added by the loop (tacit/engine/loop.py), one message
at a time and each once."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms.mean_regularised import MeanRegularised
from tacit.algorithms.rules import Layout, PopulationStatistics, Rule
from tacit.algorithms.scaffold import Scaffold, correction_of
from tacit.plugin import failing
from tacit.random import Derive
from tacit.training.clipping import Trained, Workspace
from tacit.training.optimizer import CONSTANT, Schedule, ServerOptimizer, Sgd
from tacit.types import Client, Message, State

MOST_TEXT = 500  # characters of a refusal
ROUND = "round"  # the fact that `in_round` adds
MEND = "Mend the rule; `tacit --debug` shows the traceback."
PAID = f"What the round cost stays charged, and the last checkpoint is kept for --resume. {MEND}"
Control = Scaffold | MeanRegularised  # what the server keeps for every client, and tells those of a round


class Collecting(Protocol):
    """A round on the server, between the first message and the last."""

    def add(self, message: Message) -> None:
        """Takes one message, which comes once. Where invalid ones are tolerated, it raises for nothing that a client sent."""
        ...

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The state after the round, and JSON for the reader that never feeds back (a number on a device may be a tensor).

        Guarantee: the state that the round began from is left as it is, so a round can be repeated from it.
        """
        ...


class Algorithm(Protocol):
    """The parts of one round, which is told its number.

    Guarantee, of every implementation: what the adversary that its file names sees of released messages and of the states
    that follow from them is private at the price of `cost`. The same arguments and streams give the same bits.

    One that `tolerates_invalid` messages refuses them by name as they are added; others stop the run. Where what a client sends
    `depends_on_round`, and is of no use in another, the same model in another round is another state.
    """

    tolerates_invalid: ClassVar[bool]
    depends_on_round: ClassVar[bool]

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


@dataclass(frozen=True)
class Server:
    """The server's part of every algorithm that has a rule: one value, and one memory for each of its parts in the state.

    Guarantee: post-processing. It sees messages and public facts, draws nothing and costs no privacy.
    `schedule` is given where clients send updates over the round's share of the learning rate (DP-SGD): it is multiplied by here.
    """

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
        return Combining(self, state, self.rule.start(), round)


@dataclass(frozen=True)
class Combining:
    """A round of a rule: what it has gathered of the messages so far."""

    server: Server
    state: State
    gathered: Any
    round: int = 0
    controls: dict[int, torch.Tensor] = field(default_factory=dict)  # c_i+ of who has answered

    @property
    def share(self) -> float:
        return self.server.schedule(self.round)

    def add(self, message: Message) -> None:
        """Raises: PartFailed, which ends the run."""
        if self.server.control:
            own = self.server.control.own(self.state.control, message, round=self.round, share=self.share)
            self.controls.update(own)
        with self._rule():
            self.server.rule.add(self.gathered, message)

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The optimiser's step along the rule's update. Raises: BadInput where no message was added; PartFailed."""
        with self._rule():
            applied = self.server.rule.apply(self.state.memory, self.gathered)
            update = applied.update if self.share == 1.0 else applied.update * self.share
        params, memory = self.server.optimizer.step(self.state.params, self.state.optimizer, update)
        control = self.server.control.after(self.state.control, self.controls) if self.server.control else {}
        return State(params, applied.memory, memory, control=control), applied.info

    def _rule(self) -> AbstractContextManager[None]:
        return failing(self.server.rule, f"The rule {{name}} failed in round {self.round + 1}", then=PAID)


class Served:
    """The parts of an algorithm's round that are its server's."""

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
    """What was broadcast, with the number of the round in which a client was asked; whatever a server says there is put right."""
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


def rule_of(algorithm: Algorithm) -> Rule | None:
    """The rule by which an algorithm's server combines what arrives; None where it has none (central DP)."""
    server = getattr(algorithm, "server", None)
    return server.rule if isinstance(server, Server) else None


def finished(collecting: Collecting, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
    """A round whose messages are all there already. The loop adds them as they arrive. Raises: what `add` and `finish` raise."""
    for message in messages:
        collecting.add(message)
    return collecting.finish(derive)


def printable(text: str) -> str:
    """A text that may quote a client's message, for a terminal and a log: printable, and at most 500 characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MOST_TEXT])
