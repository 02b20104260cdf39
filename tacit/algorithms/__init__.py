"""Federated algorithms, one file per paper: what a client trains and releases, and what the server does with it.

The simulator and a deployment call the same methods. `cost` is asked before `train`, and the ledger is paid in between.
"""

from collections.abc import Iterable
from typing import Any, Protocol

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

    def broadcast(self, state: State) -> Message:
        """What every client of the round receives."""
        ...

    def cost(self, client: Client) -> DpEvent | None:
        """What one round costs this client; None where nothing is promised and nothing charged."""
        ...

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """Local training."""
        ...

    def release(self, trained: Trained, client: Client) -> Message:
        """The client's last step before the wire."""
        ...

    def server(self, state: State, messages: Iterable[Message]) -> tuple[State, dict[str, Any]]:
        """Combines what arrived; the second value is for the reader and never feeds back."""
        ...


def step(
    rule: Rule, state: State, messages: Iterable[Message], *, learning_rate: float
) -> tuple[State, dict[str, Any]]:
    """theta <- theta + eta_server * rule(updates): the server's part that FedAvg and its private relatives share."""
    applied = rule.apply(state.rule, messages)
    return State(state.params + learning_rate * applied.update, applied.state), applied.info
