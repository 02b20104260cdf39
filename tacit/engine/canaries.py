"""Canaries: units that nobody owns, among the units of a run. Each one's coin, committed to before the first round, says whether
it takes part; what was seen of them is in one file a round. They are drawn by the units' sampler and covered by their noise, at
the same price."""

import copy
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import store
from tacit.algorithms import Algorithm, Collecting
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.record_sums import RecordSums, SecretRecordSums
from tacit.crypto import keys
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.engine.run_folder import Folder
from tacit.errors import BadData, BadInput, KeyRefused
from tacit.privacy.mechanism import CohortMechanism, NoiseState, TrainingMechanism
from tacit.privacy.samplers import Poisson
from tacit.random import Derive, Stream, keyed
from tacit.training.flat import blocks
from tacit.training.sgd import DpSgd, NoisedUpdate, Trained, Workspace
from tacit.types import Bounded, Client, Message, Private, Raw, State
from tacit.wire import digest_of

OBSERVED = "canaries"  # the key of what is seen of them, in the metrics of a client's training and of a server's round
CACHED = 4096  # clients whose canaries are held
LOUD = 10.0  # clips: how long a canary client's update is before it is clipped
SECRET, COMMITMENT = "canaries.json", "canaries"  # the file of the key; the key, in run.json, of the hash
KEY_BYTES = 16
MOST_LAYERS = 1000  # of a model, that are told apart
FOLDER = "canaries"  # of a run's observations
ROW = np.dtype([("number", "<i8"), ("seen", "<f4"), ("drawn", "<i4")])  # a canary in the file of a round

Part = TypeVar("Part")


