"""FedAvg: McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1. No privacy: the server sees every update as it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tacit.algorithms import Served, Server, local_for_round, start_of
from tacit.random import Derive
from tacit.training.sgd import Local, Trained, Workspace
from tacit.types import Client, Message


@dataclass(frozen=True)
class FedAvg(Served):
    """Clients run SGD and send the difference; the server averages: w <- w + sum of n_k/n (w_k - w). Guarantee: none. A client
    whose training fails ends the run by name."""

    tolerates_invalid: ClassVar[bool] = False
    depends_on_round: ClassVar[bool] = False

    server: Server
    local: Local

    def cost(self, client: Client) -> None:
        return None

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        local = local_for_round(self.local, received, client, self.server.control)
        theta = start_of(received, client, self.server.control)
        return local(work, theta, client, derive("train"))  # ClientUpdate(k, w)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        return Message(client.id, {"update": trained.update.vector}, self._facts(client))

    def released_rows(
        self, updates: torch.Tensor, infos: Sequence[dict[str, float]], clients: Sequence[Client], received: Message
    ) -> list[tuple[Message, dict[str, float]]]:
        """`train` and `release` of several clients at once, whose updates (client, parameter) are known."""
        messages = [Message(c.id, {"update": u}, self._facts(c)) for c, u in zip(clients, updates, strict=True)]
        return list(zip(messages, infos, strict=True))

    def _facts(self, client: Client) -> dict[str, Any]:
        return {"examples": self.server.statistics.facts(client.size, math.inf)["examples"]}
