"""Local DP: Algorithm 2 of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561). Each participant runs DP-SGD.

Guarantee: record level, add or remove one record of one client; or client level, all of one client's data against none.
Against the server and everybody who sees updates or models. Choosing participants at random earns no amplification here:
the server sees who takes part.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from dp_accounting import DpEvent

from tacit.algorithms import spread_word, step
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.random import Derive
from tacit.rules import Crowd, Layout, Rule
from tacit.server_optimizer import ServerOptimizer, Sgd
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, Private, State


@dataclass(frozen=True)
class LocalDP:
    """`mechanism(client)` is what the client runs in one round: its sampling, its noise and its price in one object.

    `local` is where the noise stands: in every step (record level, DP-SGD) or on the whole clipped update (client level).
    """

    forgiving: ClassVar[bool] = False

    mechanism: Callable[[Client], SampledGaussian]
    rule: Rule
    layout: Layout
    crowd: Crowd
    local: Callable[..., Trained]
    optimizer: ServerOptimizer = field(default_factory=Sgd)

    def init(self, params: torch.Tensor) -> State:  # line 2
        return State(params, self.rule.init(self.layout, self.crowd) | self.optimizer.init(params))

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        return spread_word(self.rule, state, cohort)

    def cost(self, client: Client) -> DpEvent:
        return self.mechanism(client).event()

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:  # lines 6, 8-15
        theta, mechanism = received.tensors["params"], self.mechanism(client)
        return self.local(work, theta, client, mechanism, stream=derive("train"))

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        if not isinstance(trained.update, Private):
            raise TypeError("local DP releases only updates that carry their noise")
        facts = {"examples": client.size, "noise_std": trained.update.noise_std, "epsilon": client.budget.epsilon}
        tensors, more = self.rule.send(trained.update.vector.cpu(), facts, received)  # post-processing
        return Message(client.id, tensors, facts | more)

    def server(self, state: State, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
        # line 7: theta_r <- sum of n_k/n theta_r^k, written for differences
        return step(self.rule, state, messages, optimizer=self.optimizer)
