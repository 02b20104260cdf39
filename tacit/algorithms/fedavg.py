"""FedAvg: McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1. No privacy: the server sees every update as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from tacit.algorithms import Combining, Server, told
from tacit.random import Derive
from tacit.train.attempt import Local
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, State


@dataclass(frozen=True)
class FedAvg:
    """Clients run SGD and send the difference; the server averages."""

    forgiving: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    server: Server
    local: Local

    def init(self, params: torch.Tensor) -> State:
        return self.server.init(params)

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        return self.server.broadcast(state, cohort)

    def cost(self, client: Client) -> None:
        return None

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        local = told(self.local, received, client, self.server.control)
        return local(work, received.tensors["params"], client, derive("train"))  # ClientUpdate(k, w)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        return Message(client.id, {"update": trained.update.vector}, {"examples": client.size})

    def collect(self, state: State, *, round: int) -> Combining:
        # w <- w + sum of n_k/n (w_k - w)
        return self.server.collect(state, round=round)
