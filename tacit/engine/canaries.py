"""Canaries: planted by coins that are committed to before the first round, and what was seen of them, a file a round.
They are drawn by the same sampler and covered by the same noise as the units of a run, at the same price."""

import io
import json
import re
import secrets
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import store
from tacit.algorithms import Algorithm, Collecting
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto import keys
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.engine.run_folder import Folder
from tacit.engine.wrap import wrap
from tacit.errors import BadData, BadInput, KeyRefused
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.mechanism import CohortMechanism, NoiseState, TrainingMechanism
from tacit.random import Derive, Stream, keyed
from tacit.training.clipping import Trained, Workspace
from tacit.training.flat import blocks
from tacit.training.sgd import DpSgd, NoisedUpdate
from tacit.types import Bounded, Client, Message, Private, Raw, State
from tacit.wire import digest_of

OBSERVED = "canaries"  # the key of what the researcher is told of them, by a client's training or a server's round
KNOWN = 4096  # clients whose canaries are held
LOUD = 10.0  # clips: how long a canary client's update is before it is clipped


@dataclass(frozen=True)
class Canaries:
    """`count` canaries of `clients` clients in a model of `size` parameters. All else follows from the key.
    Each has a coordinate of its own in the vector that its client releases or, where these are summed (`shared`), in the sum.

    >>> canaries = Canaries(b"secret", count=5, clients=2, size=10)
    >>> canaries.of(0), canaries.of(1), len(set(canaries.places(0).tolist()))
    (range(0, 3), range(3, 5), 3)
    """

    key: bytes
    count: int
    clients: int
    size: int
    shared: bool = False
    only: int | None = None  # whose all of them are, where a site audits itself

    @cached_property
    def commitment(self) -> str:
        """A hash of the key and of all coins: whoever has it can check them later, and learns nothing before."""
        sizes = repr((self.count, self.clients, self.size, self.shared, self.only))
        return digest_of("canaries", self.key, sizes, *(np.packbits(self.coins(k)).tobytes() for k in self.owners))

    @property
    def most(self) -> int:
        """How many would fit."""
        return self.size if self.only is not None else most_canaries(self.size, self.clients, shared=self.shared)

    @property
    def owners(self) -> Sequence[int]:
        """The clients who have some."""
        return range(min(self.clients, self.count)) if self.only is None else (self.only,)

    def of(self, client: int) -> range:
        """The numbers of a client's canaries: as even as can be."""
        if self.only is not None:
            return range(self.count if client == self.only else 0)
        each, more = divmod(self.count, self.clients)
        first = client * each + min(client, more)
        return range(first, first + each + (client < more))

    @lru_cache(maxsize=KNOWN)  # noqa: B019 - there is one of them in a run
    def places(self, client: int) -> np.ndarray:
        """The coordinate of each of a client's canaries."""
        mine = self.of(client)
        if self.shared:
            return self._order[mine.start : mine.stop]
        return keyed(self.key)("places", client).generator().permutation(self.size)[: len(mine)]

    @lru_cache(maxsize=KNOWN)  # noqa: B019
    def coins(self, client: int) -> np.ndarray:
        """Which of them take part: a fair coin each, the same in every round."""
        return (keyed(self.key)("coins", client).words(len(self.of(client))) & 1).astype(bool)

    @cached_property
    def _order(self) -> np.ndarray:
        return keyed(self.key)("places").generator().permutation(self.size)


