"""The canaries of a run: committed to before the first round, planted, and what was seen of them kept, a file a round."""

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import store
from tacit.algorithms import Algorithm, central_dp, encrypted
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto import keys
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.engine.canary_plan import OBSERVED, Canaries, file_of, gathered, packed, sizes_of
from tacit.engine.run_folder import Folder
from tacit.errors import BadData, BadInput, KeyRefused
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.mechanism import CohortMechanism, NoiseState, TrainingMechanism
from tacit.random import Derive, Stream, keyed
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd, NoisedUpdate
from tacit.training.flat import blocks
from tacit.types import Bounded, Client, Message, Private, Raw, State
from tacit.wire import digest_of

# Mechanisms with canaries among the units: the same sampler draws them, the same noise covers them, at the same price.

LOUD = 10.0  # clips: how long a canary client's update is before it is clipped


class PlantedTraining:
    """One client's round of DP-SGD with canaries: records whose clipped gradient is C along a coordinate of their own.
    Guarantee: that of `own`, at its price: what is added to a sum is a function of coins, of draws and of nobody's rows. A record
    that takes part is drawn by the very call that draws the client's records."""

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
    Guarantee: that of `own`, at its price. `told` is called with what somebody who knows the clients' sum sees of the canaries."""

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
            trained.info[OBSERVED] = planted.seen(trained.update.vector, scale=scale)  # type: ignore[assignment]
        return message


@dataclass(frozen=True, kw_only=True)
class LocalClients(LocalDP):
    """Local DP, client level: beside every client stand canary clients, who clip and noise what they have, or nothing.
    Whoever sees their updates sees all there is to see. They are not combined with the others', which would be post-processing."""

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
        trained.info[OBSERVED] = {"seen": seen, "drawn": coins}  # type: ignore[assignment]
        return trained


@dataclass(frozen=True, kw_only=True)
class Central(CentralDP):
    """Central DP with canary clients: seen by whoever sees the noised sums, and knows what the other clients sent."""

    canaries: Canaries

    def collect(self, state: State, *, round: int) -> "CentralSumming":
        """A round with canaries."""
        begun, observed = super().collect(state, round=round), {}
        mechanism: Any = PlantedCohort(begun.mechanism, *everywhere(self.canaries), observed.update)
        return CentralSumming(self, state, mechanism, begun.total, begun.known, observed=observed)


@dataclass(frozen=True, kw_only=True)
class CentralSumming(central_dp.Summing):
    """A round of `Central`."""

    observed: dict[str, Any]

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The round's end, with what was seen."""
        state, info = super().finish(derive)
        return state, info | {OBSERVED: self.observed}


@dataclass(frozen=True, kw_only=True)
class Distributed(Encrypted):
    """Distributed DP with canary clients: each sends its clipped integers, without any noise, in the report of a client.
    Seen by whoever sees opened sums, and knows what the clients would have sent without noise."""

    canaries: Canaries

    def quantised(
        self, work: Workspace, received: Message, client: Client, derive: Derive
    ) -> tuple[Quantised, dict[str, Any]]:
        """The client's integers with those of its canaries; the researcher keeps the client's own, at the canaries' coordinates.
        Guarantee: together they end where a client's own end, before any noise: so no share of the noise is ever cut by a canary,
        and whatever the canaries are, a client moves a sum by no more than without them."""
        own, info = super().quantised(work, received, client, derive)
        turn, k, values = received.facts["turn"], client.index, own.values.copy()
        for j, place in enumerate(self.canaries.places(k)[self.canaries.coins(k)].tolist()):
            update = np.zeros(self.grid.size)
            update[place] = LOUD * self.grid.clip
            values += self.grid.quantise(update, stream=derive(f"canary {j}"), round=turn).values
        real = self.grid.dequantise(own.values, round=turn)
        both = replace(own, values=np.clip(values, -own.largest, own.largest))
        return both, info | {OBSERVED: {"real": real[everywhere(self.canaries)[0]]}}

    def collect(self, state: State, *, round: int) -> "DistributedSumming":
        """A round with canaries."""
        return DistributedSumming(self, state, round, observed={})


