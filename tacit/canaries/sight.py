"""What was seen of the canaries in a round: from what clients and the server tell the researcher to one file a round.

A file holds, for the canaries that could be seen, their numbers, what was released at their coordinates beyond what the other units
came to (`seen`, in clips), and how often each was drawn.
"""

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.canaries.plan import SIGHT, Canaries
from tacit.errors import BadData
from tacit.types import Client

FOLDER = "canaries"
Sight = dict[str, np.ndarray]
KINDS = {"numbers": np.int64, "seen": np.float32, "drawn": np.int32}  # the columns of a file
MOST_HEADER = 1024  # bytes of an array beside its numbers
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def gathered(
    canaries: Canaries, cohort: Sequence[Client], told: Sequence[dict[str, Any]], info: dict[str, Any]
) -> Sight:
    """The sight of a round; what was told of it is taken out of `told` and `info`."""
    own = [one.pop(SIGHT, None) for one in told]
    sums = info.pop(SIGHT, None)
    if not canaries.shared:
        mine = [(client.index, one) for client, one in zip(cohort, own, strict=False) if one]
        return _joined([(np.array(canaries.of(k)), one["seen"], one["drawn"]) for k, one in mine])
    if sums and "seen" in sums:
        return _joined([(np.arange(canaries.count), sums["seen"], sums["drawn"])])
    return _joined(list(_of_groups(canaries, cohort, own, dict(sums or {}))))


def _of_groups(
    canaries: Canaries, cohort: Sequence[Client], own: Sequence[Any], sums: dict[str, Any]
) -> list[tuple[np.ndarray, ...]]:
    """Of every group's opened sum: what is there beyond its clients' own integers."""
    common, places = sums.pop("", None), {client.id: k for k, client in enumerate(cohort)}
    found = []
    for one in sums.values():
        members = [cohort[places[name]] for name in one["clients"]]
        known = sum(own[places[client.id]]["real"] for client in members)
        numbers = np.concatenate([np.array(canaries.of(client.index), dtype=int) for client in members])
        seen = (one["total"] - known)[numbers] / common["unit"]
        found.append((numbers, seen, common["coins"][numbers]))
    return found


def _joined(parts: Sequence[tuple[np.ndarray, ...]]) -> Sight:
    columns = zip(*parts, strict=True) if parts else [[np.empty(0)]] * 3
    return {
        name: np.concatenate(column).astype(kind) for (name, kind), column in zip(KINDS.items(), columns, strict=True)
    }


def packed(sight: Sight) -> bytes:
    """The bytes of a round's file."""
    raw = io.BytesIO()
    np.savez(raw, **sight)  # type: ignore[arg-type]
    return raw.getvalue()


def file_of(folder: Path, round: int) -> Path:
    """Where the sight of a round lies in a run's folder."""
    return folder / FOLDER / f"round-{round:05}.npz"


def read_sight(folder: Path, rounds: Sequence[int], coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What was seen, and how often each canary was drawn, (round, canary); NaN where a canary could not be seen.

    Guarantee: no file takes more memory than a round of so many canaries has, and what is returned could be a run's.

    Raises: BadData for a file that is missing, or that is not what a run writes.
    """
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
    """Numbers, what was seen and draws, of one round's file. Raises one of DAMAGE."""
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
    """One row of numbers of this kind, whose bytes are all there. Raises ValueError."""
    stream = io.BytesIO(raw)
    np.lib.format.read_magic(stream)
    shape, _, stored = np.lib.format.read_array_header_1_0(stream)
    if stored != np.dtype(kind) or len(shape) != 1 or not 0 <= shape[0] <= most:
        raise ValueError("it is another kind of array")
    return np.frombuffer(raw, dtype=kind, count=shape[0], offset=stream.tell())
