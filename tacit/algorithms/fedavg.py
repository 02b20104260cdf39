"""FedAvg: McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1. No privacy: the server sees every update as it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tacit.algorithms import spread_word, step
from tacit.random import Derive
from tacit.rules import Crowd, Layout, Rule
from tacit.server_optimizer import ServerOptimizer, Sgd
from tacit.train.attempt import Local
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, State


@dataclass(frozen=True)
class FedAvg:
    """Clients run SGD and send the difference; the server averages."""

    forgiving: ClassVar[bool] = False

    rule: Rule
    layout: Layout
    crowd: Crowd
    local: Local
    optimizer: ServerOptimizer = field(default_factory=Sgd)

    def init(self, params: torch.Tensor) -> State:
        return State(params, self.rule.init(self.layout, self.crowd) | self.optimizer.init(params))

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        return spread_word(self.rule, state, cohort)

    def cost(self, client: Client) -> None:
        return None

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        return self.local(work, received.tensors["params"], client, derive("train"))  # ClientUpdate(k, w)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        return Message(client.id, {"update": trained.update.vector}, {"examples": client.size})

    def server(self, state: State, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
        # w <- w + sum of n_k/n (w_k - w)
        return step(self.rule, state, messages, optimizer=self.optimizer)
