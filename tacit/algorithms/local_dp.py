"""Local DP: Algorithm 2 of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561). Each participant runs DP-SGD. Guarantee:
record level, add or remove one record of one client; or client level, empty one client; against the server and everybody who
sees updates or models. Choosing participants at random earns no amplification here: the server sees who takes part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import DpEvent

from tacit.algorithms import Served, Server, local_for_round, start_of
from tacit.privacy.mechanism import TrainingMechanism
from tacit.random import Derive
from tacit.training.sgd import Trained, Workspace
from tacit.types import Client, Message, Private


@dataclass(frozen=True)
class LocalDP(Served):
    """`mechanism(client)` is what the client runs in one round: its sampling, its noise and its price in one object. `local` is
    where the noise stands: in every step (record level, DP-SGD) or on the whole clipped update (client level). The rule's round
    is line 7. Guarantee: an update has its noise before it leaves `train`, drawn by the mechanism that `cost` charges for."""

    tolerates_invalid: ClassVar[bool] = False
    depends_on_round: ClassVar[bool] = False

    mechanism: Callable[[Client], TrainingMechanism]
    server: Server
    local: Callable[..., Trained]

    def cost(self, client: Client) -> DpEvent | None:
        return self.mechanism(client).event()

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:  # lines 6, 8-15
        theta, mechanism = start_of(received, client, self.server.control), self.mechanism(client)
        local = local_for_round(self.local, received, client, self.server.control)
        return local(work, theta, client, mechanism, stream=derive("train"))

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """What the rule sends of a noised update, and the facts it weighs by. Raises: TypeError for an update without noise."""
        if not isinstance(trained.update, Private):
            raise TypeError("local DP releases only updates that carry their noise")
        facts = self.server.statistics.facts(client.size, client.budget.epsilon) | {
            "noise_std": max(trained.update.noise_std, self.server.statistics.least_noise)
        }
        update = trained.update.vector.to(received.tensors["params"].device)
        tensors, more = self.server.rule.send(update, facts, received)  # post-processing
        return Message(client.id, tensors, facts | more)
