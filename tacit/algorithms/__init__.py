"""Federated algorithms, one file per paper: what a client trains and releases, and what the server does with it.

The simulator and a deployment call the same methods. `cost` is asked before `train`, and the ledger is paid in between.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.random import Derive
from tacit.rules import Rule
from tacit.server_optimizer import ServerOptimizer, apart
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, State


class Algorithm(Protocol):
    """The parts of one round. A `forgiving` one refuses broken messages by name in `server`; for others the run stops."""

    forgiving: ClassVar[bool]

    def init(self, params: torch.Tensor) -> State:
        """The server's state before the first round."""
        ...

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        """What every client of the round receives."""
        ...

    def cost(self, client: Client) -> DpEvent | None:
        """What one round costs this client; None where nothing is promised and nothing charged."""
        ...

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """Local training."""
        ...

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """The client's last step before the wire."""
        ...

    def server(self, state: State, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
        """Combines what arrived; the second value is for the reader and never feeds back. `derive` is for its own noise."""
        ...


def step(
    rule: Rule, state: State, messages: Iterable[Message], *, optimizer: ServerOptimizer
) -> tuple[State, dict[str, Any]]:
    """The optimiser's step along rule(updates): the server's part that FedAvg and its private relatives share."""
    mine, rest = apart(state.memory)
    applied = rule.apply(rest, messages)
    moved = optimizer.step(state.params, mine, applied.update)
    return State(moved.params, applied.memory | moved.memory), applied.info


def spread_word(rule: Rule, state: State, cohort: Sequence[Client]) -> Message:
    """The model, and what the rule tells the round's clients beside it."""
    told = rule.tell(apart(state.memory)[1], np.array([client.budget.epsilon for client in cohort]))
    return Message("server", {"params": state.params, **told.tensors}, told.facts)
