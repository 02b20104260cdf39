"""Algorithms with canaries: the algorithm of the run, in which some more units take part, and the researcher sees what became of
them."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms import Algorithm, central_dp, encrypted
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.build.parts import Parts
from tacit.canaries.mechanism import LOUD, PlantedCohort, PlantedTraining
from tacit.canaries.plan import SIGHT, Canaries
from tacit.errors import BadInput
from tacit.protect.quantise import Quantised
from tacit.random import Derive
from tacit.train.dp_sgd import DpSgd
from tacit.train.noised_update import NoisedUpdate
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, Raw, State


def with_canaries(parts: Parts, canaries: Canaries) -> Algorithm:
    """The algorithm of a run with its canaries. Raises BadInput where nobody knows how to plant them."""
    algorithm: Any = parts.algorithm
    kind = KINDS.get((type(algorithm), type(getattr(algorithm, "local", None)) is DpSgd))
    if kind is None:
        raise BadInput("Canaries are planted into Tacit's own training: leave out [audit].")
    own = {one.name: getattr(algorithm, one.name) for one in fields(algorithm)}
    return kind(**own, canaries=canaries)


@dataclass(frozen=True, kw_only=True)
class LocalRecords(LocalDP):
    """Local DP, record level, with canary records at every client: seen by whoever sees its update and knows its records."""

    canaries: Canaries
    begun: dict[int, PlantedTraining] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        def planted(client: Client) -> PlantedTraining:
            self.begun[client.index] = self._planted(client)
            return self.begun[client.index]

        object.__setattr__(self, "plain", self.mechanism)
        object.__setattr__(self, "mechanism", planted)

    plain: ClassVar[Any]  # the mechanism of a client without canaries

    def _planted(self, client: Client) -> PlantedTraining:
        k = client.index
        return PlantedTraining(self.plain(client), self.canaries.places(k), self.canaries.coins(k))

    def cost(self, client: Client) -> DpEvent:
        """The price without canaries, which is the price."""
        return self.plain(client).event()

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """What is released, with what was seen of the canaries in the info, which stays."""
        message = super().release(trained, client, received)
        planted: PlantedTraining = self.begun.pop(client.index)
        local: Any = self.local
        scale = local.learning_rate / (planted.sampling_rate * client.size)
        if (
            trained.update.vector.any()
        ):  # zeros stand for an update that left float32: there is nothing to be seen in them
            trained.info[SIGHT] = planted.seen(trained.update.vector, scale=scale)  # type: ignore[assignment]
        return message


@dataclass(frozen=True, kw_only=True)
class LocalClients(LocalDP):
    """Local DP, client level: beside every client stand canary clients, who clip and noise what they have, or nothing.

    Whoever sees their updates sees all there is to see. They are not combined with the others', which would be post-processing.
    """

    canaries: Canaries

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """The client's own training, and its canaries' after it."""
        trained = super().train(work, received, client, derive)
        theta, mechanism = received.tensors["params"], self.mechanism(client)
        places, coins = self.canaries.places(client.index), self.canaries.coins(client.index)
        seen = np.empty(len(places), dtype=np.float32)
        for j, (place, takes_part) in enumerate(zip(places.tolist(), coins.tolist(), strict=True)):
            update = torch.zeros_like(theta)
            update[place] = LOUD * mechanism.clip * takes_part
            local = NoisedUpdate(lambda *_, update=update: Trained(Raw(update)))
            noised = local(work, theta, client, mechanism, stream=derive(f"canary {j}")).update.vector
            seen[j] = float(noised[place]) / mechanism.clip
        trained.info[SIGHT] = {"seen": seen, "drawn": coins}  # type: ignore[assignment]
        return trained


@dataclass(frozen=True, kw_only=True)
class Central(CentralDP):
    """Central DP with canary clients: seen by whoever sees the noised sums, and knows what the other clients sent."""

    canaries: Canaries

    def collect(self, state: State, *, round: int) -> "CentralSumming":
        """A round with canaries."""
        begun, sight = super().collect(state, round=round), {}
        mechanism: Any = PlantedCohort(begun.mechanism, *everywhere(self.canaries), sight.update)
        return CentralSumming(self, state, mechanism, begun.total, begun.known, sight=sight)


@dataclass(frozen=True, kw_only=True)
class CentralSumming(central_dp.Summing):
    """A round of `Central`."""

    sight: dict[str, Any]

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The round's end, with what was seen."""
        state, info = super().finish(derive)
        return state, info | {SIGHT: self.sight}


@dataclass(frozen=True, kw_only=True)
class Distributed(Encrypted):
    """Distributed DP with canary clients: each sends its clipped integers, without any noise, in the report of a client.

    So they go through the grid, the seal and the opening. Seen by whoever sees opened sums, and knows what the clients would have
    sent without noise.
    """

    canaries: Canaries

    def quantised(
        self, work: Workspace, received: Message, client: Client, derive: Derive
    ) -> tuple[Quantised, dict[str, Any]]:
        """The client's integers with those of its canaries; the researcher keeps the client's own, at the canaries' coordinates.

        Guarantee: together they end where a client's own end, before any noise: so no share of the noise is ever cut by a canary,
        and whatever the canaries are, a client moves a sum by no more than without them.
        """
        own, info = super().quantised(work, received, client, derive)
        turn, k, values = received.facts["turn"], client.index, own.values.copy()
        for j, place in enumerate(self.canaries.places(k)[self.canaries.coins(k)].tolist()):
            update = np.zeros(self.grid.size)
            update[place] = LOUD * self.grid.clip
            values += self.grid.quantise(update, stream=derive(f"canary {j}"), round=turn).values
        real = self.grid.dequantise(own.values, round=turn)
        both = replace(own, values=np.clip(values, -own.largest, own.largest))
        return both, info | {SIGHT: {"real": real[everywhere(self.canaries)[0]]}}

    def collect(self, state: State, *, round: int) -> "DistributedSumming":
        """A round with canaries."""
        return DistributedSumming(self, state, round, sight={})


@dataclass(frozen=True, kw_only=True)
class DistributedSumming(encrypted.Summing):
    """A round of `Distributed`."""

    sight: dict[str, Any]

    def means(self) -> list[Message]:
        """The opened sums; of each the researcher sees what is at the canaries' coordinates, in clips, and who is in it."""
        opened, (places, coins) = super().means(), everywhere(self.algorithm.canaries)  # type: ignore[attr-defined]
        for message in opened:
            group, reports = self.collected[message.sender]
            weight = sum(group.weights[name] for name in reports.clients)
            total = message.tensors["update"].double().numpy()[places] * weight
            self.sight[message.sender] = {"total": total, "clients": tuple(reports.clients)}
        if opened:
            self.sight[""] = {"coins": coins, "unit": self.algorithm.grid.sensitivity}
        return opened

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The round's end, with what was seen."""
        state, info = super().finish(derive)
        return state, info | {SIGHT: self.sight}


def everywhere(canaries: Canaries) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates and coins of all canaries, in their order."""
    places, coins = ([part(k) for k in canaries.owners] for part in (canaries.places, canaries.coins))
    return np.concatenate(places), np.concatenate(coins)


KINDS: dict[tuple[type, bool], type] = {
    (LocalDP, True): LocalRecords,
    (LocalDP, False): LocalClients,
    (CentralDP, False): Central,
    (Encrypted, False): Distributed,
}