@dataclass(frozen=True, kw_only=True)
class DistributedSumming(encrypted.Summing):
    """A round of `Distributed`."""

    observed: dict[str, Any]

    def means(self) -> list[Message]:
        """The opened sums; of each the researcher sees what is at the canaries' coordinates, in clips, and who is in it."""
        opened, (places, coins) = super().means(), everywhere(self.algorithm.canaries)  # type: ignore[attr-defined]
        for message in opened:
            group, reports = self.collected[message.sender]
            weight = sum(group.weights[name] for name in reports.clients)
            total = message.tensors["update"].double().numpy()[places] * weight
            self.observed[message.sender] = {"total": total, "clients": tuple(reports.clients)}
        if opened:
            self.observed[""] = {"coins": coins, "unit": self.algorithm.grid.sensitivity}
        return opened

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The round's end, with what was seen."""
        state, info = super().finish(derive)
        return state, info | {OBSERVED: self.observed}


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


# Canary records that go through the per-example clipper as well: rows of random numbers with a random class.


class PlantedRows(PlantedTraining):
    """One client's round of DP-SGD with canary records. Guarantee: as `PlantedTraining`, if the clipper keeps to C."""

    def __init__(self, own: TrainingMechanism, work: Workspace, x: torch.Tensor, y: torch.Tensor, coins: np.ndarray):
        super().__init__(own, np.arange(len(coins)), coins)
        self.work, self.x, self.y = work, x, y

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canaries' clipped gradients to the sum, has it noised, and looks along every canary's."""
        rows = [self._clipped(j) for j in range(len(self.y))]
        gradients = torch.stack(rows) if rows else bounded.vector.new_zeros(0, len(bounded.vector))
        now = torch.from_numpy(self._now).to(gradients.device)
        added = gradients[now].sum(0)
        state, noised = self.own.noise(state, stream, Bounded(bounded.vector + added, bounded.sensitivity))
        self.drawn[self._now] += 1
        lengths = gradients.norm(dim=1).clamp(min=1e-12)
        left = noised.vector - bounded.vector - added  # the noise as run
        along = (gradients @ left) / lengths
        along[now] += lengths[now]
        self.real += along.double().cpu().numpy()
        return state, noised

    def _clipped(self, j: int) -> torch.Tensor:
        x, y = self.x[j : j + 1], self.y[j : j + 1]
        return self.work.clipped_sum(x, y, again=lambda: x)[0].vector.clone()

    def told(self) -> dict[str, np.ndarray]:
        """What was seen, in clips."""
        return {"seen": np.asarray(self.real / self.clip, dtype=np.float32), "drawn": self.drawn}


@dataclass(frozen=True, kw_only=True)
class LocalRows(LocalRecords):
    """Local DP, record level, with canary records of `classes` classes; `where` is the process's workspace, while it trains."""

    classes: int
    where: dict[str, Workspace] = field(default_factory=dict, repr=False, compare=False)

    def _planted(self, client: Client) -> PlantedTraining:
        work, k = self.where.get("work"), client.index
        if work is None:
            raise BadInput('audit.placement = "record" is for clients that train one by one: leave out run.at_once.')
        x, y = rows(self.canaries, client, classes=self.classes)
        return PlantedRows(self.plain(client), work, x, y, self.canaries.coins(k))

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """As without canaries, in this workspace."""
        self.where["work"] = work
        return super().train(work, received, client, derive)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """What is released, with what was seen of the canaries in the info, which stays."""
        message = LocalDP.release(self, trained, client, received)
        planted: Any = self.begun.pop(client.index)
        trained.info[OBSERVED] = planted.told()
        return message


def with_rows(parts: Parts, canaries: Canaries, *, classes: int) -> LocalRows:
    """The algorithm of a run with canary records. Raises BadInput where its clients do not run DP-SGD."""
    own: Any = parts.algorithm
    if type(own) is not LocalDP or type(own.local) is not DpSgd:
        raise BadInput("Canary records are planted into Tacit's own DP-SGD: leave out [audit].")
    return LocalRows(own.mechanism, own.server, own.local, canaries=canaries, classes=classes)


