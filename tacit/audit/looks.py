"""How often the canaries of a run were looked at, by the pool of runs that they were taken together with: `looks.json`."""

import json
from collections.abc import Sequence
from pathlib import Path

from tacit.engine.folder import replace

LOOKS = "looks.json"
MOST_TEXT, MOST_LOOKS = 1 << 20, 10**6


def looks_at(folders: Sequence[Path], pool: str) -> tuple[int, int]:
    """Which look at this pool of runs it is, and at how many other pools with one of them somebody has looked."""
    known = [_known(folder) for folder in folders]
    others = {name for one in known for name in one if name != pool}
    return 1 + max(one.get(pool, 0) for one in known), len(others)


def count_look(folder: Path, pool: str) -> None:
    """Counts a look at a pool in one of its folders."""
    known = _known(folder)
    replace(folder / LOOKS, json.dumps(known | {pool: known.get(pool, 0) + 1}).encode())


def _known(folder: Path) -> dict[str, int]:
    """How often the canaries of a folder were looked at, by the pool of runs; nothing where its file is damaged."""
    try:
        found = json.loads((folder / LOOKS).read_text("utf-8")[:MOST_TEXT])
    except (OSError, ValueError, RecursionError):
        return {}
    counts = found.items() if isinstance(found, dict) else ()
    return {name: count for name, count in counts if type(count) is int and 0 < count < MOST_LOOKS}