def wrap(part: Part, *, facts: dict[str, Any] | None = None, **hooks: Callable[..., Any]) -> Part:
    """The part with a hook at each of these methods (of an algorithm `train`, `release`, `collect`), and with these attributes.
    Guarantee: all else is the part's own, its price and its mechanism too, and the part itself is left as it was.

    >>> from tacit.training.optimizer import Sgd
    >>> louder = wrap(Sgd(), init=lambda own, params: own(params) | {"heard": params})
    >>> louder.init(1), Sgd().init(1), isinstance(louder, Sgd)
    ({'heard': 1}, {}, True)
    """

    def hooked(step: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *given, **named: hook(step.__get__(self), *given, **named)

    kind, made = type(part), copy.copy(part)
    methods = {name: hooked(getattr(kind, name), hook) for name, hook in hooks.items()}
    object.__setattr__(made, "__class__", type(kind.__name__, (kind,), {**methods, **(facts or {})}))
    return made


@dataclass(frozen=True)
class Canaries:
    """`count` canaries of `clients` clients in a model of `size` parameters. All else follows from the key.
    Each has a coordinate of its own in the vector that its client releases or, where these are summed (`shared`), in the sum.
    Raises: BadInput for more than there are coordinates.

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

    def __post_init__(self) -> None:
        if self.count > self.most:
            where = "the sum over clients has" if self.shared else f"the updates of {self.clients} clients have"
            why = f"each needs a coordinate of its own, and {where} so many"
            raise BadInput(f"Expected audit.canaries <= {self.most}, got {self.count}: {why}.")

    @cached_property
    def commitment(self) -> str:
        """A hash of the key and of all coins: whoever has it can check them later, and learns nothing before."""
        sizes = repr((self.count, self.clients, self.size, self.shared, self.only))
        return digest_of("canaries", self.key, sizes, *(np.packbits(self.coins(k)).tobytes() for k in self.owners))

    @property
    def most(self) -> int:
        """How many would fit."""
        return self.size if self.shared or self.only is not None else self.size * self.clients

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

    @lru_cache(maxsize=CACHED)  # noqa: B019 - there is one of them in a run
    def places(self, client: int) -> np.ndarray:
        """The coordinate of each of a client's canaries."""
        mine = self.of(client)
        if self.shared:
            return self._order[mine.start : mine.stop]
        return keyed(self.key)("places", client).generator().permutation(self.size)[: len(mine)]

    @lru_cache(maxsize=CACHED)  # noqa: B019
    def coins(self, client: int) -> np.ndarray:
        """Which of them take part: a fair coin each, the same in every round."""
        return (keyed(self.key)("coins", client).words(len(self.of(client))) & 1).astype(bool)

    @cached_property
    def everywhere(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates and coins of all canaries, in their order."""
        places, coins = ([part(k) for k in self.owners] for part in (self.places, self.coins))
        return np.concatenate(places), np.concatenate(coins)

    @cached_property
    def _order(self) -> np.ndarray:
        return keyed(self.key)("places").generator().permutation(self.size)


def canaries_of(parts: Parts, key: bytes = b"") -> Canaries:
    """The canaries that an experiment asks for. Raises: BadInput for more than fit."""
    count, shared = parts.experiment.audit.canaries or 0, parts.plan.traits.summed
    return Canaries(key, count, len(parts.population), parts.params.numel(), shared)


# Mechanisms with canaries among the units.


class CanaryRecords:
    """Canaries in one client's round of DP-SGD: records whose clipped gradient is C along a coordinate of their own.
    Guarantee: `mechanism` has that of `own`, at its price. What it adds to a sum is a function of coins, of draws and of nobody's
    rows. A canary that takes part is drawn by the very call that draws the client's records, behind them."""

    def __init__(self, own: TrainingMechanism, places: np.ndarray, coins: np.ndarray):
        self.places, self.taking = torch.from_numpy(places), np.flatnonzero(coins)
        self.real = np.zeros(len(places))  # what the records themselves came to, at the canaries' coordinates
        self.drawn = np.zeros(len(places), dtype=np.int32)
        self._now = self.taking[:0]
        self.mechanism = wrap(own, sample=self._sample, noise=self._noise)

    def _sample(
        self, own: Callable[..., Any], state: NoiseState, stream: Stream, size: int
    ) -> tuple[NoiseState, np.ndarray]:
        state, drawn = own(state, stream, size + len(self.taking))
        self._now = self.taking[drawn[drawn >= size] - size]
        return state, drawn[drawn < size]

    def _noise(
        self, own: Callable[..., Any], state: NoiseState, stream: Stream, bounded: Bounded
    ) -> tuple[NoiseState, Private]:
        self.real += bounded.vector[self.places.to(bounded.vector.device)].double().cpu().numpy()
        return own(state, stream, self.among(bounded, clip=self.mechanism.clip))

    def among(self, bounded: Bounded, *, clip: float) -> Bounded:
        """The records' sum with the canaries that were drawn beside them."""
        vector, places = bounded.vector, self.places.to(bounded.vector.device)
        self.drawn[self._now] += 1
        hit = places[torch.from_numpy(self._now).to(places.device)]
        return Bounded(vector.index_add(0, hit, vector.new_full((len(hit),), clip)), bounded.sensitivity)

    def seen(self, update: torch.Tensor, *, scale: float) -> dict[str, np.ndarray]:
        """What somebody who knows the records, and has the update, sees at the canaries' coordinates, in clips."""
        found = -update[self.places.to(update.device)].double().cpu().numpy() / scale - self.real
        return {"seen": (found / self.mechanism.clip).astype(np.float32), "drawn": self.drawn}


def with_canary_clients(
    own: CohortMechanism, places: np.ndarray, coins: np.ndarray, seen: dict[str, Any]
) -> CohortMechanism:
    """A server's round with canary clients: drawn by the cohort's sampler, clipped like everybody, noised with the sum.
    Guarantee: that of `own`, at its price. `seen` takes what somebody who knows the clients' sum sees of the canaries."""

    def noise(
        noised_by: Callable[..., Any], state: NoiseState, stream: Stream, bounded: Bounded
    ) -> tuple[NoiseState, Private]:
        taking = np.flatnonzero(coins)
        drawn = taking[_drawn(own, stream, len(taking))]
        total = bounded.vector.clone()
        for place in places[drawn].tolist():
            update = torch.zeros_like(total, dtype=torch.float32)  # as a client's, so that the sum stays exact
            update[place] = LOUD * own.clip
            total += own.bound(update).vector
        state, noised = noised_by(state, stream, Bounded(total, bounded.sensitivity))
        at = torch.from_numpy(places).to(total.device)
        found = (noised.vector[at].double() - bounded.vector[at].double()).cpu().numpy() / own.sensitivity
        seen.update(seen=found.astype(np.float32), drawn=np.isin(np.arange(len(places)), drawn))
        return state, noised

    return wrap(own, noise=noise)


def _drawn(own: CohortMechanism, stream: Stream, count: int) -> np.ndarray:
    if type(own.cohorts) is not Poisson:
        raise BadInput("Canary clients are drawn by Tacit's own cohorts: leave out [audit].")
    times = max(1, -(-count // own.cohorts.population))
    drawn = Poisson(times * own.cohorts.population, times * own.cohorts.cohort).draw(stream, 0)
    return drawn[drawn < count]


# Each kind of privacy with canaries: where they enter, and who sees them.


def with_canaries(parts: Parts, canaries: Canaries) -> Parts:
    """The parts of a run with its canaries. Raises: BadInput for an algorithm that is not Tacit's own."""
    algorithm: Any = parts.algorithm
    enter = KINDS.get((type(algorithm), type(getattr(algorithm, "local", None)) is DpSgd))
    if enter is None:
        raise BadInput("Canaries enter Tacit's own training: leave out [audit].")
    changed: Algorithm = wrap(enter(algorithm, canaries), facts={"canaries": canaries})
    return replace(parts, algorithm=changed)


def _records(algorithm: LocalDP, canaries: Canaries) -> LocalDP:
    """Canary records at every client: seen by whoever sees its update and knows its records."""
    begun, plain, local = dict[int, CanaryRecords](), algorithm.mechanism, algorithm.local

    def mechanism(client: Client) -> TrainingMechanism:
        k = client.index
        begun[k] = CanaryRecords(plain(client), canaries.places(k), canaries.coins(k))
        return begun[k].mechanism

    def release(own: Callable[..., Message], trained: Trained, client: Client, received: Message) -> Message:
        message, records = own(trained, client, received), begun.pop(client.index)
        scale = local.learning_rate / (records.mechanism.sampling_rate * client.size)  # pyright: ignore[reportFunctionMemberAccess] - it is DpSgd
        if trained.update.vector.any():  # zeros stand for an update that left float32: nothing is to be seen in them
            trained.info[OBSERVED] = records.seen(trained.update.vector, scale=scale)  # type: ignore[assignment]
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
        mechanism = with_canary_clients(begun.mechanism, *canaries.everywhere, seen)
        return wrap(replace(begun, mechanism=mechanism), finish=_reporting(seen))

    return wrap(algorithm, collect=collect)


def _distributed(algorithm: Encrypted, canaries: Canaries) -> Encrypted:
    """Canary clients: each sends its clipped integers, without any noise, in the report of a client. Seen by whoever sees opened
    sums, and knows what the clients would have sent without noise.
    Guarantee: client and canaries together end where a client's own integers end, before any noise: no share of the noise is ever
    cut by a canary, and whatever the canaries are, a client moves a sum by no more than without them."""
    (all_places, _), grid = canaries.everywhere, algorithm.grid

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
        return both, info | {OBSERVED: {"real": real[all_places], "drawn": canaries.coins(k)}}

    return wrap(algorithm, quantised=quantised, collect=_opening(all_places, grid.sensitivity))


def _opening(places: np.ndarray, unit: float, *, factor: float = 1.0) -> Callable[..., Collecting]:
    """What an opened sum, times `factor`, shows at the canaries' coordinates; `unit` is what one of them adds to a sum."""

    def collect(own: Callable[..., Any], state: State, *, round: int) -> Collecting:
        begun, seen = own(state, round=round), dict[str, Any]()

        def means(own: Callable[..., list[Message]]) -> list[Message]:
            opened = own()
            for message in opened:
                group, reports = begun.collected[message.sender]
                weight = sum(group.weights[name] for name in reports.clients)
                total = message.tensors["update"].double().numpy()[places] * weight / factor
                seen[message.sender] = {"total": total, "clients": tuple(reports.clients), "unit": unit}
            return opened

        return wrap(begun, means=means, finish=_reporting(seen))

    return collect


def _sums(algorithm: RecordSums | SecretRecordSums, canaries: Canaries) -> RecordSums | SecretRecordSums:
    """Canary records at every client, drawn by its own sampler at its own rate, in the sum that it sends. Seen by whoever sees the
    noised or opened sums, and knows what all records came to.
    Guarantee: a canary's coordinate is its own in the sum of all clients, so that there it adds C and another one adds nothing."""
    begun, plain, places = dict[int, CanaryRecords](), algorithm.mechanism, canaries.everywhere[0]
    clip = algorithm.noise.clip if isinstance(algorithm, RecordSums) else algorithm.grid.clip

    def mechanism(client: Client) -> Any:
        k = client.index
        begun[k] = CanaryRecords(plain(client), canaries.places(k), canaries.coins(k))
        return begun[k].mechanism

    def summed(
        own: Callable[..., Trained], work: Workspace, received: Message, client: Client, derive: Derive
    ) -> Trained:
        trained: Any = own(work, received, client, derive)
        records = begun.pop(client.index)
        real = trained.update.vector.double().cpu().numpy()[places]
        among = records.among(trained.update, clip=clip)
        return Trained(among, trained.info | {OBSERVED: {"real": real, "drawn": records.drawn}})

    hooks: dict[str, Any] = {"summed": summed, "cost": lambda _, client: plain(client).event()}
    if isinstance(algorithm, SecretRecordSums):
        opening = _opening(places, clip, factor=algorithm.grid.factor)  # pyright: ignore[reportAttributeAccessIssue] - it is a SumGrid
        return wrap(
            replace(algorithm, mechanism=mechanism), **hooks, share=lambda _, client: plain(client), collect=opening
        )
    room = replace(algorithm.noise, records=algorithm.noise.records + canaries.count)  # no honest sum is scaled down

    def collect(own: Callable[..., Any], state: State, *, round: int) -> Collecting:
        begun, seen = own(state, round=round), dict[str, Any]()

        def noise(noised_by: Callable[..., Any], *given: Any) -> tuple[NoiseState, Private]:
            state, noised = noised_by(*given)
            total = noised.vector.double().cpu().numpy()[places]
            if begun.within:
                seen["all"] = {"total": total, "clients": tuple(begun.within), "unit": clip}
            return state, noised

        watched = replace(begun.algorithm, noise=wrap(begun.algorithm.noise, noise=noise))
        return wrap(replace(begun, algorithm=watched), finish=_reporting(seen))

    return wrap(replace(algorithm, mechanism=mechanism, noise=room), **hooks, collect=collect)


def _reporting(seen: dict[str, Any]) -> Callable[..., tuple[State, dict[str, Any]]]:
    def finish(own: Callable[..., Any], derive: Derive) -> tuple[State, dict[str, Any]]:
        state, info = own(derive)
        return state, info | {OBSERVED: seen}

    return finish


KINDS: dict[tuple[type, bool], Callable[..., Any]] = {
    (LocalDP, True): _records,
    (LocalDP, False): _clients,
    (CentralDP, False): _central,
    (Encrypted, False): _distributed,
    (RecordSums, False): _sums,
    (SecretRecordSums, False): _sums,
}

# The coins of a run: in a file of its folder, committed to in run.json.


def insert_canaries(parts: Parts, folder: Folder) -> Parts:
    """The parts with the canaries that the experiment asks for. Raises BadInput for more than fit, BadData for other coins.
    Guarantee: a hash of all coins is on disk before the first round, and a run goes on with the coins it began with."""
    if parts.experiment.audit.canaries is None:
        return parts
    canaries, file = canaries_of(parts), folder.path / "run.json"
    record = json.loads(file.read_text("utf-8"))
    if COMMITMENT in record:
        return with_canaries(parts, opened(folder.path, canaries))
    seeded = parts.experiment.run.randomness == "seeded" and not parts.nonce
    server_key = parts.releases.server_key
    key = bytes.fromhex(digest_of("canaries", server_key)) if seeded else secrets.token_bytes(KEY_BYTES)
    canaries = replace(canaries, key=key)
    layers = [(block.name, block.start, block.stop) for block in blocks(parts.model)]
    keys.write(folder.path / SECRET, {"key": key.hex(), "layers": layers}, mode=keys.SECRET, force=True)
    folder.write(file.name, json.dumps(record | {COMMITMENT: canaries.commitment}).encode())
    return with_canaries(parts, canaries)


def opened(folder: Path, canaries: Canaries) -> Canaries:
    """The canaries of these sizes that a run was started with.
    Raises: BadData where their key cannot be read, or they are not those that were committed to."""
    committed = json.loads((folder / "run.json").read_text("utf-8")).get(COMMITMENT)
    try:
        key = keys.read(folder / SECRET, secret=True).get("key")
    except KeyRefused as error:
        raise BadData(
            f"{folder / SECRET} cannot be read ({str(error).rstrip('.')}): coins cannot be made again, put the file back."
        ) from None
    secret = str(key) if re.fullmatch(r"[0-9a-f]{32}", str(key)) else ""
    canaries = replace(canaries, key=bytes.fromhex(secret))
    if canaries.commitment != committed:
        raise BadData(
            f"The coins in {folder / SECRET} are not those that were committed to before round 1: put the file back as it was."
        )
    return canaries


def layers_of(folder: Path) -> list[tuple[str, int, int]]:
    """Where the layers of the audited model lie in its vector; none where the file does not say it."""
    layers = keys.read(folder / SECRET, secret=True).get("layers")
    some = layers[:MOST_LAYERS] if isinstance(layers, list) else []
    whole = (one for one in some if isinstance(one, list) and [type(part) for part in one] == [str, int, int])
    return [(name, start, stop) for name, start, stop in whole]


# What was seen of the canaries in a round: one file, a row for each canary that could be seen.


def file_of(folder: Path, round: int) -> Path:
    """Where the observation of a round lies in a run's folder."""
    return folder / FOLDER / f"round-{round:05}.rows"


def record_observation(
    canaries: Canaries,
    folder: Path,
    round: int,
    cohort: Sequence[Client],
    infos: Sequence[dict[str, Any]],
    info: dict[str, Any],
) -> None:
    """Writes down what was seen of the canaries in a round; it is taken out of the clients' `infos` and the server's `info`."""
    file = file_of(folder, round)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    store.write(file, observation(canaries, cohort, infos, info))


def observation(
    canaries: Canaries, cohort: Sequence[Client], infos: Sequence[dict[str, Any]], info: dict[str, Any]
) -> bytes:
    """The file of a round; what was seen is taken out of `infos` and `info`."""
    own, sums = [one.pop(OBSERVED, None) for one in infos], info.pop(OBSERVED, None) or {}
    seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    if not canaries.shared:
        mine = [(client.index, one) for client, one in zip(cohort, own, strict=False) if one]
        seen += [(np.array(canaries.of(k)), one["seen"], one["drawn"]) for k, one in mine]
    elif "seen" in sums:
        seen.append((np.arange(canaries.count), sums["seen"], sums["drawn"]))
    else:
        mine = {client.id: (client.index, one) for client, one in zip(cohort, own, strict=False) if one}
        for one in sums.values():
            members = [mine[name] for name in one["clients"]]
            real = sum(found["real"] for _, found in members)
            numbers = np.concatenate([np.array(canaries.of(k), dtype=int) for k, _ in members])
            drawn = np.concatenate([found["drawn"] for _, found in members])
            seen.append((numbers, (one["total"] - real)[numbers] / one["unit"], drawn))
    return b"".join(np.rec.fromarrays(columns, dtype=ROW).tobytes() for columns in seen)


def read_observations(folder: Path, rounds: Sequence[int], coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What was seen and how often each canary was drawn, (round, canary); NaN where it could not be seen. Raises BadData.
    Guarantee: no file takes more memory than a round of so many canaries has, and what is returned could be a run's."""
    seen = np.full((len(rounds), len(coins)), np.nan, dtype=np.float32)
    drawn = np.zeros((len(rounds), len(coins)), dtype=np.int32)
    for place, r in enumerate(rounds):
        file = file_of(folder, r)
        try:
            rows = _rows(file, coins)
        except FileNotFoundError:
            raise BadData(f"{file} is missing: what was seen of the canaries in round {r + 1} is not known.") from None
        except (OSError, ValueError) as error:
            raise BadData(f"{file} is damaged ({error}): restore it.") from None
        seen[place, rows["number"]], drawn[place, rows["number"]] = rows["seen"], rows["drawn"]
    return seen, drawn


def _rows(file: Path, coins: np.ndarray) -> np.ndarray:
    if file.stat().st_size > ROW.itemsize * len(coins):
        raise ValueError("it is longer than a round is")
    rows = np.frombuffer(file.read_bytes(), ROW)
    numbers, drawn = rows["number"], rows["drawn"]
    if len(np.unique(numbers)) < len(rows) or ((numbers < 0) | (numbers >= len(coins))).any():
        raise ValueError("there are no such canaries")
    if not np.isfinite(rows["seen"]).all() or (drawn < 0).any() or drawn[~coins[numbers]].any():
        raise ValueError("no run sees that")
    return rows
