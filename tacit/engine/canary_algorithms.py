"""Algorithms with canaries: the algorithm of the run, in which some more units take part, and the researcher sees what became of
them."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms import Algorithm, central_dp, encrypted
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.engine.canary_plan import SIGHT, Canaries
from tacit.errors import BadInput
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.mechanism import CohortMechanism, NoiseState, TrainingMechanism
from tacit.random import Derive, Stream
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd, NoisedUpdate
from tacit.types import Bounded, Client, Message, Private, Raw, State

# Mechanisms with canaries among the units: the same sampler draws them, the same noise covers them, at the same price.

LOUD = 10.0  # clips: how long a canary client's update is before it is clipped


class PlantedTraining:
    """One client's round of DP-SGD with canaries: records whose clipped gradient is C along a coordinate of their own.

    Guarantee: that of `own`, at its price: what is added to a sum is a function of coins, of draws and of nobody's rows.
    A record that takes part is drawn by the very call that draws the client's records.
    """

    def __init__(self, own: TrainingMechanism, places: np.ndarray, coins: np.ndarray):
        self.own, self.places = own, torch.from_numpy(places)
        self.taking = np.flatnonzero(coins)
        self.real = np.zeros(len(places))  # what the records themselves came to, at the canaries' coordinates
        self.drawn = np.zeros(len(places), dtype=np.int32)
        self._now = self.taking[:0]
        self.clip, self.sampling_rate, self.steps = own.clip, own.sampling_rate, own.steps
        self.noise_std, self.noise_growth = own.noise_std, own.noise_growth

    def init(self) -> NoiseState:
        """The mechanism's own."""
        return self.own.init()

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The records of one step; canaries are drawn behind them."""
        state, drawn = self.own.sample(state, stream, size + len(self.taking))
        self._now = self.taking[drawn[drawn >= size] - size]
        return state, drawn[drawn < size]

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canaries to the sum, and has it noised."""
        vector, places = bounded.vector, self.places.to(bounded.vector.device)
        self.real += vector[places].double().cpu().numpy()
        self.drawn[self._now] += 1
        hit = places[torch.from_numpy(self._now).to(places.device)]
        vector = vector.index_add(0, hit, vector.new_full((len(hit),), self.clip))
        return self.own.noise(state, stream, Bounded(vector, bounded.sensitivity))

    def event(self) -> DpEvent:
        """The mechanism's own price."""
        return self.own.event()

    def seen(self, update: torch.Tensor, *, scale: float) -> dict[str, np.ndarray]:
        """What somebody who knows the records, and has the update, sees at the canaries' coordinates, in clips."""
        found = -update[self.places.to(update.device)].double().cpu().numpy() / scale - self.real
        return {"seen": (found / self.clip).astype(np.float32), "drawn": self.drawn}


class PlantedCohort:
    """A server's round with canary clients: drawn by the cohort's sampler, clipped like everybody, noised with the sum.

    Guarantee: that of `own`, at its price. `told` is called with what somebody who knows the clients' sum sees of the canaries.
    """

    def __init__(
        self, own: CohortMechanism, places: np.ndarray, coins: np.ndarray, told: Callable[[dict[str, Any]], None]
    ):
        self.own, self.places, self.coins, self.told = own, places, coins, told

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.own, name)

    def at(self, clip: float) -> "PlantedCohort":
        """The same with another clip."""
        return PlantedCohort(self.own.at(clip), self.places, self.coins, self.told)

    def bound_rows(self, updates: torch.Tensor) -> torch.Tensor:
        """The mechanism's own."""
        return self.own.bound_rows(updates)  # pyright: ignore[reportAttributeAccessIssue] - asked for where it has one

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canary clients to the sum, and has it noised."""
        taking = np.flatnonzero(self.coins)
        drawn = taking[_drawn(self.own, stream, len(taking))]
        total = bounded.vector.clone()
        for place in self.places[drawn].tolist():
            update = torch.zeros_like(total, dtype=torch.float32)  # as a client's, so that the sum stays exact
            update[place] = LOUD * self.own.clip
            total += self.own.bound(update).vector
        state, noised = self.own.noise(state, stream, Bounded(total, bounded.sensitivity))
        places = torch.from_numpy(self.places).to(total.device)
        found = (noised.vector[places].double() - bounded.vector[places].double()).cpu().numpy() / self.own.sensitivity
        self.told({"seen": found.astype(np.float32), "drawn": np.isin(np.arange(len(self.places)), drawn)})
        return state, noised


def _drawn(own: CohortMechanism, stream: Stream, count: int) -> np.ndarray:
    """Which of so many more clients are drawn: by the cohort's own sampler, of a population so many times as large."""
    if not isinstance(own, CohortGaussian):
        raise BadInput("Canary clients are drawn by Tacit's own cohorts: leave out [audit].")
    times = max(1, -(-count // own.population))
    larger = replace(own, population=times * own.population, cohort=times * own.cohort)
    _, drawn = larger.sample(larger.init(), stream, larger.population)
    return drawn[drawn < count]


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