def rows(canaries: Canaries, client: Client, *, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a client's canaries: standard normals, and a class each; they follow from the key and the shape of a row."""
    count, shape = len(canaries.of(client.index)), client.x.shape[1:]
    stream = keyed(canaries.key)("rows", client.index)
    x = stream.normal(count * int(np.prod(shape))).view(count, *shape).to(client.x.dtype)
    y = torch.from_numpy((stream.words(count) % classes).astype(np.int64))
    return x.to(client.x.device), y.to(client.y.device, client.y.dtype)


SECRET, COMMITMENT = "canaries.json", "canaries"  # the file of the key; the key, in run.json, of the hash
KEY_BYTES = 16
MOST_LAYERS = 1000  # of a model, that are told apart


def planted(parts: Parts, folder: Folder) -> Parts:
    """The parts with the canaries that the experiment asks for. Raises BadInput for more than fit, BadData for other coins.
    Guarantee: a hash of all coins is on disk before the first round, and a run goes on with the coins it began with."""
    if parts.experiment.audit.canaries is None:
        return parts
    sizes, file = sizes_of(parts), folder.path / "run.json"
    known = json.loads(file.read_text("utf-8"))
    if COMMITMENT in known:
        canaries = opened(folder.path, sizes)
    else:
        seeded = parts.experiment.run.randomness == "seeded" and not parts.nonce
        key = (
            bytes.fromhex(digest_of("canaries", parts.releases.server_key))
            if seeded
            else secrets.token_bytes(KEY_BYTES)
        )
        canaries = Canaries(key, *sizes)
        layers = [(block.name, block.start, block.stop) for block in blocks(parts.model)]
        secret = {"key": key.hex(), "layers": layers}
        keys.write(folder.path / SECRET, secret, mode=keys.SECRET, force=True)
        folder.write(file.name, json.dumps(known | {COMMITMENT: canaries.commitment}).encode())
    return replace(parts, algorithm=_planted(parts, canaries))


def _planted(parts: Parts, canaries: Canaries) -> Algorithm:
    if parts.experiment.audit.placement != "record":
        return with_canaries(parts, canaries)
    if parts.experiment.task.kind not in ("classification", "binary") or not parts.dataset.x.is_floating_point():
        raise BadInput('audit.placement = "record" makes up rows of numbers with a class: leave it out for this task.')
    return with_rows(parts, canaries, classes=max(2, parts.task.answer[-1]))


def opened(folder: Path, sizes: tuple[int, int, int, bool]) -> Canaries:
    """The canaries that a run was started with.
    Raises: BadData where their key cannot be read, or they are not those that were committed to."""
    committed = json.loads((folder / "run.json").read_text("utf-8")).get(COMMITMENT)
    try:
        key = keys.read(folder / SECRET, secret=True).get("key")
    except KeyRefused as error:
        raise BadData(
            f"{folder / SECRET} cannot be read ({str(error).rstrip('.')}): coins cannot be made again, put the file back."
        ) from None
    secret = str(key) if re.fullmatch(r"[0-9a-f]{32}", str(key)) else ""
    canaries = Canaries(bytes.fromhex(secret), *sizes)
    if canaries.commitment != committed:
        raise BadData(
            f"The coins in {folder / SECRET} are not those that were committed to before round 1: put the file back as it was."
        )
    return canaries


def layers_of(folder: Path) -> list[tuple[str, int, int]]:
    """Where the layers of the audited model lie in its vector; none where the file does not say it."""
    found = keys.read(folder / SECRET, secret=True).get("layers")
    known = found[:MOST_LAYERS] if isinstance(found, list) else []
    whole = (one for one in known if isinstance(one, list) and [type(part) for part in one] == [str, int, int])
    return [(name, start, stop) for name, start, stop in whole]


def record_observation(
    parts: Parts,
    folder: Folder,
    round: int,
    cohort: Sequence[Client],
    told: Sequence[dict[str, Any]],
    info: dict[str, Any],
) -> None:
    """Writes down what was seen of the canaries in a round, where there are some; it is taken out of `told` and `info`."""
    canaries = getattr(parts.algorithm, "canaries", None)
    if not isinstance(canaries, Canaries):
        return
    file = file_of(folder.path, round)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    store.write(file, packed(gathered(canaries, cohort, told, info)))
