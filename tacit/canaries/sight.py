"""What was seen of the canaries in a round: from what clients and the server tell the researcher to one file a round.

A file holds, for the canaries that could be seen, their numbers, what was released at their coordinates beyond what the other units
came to (`seen`, in clips), and how often each was drawn.
"""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.canaries.plan import SIGHT, Canaries
from tacit.errors import BadData
from tacit.types import Client

FOLDER = "canaries"
Sight = dict[str, np.ndarray]  # numbers, seen, drawn


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
    kinds = {"numbers": np.int64, "seen": np.float32, "drawn": np.int32}
    columns = zip(*parts, strict=True) if parts else [[np.empty(0)]] * 3
    return {
        name: np.concatenate(column).astype(kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)
    }


def packed(sight: Sight) -> bytes:
    """The bytes of a round's file."""
    raw = io.BytesIO()
    np.savez(raw, **sight)  # type: ignore[arg-type]
    return raw.getvalue()


def file_of(folder: Path, round: int) -> Path:
    """Where the sight of a round lies in a run's folder."""
    return folder / FOLDER / f"round-{round:05}.npz"


def read_sight(folder: Path, rounds: int, count: int, *, missing: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """What was seen, and how often each canary was drawn, (round, canary); NaN where a canary could not be seen.

    A file may be `missing` where a client is not in every round. Raises: BadData for a file that is not what a run writes.
    """
    seen = np.full((rounds, count), np.nan, dtype=np.float32)
    drawn = np.zeros((rounds, count), dtype=np.int32)
    for r in range(rounds):
        file = file_of(folder, r)
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as found:
                numbers, values, times = (found[name] for name in ("numbers", "seen", "drawn"))
            seen[r, numbers], drawn[r, numbers] = values, times
        except FileNotFoundError:
            if missing:
                continue
            raise BadData(f"{file} is missing: what was seen of the canaries in round {r} is not known.") from None
        except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
            raise BadData(f"{file} is damaged ({type(error).__name__}): restore it.") from None
    return seen, drawn
