"""Who has which canaries, where each is, and which of them take part."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tacit.engine.assemble import Parts
from tacit.errors import BadData, BadInput
from tacit.random import keyed
from tacit.types import Client
from tacit.wire import digest_of

OBSERVED = "canaries"  # the key of what the researcher is told of them, by a client's training or a server's round
KNOWN = 4096  # clients whose canaries are held


@dataclass(frozen=True)
class Canaries:
    """`count` canaries of `clients` clients in a model of `size` parameters. All else follows from the key.
    Each is a coordinate of its own: in the vector that its client releases, or, where the clients' are summed (`shared`), in the
    sum.

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


def sizes_of(parts: Parts) -> tuple[int, int, int, bool]:
    """What `Canaries` are made of beside their key.
    Raises: BadInput for more than there are coordinates, with the number that fits."""
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


# What was seen of the canaries in a round: from what clients and the server tell the researcher to one file a round.

FOLDER = "canaries"
Observation = dict[str, np.ndarray]
KINDS = {"numbers": np.int64, "seen": np.float32, "drawn": np.int32}  # the columns of a file
MOST_HEADER = 1024  # bytes of an array beside its numbers
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def gathered(
    canaries: Canaries, cohort: Sequence[Client], told: Sequence[dict[str, Any]], info: dict[str, Any]
) -> Observation:
    """The observation of a round; what was told of it is taken out of `told` and `info`."""
    own = [one.pop(OBSERVED, None) for one in told]
    sums = info.pop(OBSERVED, None)
    if not canaries.shared:
        mine = [(client.index, one) for client, one in zip(cohort, own, strict=False) if one]
        return _joined([(np.array(canaries.of(k)), one["seen"], one["drawn"]) for k, one in mine])
    if sums and "seen" in sums:
        return _joined([(np.arange(canaries.count), sums["seen"], sums["drawn"])])
    return _joined(list(_of_groups(canaries, cohort, own, dict(sums or {}))))


def _of_groups(
    canaries: Canaries, cohort: Sequence[Client], own: Sequence[Any], sums: dict[str, Any]
) -> list[tuple[np.ndarray, ...]]:
    common, places = sums.pop("", None), {client.id: k for k, client in enumerate(cohort)}
    found = []
    for one in sums.values():
        members = [cohort[places[name]] for name in one["clients"]]
        known = sum(own[places[client.id]]["real"] for client in members)
        numbers = np.concatenate([np.array(canaries.of(client.index), dtype=int) for client in members])
        seen = (one["total"] - known)[numbers] / common["unit"]
        found.append((numbers, seen, common["coins"][numbers]))
    return found


def _joined(parts: Sequence[tuple[np.ndarray, ...]]) -> Observation:
    columns = zip(*parts, strict=True) if parts else [[np.empty(0)]] * 3
    return {
        name: np.concatenate(column).astype(kind) for (name, kind), column in zip(KINDS.items(), columns, strict=True)
    }


def packed(observation: Observation) -> bytes:
    """The bytes of a round's file."""
    raw = io.BytesIO()
    np.savez(raw, **observation)  # type: ignore[arg-type]
    return raw.getvalue()


def file_of(folder: Path, round: int) -> Path:
    """Where the observation of a round lies in a run's folder."""
    return folder / FOLDER / f"round-{round:05}.npz"


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
    if file.stat().st_size > len(KINDS) * (most + MOST_HEADER):
        raise ValueError("it is longer than a round is")
    with zipfile.ZipFile(file) as packed:
        for name, kind in KINDS.items():
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