def everywhere(canaries: Canaries) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates and coins of all canaries, in their order."""
    places, coins = ([part(k) for k in canaries.owners] for part in (canaries.places, canaries.coins))
    return np.concatenate(places), np.concatenate(coins)


def sizes_of(parts: Parts) -> tuple[int, int, int, bool]:
    """What `Canaries` are made of beside their key. Raises: BadInput for more than there are coordinates."""
    count, size, everybody = parts.experiment.audit.canaries or 0, parts.params.numel(), len(parts.population)
    shared = parts.plan.traits.summed
    refuse_more(count, everybody, size, shared=shared)
    return count, everybody, size, shared


def most_canaries(size: int, everybody: int, *, shared: bool) -> int:
    """How many fit: each needs a coordinate of its own, in the sum over clients where they are summed.

    >>> most_canaries(18, 3, shared=False), most_canaries(18, 3, shared=True)
    (54, 18)
    """
    return size if shared else size * everybody


def refuse_more(count: int, everybody: int, size: int, *, shared: bool) -> None:
    """Raises BadInput for more canaries than there are coordinates, with the number that fits."""
    most = most_canaries(size, everybody, shared=shared)
    if count > most:
        where = "the sum over clients has" if shared else f"the updates of {everybody} clients have together"
        raise BadInput(
            f"Expected audit.canaries <= {most}, got {count}: each needs a coordinate of its own, and {where} so many."
        )


# Mechanisms with canaries among the units.


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
        return PlantedCohort(self.own.at(clip), self.places, self.coins, self.told)

    def bound_rows(self, updates: torch.Tensor) -> torch.Tensor:
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


# Each kind of privacy with canaries: what plants them, and who sees them.


def with_canaries(parts: Parts, canaries: Canaries) -> Algorithm:
    """The algorithm of a run with its canaries. Raises BadInput where nobody knows how to plant them."""
    algorithm: Any = parts.algorithm
    plant = PLANTS.get((type(algorithm), type(getattr(algorithm, "local", None)) is DpSgd))
    if plant is None:
        raise BadInput("Canaries are planted into Tacit's own training: leave out [audit].")
    return wrap(plant(algorithm, canaries), facts={"canaries": canaries})


def _records(algorithm: LocalDP, canaries: Canaries) -> LocalDP:
    """Canary records at every client: seen by whoever sees its update and knows its records."""
    begun, plain, local = dict[int, PlantedTraining](), algorithm.mechanism, algorithm.local

    def mechanism(client: Client) -> PlantedTraining:
        k = client.index
        begun[k] = PlantedTraining(plain(client), canaries.places(k), canaries.coins(k))
        return begun[k]

    def release(own: Callable[..., Message], trained: Trained, client: Client, received: Message) -> Message:
        message, mechanism = own(trained, client, received), begun.pop(client.index)
        scale = local.learning_rate / (mechanism.sampling_rate * client.size)  # pyright: ignore[reportFunctionMemberAccess] - it is DpSgd
        if trained.update.vector.any():  # zeros stand for an update that left float32: nothing is to be seen in them
            trained.info[OBSERVED] = mechanism.seen(trained.update.vector, scale=scale)  # type: ignore[assignment]
        return message

    def cost(_: Callable[..., DpEvent], client: Client) -> DpEvent:
        return plain(client).event()

    return wrap(replace(algorithm, mechanism=mechanism), release=release, cost=cost)


def _clients(algorithm: LocalDP, canaries: Canaries) -> LocalDP:
    """Beside every client stand canary clients, who clip and noise what they have, or nothing. Whoever sees their updates sees all
    there is to see: they are not combined with the others', which would be post-processing."""

    def train(
        own: Callable[..., Trained], work: Workspace, received: Message, client: Client, derive: Derive
    ) -> Trained:
        trained = own(work, received, client, derive)
        theta, mechanism = received.tensors["params"], algorithm.mechanism(client)
        places, coins = canaries.places(client.index), canaries.coins(client.index)
        seen = np.empty(len(places), dtype=np.float32)
        for j, (place, takes_part) in enumerate(zip(places.tolist(), coins.tolist(), strict=True)):
            update = torch.zeros_like(theta)
            update[place] = LOUD * mechanism.clip * takes_part
            local = NoisedUpdate(lambda *_, update=update: Trained(Raw(update)))
            noised = local(work, theta, client, mechanism, stream=derive(f"canary {j}")).update.vector
            seen[j] = float(noised[place]) / mechanism.clip
        trained.info[OBSERVED] = {"seen": seen, "drawn": coins}  # type: ignore[assignment]
        return trained

    return wrap(algorithm, train=train)


def _central(algorithm: CentralDP, canaries: Canaries) -> CentralDP:
    """Canary clients: seen by whoever sees the noised sums, and knows what the other clients sent."""

    def collect(own: Callable[..., Any], state: State, *, round: int) -> Collecting:
        begun, seen = own(state, round=round), dict[str, Any]()
        mechanism = PlantedCohort(begun.mechanism, *everywhere(canaries), seen.update)
        return wrap(replace(begun, mechanism=mechanism), finish=_telling(seen))

    return wrap(algorithm, collect=collect)


