"""Federated algorithms, one file per paper: what a client trains and releases, and what the server does with it.

The simulator and a deployment call the same methods. `cost` is asked before `train`, and the ledger is paid in between.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.random import Derive
from tacit.rules import Rule
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, State


class Algorithm(Protocol):
    """The parts of one round."""

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

    def server(self, state: State, messages: Iterable[Message]) -> tuple[State, dict[str, Any]]:
        """Combines what arrived; the second value is for the reader and never feeds back."""
        ...


def step(
    rule: Rule, state: State, messages: Iterable[Message], *, learning_rate: float
) -> tuple[State, dict[str, Any]]:
    """theta <- theta + eta_server * rule(updates): the server's part that FedAvg and its private relatives share."""
    applied = rule.apply(state.memory, messages)
    return State(state.params + learning_rate * applied.update, applied.memory), applied.info


def spread_word(rule: Rule, state: State, cohort: Sequence[Client]) -> Message:
    """The model, and what the rule tells the round's clients beside it."""
    told = rule.tell(state.memory, np.array([client.budget.epsilon for client in cohort]))
    return Message("server", {"params": state.params, **told.tensors}, told.facts)
