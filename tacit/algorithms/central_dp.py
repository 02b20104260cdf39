"""Central DP: DP-FedAvg, Algorithm 1 of McMahan et al. 2018 (arXiv:1710.06963) with the estimator of fixed denominator; the
central half of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561). Adaptive clip: Andrew et al. 2021 (arXiv:1905.03871).

Guarantee: client level, against everybody who sees the models. The server is trusted: it sees clipped updates and who
sent them. It clips again, since a client may not have; whose training fails or diverges sends a zero update, and who does not
answer, or sends what cannot be used, counts as one; the divisor is the expected cohort. So nothing depends on who was drawn,
who answered, or what one client sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from dp_accounting import DpEvent

from tacit.algorithms._usable import usable
from tacit.digest import mark, tensor_bytes
from tacit.privacy.central.mechanism import CohortGaussian, QuantileClip
from tacit.random import Derive
from tacit.server_optimizer import ServerOptimizer, apart
from tacit.train.attempt import Local, attempt
from tacit.train.workspace import Trained, Workspace
from tacit.types import Bounded, Client, Message, State


@dataclass(frozen=True)
class CentralDP:
    """`mechanism` is the round: its cohort, its noise and its price; `weights` (by client, at most 1) are the server's own."""

    forgiving: ClassVar[bool] = True  # a broken message is refused by name in `server`, and the round goes on

    mechanism: CohortGaussian
    weights: Mapping[str, float]
    expected_weight: float  # q W
    local: Local
    optimizer: ServerOptimizer
    adapt: QuantileClip | None = None

    def init(self, params: torch.Tensor) -> State:
        clip = torch.tensor(self.mechanism.clip, dtype=torch.float64)
        return State(params, {"clip": clip, **self.optimizer.init(params)})

    def broadcast(self, state: State, cohort: Sequence[Client]) -> Message:
        return Message("server", {"params": state.params, "clip": state.memory["clip"]})

    def cost(self, client: Client) -> DpEvent:
        return self.mechanism.event()

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        # that it sends nothing, or that the run stops, would tell everybody: whoever fails sends a zero update
        trained = attempt(self.local, work, received.tensors["params"], client, derive("train"))
        clipped = float(trained.update.vector.norm()) > float(received.tensors["clip"])
        return Trained(trained.update, trained.info | {"clipped": float(clipped)})

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        bounded = self.mechanism.at(float(received.tensors["clip"])).bound(trained.update.vector)
        unclipped = bounded.vector is trained.update.vector
        return Message(client.id, {"update": bounded.vector}, {"unclipped": unclipped})

    def server(self, state: State, messages: Iterable[Message], derive: Derive) -> tuple[State, dict[str, Any]]:
        remembered, rest = apart(state.memory)
        mechanism = self.mechanism.at(float(rest["clip"]))  # S_t: noise and clip of one round cannot differ
        total, within, refused = torch.zeros_like(state.params), [], dict[str, str]()
        checks = {"like": state.params, "known": self.weights, "bound": mechanism.bound, "refused": refused}
        for message, update in usable(messages, **checks):
            total.add_(update.vector, alpha=self.weights[message.sender])
            within.append(bool(message.facts.get("unclipped")))
        # keyed by the sum itself: another sum, of other answers or other rows, never meets the same noise
        noised = mechanism.noise(derive("noise", mark(tensor_bytes(total))), Bounded(total, mechanism.sensitivity))
        moved = self.optimizer.step(state.params, remembered, noised.vector / self.expected_weight)
        count = derive("count", sum(within), len(within))
        clip = self.adapt.next(mechanism, within, count) if self.adapt else mechanism.clip
        memory = moved.memory | {"clip": torch.tensor(clip, dtype=torch.float64)}
        info = {"clip": mechanism.clip, "noise_std": noised.noise_std / self.expected_weight, "refused": refused}
        info |= {"noised_norm": float(noised.vector.norm()) / self.expected_weight}
        return State(moved.params, memory), info