def _distributed(algorithm: Encrypted, canaries: Canaries) -> Encrypted:
    """Canary clients: each sends its clipped integers, without any noise, in the report of a client. Seen by whoever sees opened
    sums, and knows what the clients would have sent without noise.
    Guarantee: client and canaries together end where a client's own integers end, before any noise: no share of the noise is ever
    cut by a canary, and whatever the canaries are, a client moves a sum by no more than without them."""
    everything, grid = everywhere(canaries), algorithm.grid

    def quantised(
        own: Callable[..., Any], work: Workspace, received: Message, client: Client, derive: Derive
    ) -> tuple[Quantised, dict[str, Any]]:
        (mine, info), round, k = own(work, received, client, derive), received.facts["turn"], client.index
        values = mine.values.copy()
        for j, place in enumerate(canaries.places(k)[canaries.coins(k)].tolist()):
            update = np.zeros(grid.size)
            update[place] = LOUD * grid.clip
            values += grid.quantise(update, stream=derive(f"canary {j}"), round=round).values
        real = grid.dequantise(mine.values, round=round)
        both = replace(mine, values=np.clip(values, -mine.largest, mine.largest))
        return both, info | {OBSERVED: {"real": real[everything[0]]}}

    def collect(own: Callable[..., Any], state: State, *, round: int) -> Collecting:
        begun, seen = own(state, round=round), dict[str, Any]()

        def means(own: Callable[..., list[Message]]) -> list[Message]:
            opened, (places, coins) = own(), everything
            for message in opened:
                group, reports = begun.collected[message.sender]
                weight = sum(group.weights[name] for name in reports.clients)
                total = message.tensors["update"].double().numpy()[places] * weight
                seen[message.sender] = {"total": total, "clients": tuple(reports.clients)}
            if opened:
                seen[""] = {"coins": coins, "unit": grid.sensitivity}
            return opened

        return wrap(begun, means=means, finish=_telling(seen))

    return wrap(algorithm, quantised=quantised, collect=collect)


def _telling(seen: dict[str, Any]) -> Callable[..., tuple[State, dict[str, Any]]]:
    def finish(own: Callable[..., Any], derive: Derive) -> tuple[State, dict[str, Any]]:
        state, info = own(derive)
        return state, info | {OBSERVED: seen}

    return finish


PLANTS: dict[tuple[type, bool], Callable[..., Any]] = {
    (LocalDP, True): _records,
    (LocalDP, False): _clients,
    (CentralDP, False): _central,
    (Encrypted, False): _distributed,
}

# The coins of a run: in a file of its folder, committed to in run.json.

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
        server_key = parts.releases.server_key
        key = bytes.fromhex(digest_of("canaries", server_key)) if seeded else secrets.token_bytes(KEY_BYTES)
        canaries = Canaries(key, *sizes)
        layers = [(block.name, block.start, block.stop) for block in blocks(parts.model)]
        secret = {"key": key.hex(), "layers": layers}
        keys.write(folder.path / SECRET, secret, mode=keys.SECRET, force=True)
        folder.write(file.name, json.dumps(known | {COMMITMENT: canaries.commitment}).encode())
    return replace(parts, algorithm=with_canaries(parts, canaries))


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


# What was seen of the canaries in a round: from what clients and the server tell the researcher to one file a round.

FOLDER = "canaries"
Observation = dict[str, np.ndarray]
COLUMNS = {"numbers": np.int64, "seen": np.float32, "drawn": np.int32}  # of a file
MOST_HEADER = 1024  # bytes of an array beside its numbers
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def file_of(folder: Path, round: int) -> Path:
    """Where the observation of a round lies in a run's folder."""
    return folder / FOLDER / f"round-{round:05}.npz"


def record_observation(
    canaries: Canaries,
    folder: Path,
    round: int,
    cohort: Sequence[Client],
    told: Sequence[dict[str, Any]],
    info: dict[str, Any],
) -> None:
    """Writes down what was seen of the canaries in a round; it is taken out of `told` and `info`."""
    file = file_of(folder, round)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    store.write(file, packed(gathered(canaries, cohort, told, info)))


