"""FedAvg: McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1. No privacy: the server sees every update as it is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tacit.algorithms import spread_word, step
from tacit.random import Derive
from tacit.rules import Crowd, Layout, Rule
from tacit.train.sgd import sgd
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, State


@dataclass(frozen=True)
class FedAvg:
    """Clients run SGD and send the difference; the server averages."""

    rule: Rule
    layout: Layout
    crowd: Crowd
    steps: Callable[[Client], int]
    batch_size: Callable[[Client], int]
    learning_rate: float
    server_learning_rate: float = 1.0

    def init(self, params: torch.Tensor) -> State:
        return State(params, self.rule.init(self.layout, self.crowd))

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        return spread_word(self.rule, state, cohort)

    def cost(self, client: Client) -> None:
        return None

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        # ClientUpdate(k, w)
        return sgd(
            work,
            received.tensors["params"],
            client,
            steps=self.steps(client),
            batch_size=self.batch_size(client),
            learning_rate=self.learning_rate,
            stream=derive("train"),
        )

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        return Message(client.id, {"update": trained.update.vector}, {"examples": client.size})

    def server(self, state: State, messages: Iterable[Message]) -> tuple[State, dict[str, Any]]:
        # w <- w + sum of n_k/n (w_k - w)
        return step(self.rule, state, messages, learning_rate=self.server_learning_rate)