def gathered(
    canaries: Canaries, cohort: Sequence[Client], told: Sequence[dict[str, Any]], info: dict[str, Any]
) -> Observation:
    """The observation of a round; what was told of it is taken out of `told` and `info`."""
    own = [one.pop(OBSERVED, None) for one in told]
    sums = info.pop(OBSERVED, None) or {}
    if not canaries.shared:
        mine = [(client.index, one) for client, one in zip(cohort, own, strict=False) if one]
        return _joined([(np.array(canaries.of(k)), one["seen"], one["drawn"]) for k, one in mine])
    if "seen" in sums:
        return _joined([(np.arange(canaries.count), sums["seen"], sums["drawn"])])
    common, places, found = sums.get("", {}), {client.id: k for k, client in enumerate(cohort)}, []
    for one in (one for name, one in sums.items() if name):
        members = [cohort[places[name]] for name in one["clients"]]
        known = sum(own[places[client.id]]["real"] for client in members)
        numbers = np.concatenate([np.array(canaries.of(client.index), dtype=int) for client in members])
        found.append((numbers, (one["total"] - known)[numbers] / common["unit"], common["coins"][numbers]))
    return _joined(found)


def _joined(parts: Sequence[tuple[np.ndarray, ...]]) -> Observation:
    columns = zip(*parts, strict=True) if parts else [[np.empty(0)]] * len(COLUMNS)
    pairs = zip(COLUMNS.items(), columns, strict=True)
    return {name: np.concatenate(column).astype(kind) for (name, kind), column in pairs}


def packed(observation: Observation) -> bytes:
    """The bytes of a round's file."""
    raw = io.BytesIO()
    np.savez(raw, **observation)  # type: ignore[arg-type]
    return raw.getvalue()


def read_observations(folder: Path, rounds: Sequence[int], coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What was seen and how often each canary was drawn, (round, canary); NaN where it could not be seen. Raises BadData.
    Guarantee: no file takes more memory than a round of so many canaries has, and what is returned could be a run's."""
    count = len(coins)
    seen = np.full((len(rounds), count), np.nan, dtype=np.float32)
    drawn = np.zeros((len(rounds), count), dtype=np.int32)
    for place, r in enumerate(rounds):
        file = file_of(folder, r)
        try:
            numbers, values, times = _unpacked(file, coins)
        except FileNotFoundError:
            raise BadData(f"{file} is missing: what was seen of the canaries in round {r + 1} is not known.") from None
        except DAMAGE as error:
            raise BadData(f"{file} is damaged ({type(error).__name__}): restore it.") from None
        seen[place, numbers], drawn[place, numbers] = values, times
    return seen, drawn


def _unpacked(file: Path, coins: np.ndarray) -> list[np.ndarray]:
    most, found = 8 * len(coins) + MOST_HEADER, []
    if file.stat().st_size > len(COLUMNS) * (most + MOST_HEADER):
        raise ValueError("it is longer than a round is")
    with zipfile.ZipFile(file) as packed:
        for name, kind in COLUMNS.items():
            with packed.open(f"{name}.npy") as stream:
                raw = stream.read(most + 1)
            if len(raw) > most:
                raise ValueError("it holds more than a round does")
            found.append(_array(raw, kind, most=len(coins)))
    numbers, values, times = found
    if not len(numbers) == len(values) == len(times) == len(np.unique(numbers)):
        raise ValueError("its columns do not fit together")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(coins):
        raise ValueError("there are no such canaries")
    if not np.isfinite(values).all() or (times < 0).any() or times[~coins[numbers]].any():
        raise ValueError("no run sees that")
    return found


def _array(raw: bytes, kind: type, *, most: int) -> np.ndarray:
    stream = io.BytesIO(raw)
    np.lib.format.read_magic(stream)
    shape, _, stored = np.lib.format.read_array_header_1_0(stream)
    if stored != np.dtype(kind) or len(shape) != 1 or not 0 <= shape[0] <= most:
        raise ValueError("it is another kind of array")
    return np.frombuffer(raw, dtype=kind, count=shape[0], offset=stream.tell())
