"""How often the canaries of a run were looked at, by the pool of runs that they were taken together with: `looks.json`.

Every audit that is written says the same once more (`looked`), so that who deletes one of the files has deleted no look. Who
deletes all of them has: a count is for those who want to keep to it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tacit.engine.folder import replace
from tacit.engine.run_files import AUDIT

LOOKS = "looks.json"
POOLED = "audit-pooled.json"  # what several runs show together
LOOKED = "looked"  # in an audit: all looks until then
MOST_TEXT, MOST_LOOKS = 1 << 26, 10**6


def looks_at(folders: Sequence[Path], pool: str) -> tuple[int, int]:
    """Which look at this pool of runs it is, and at how many other pools with one of them somebody had looked before the first."""
    known = [known_in(folder) for folder in folders]
    others = {name for one in known for name in _before(one, pool)}
    return 1 + max(one.get(pool, 0) for one in known), len(others)


def count_look(folder: Path, pool: str) -> dict[str, int]:
    """Counts a look at a pool in one of its folders, and returns all looks, the first pool first."""
    known = known_in(folder)
    known[pool] = known.get(pool, 0) + 1
    replace(folder / LOOKS, json.dumps(known).encode())
    return known


def known_in(folder: Path) -> dict[str, int]:
    """How often the canaries of a folder were looked at, by the pool of runs; of a file that is damaged, nothing."""
    found: dict[str, int] = {}
    for file in (LOOKS, AUDIT, POOLED):
        said = _read(folder / file)
        for name, count in (said if file == LOOKS else _table(said.get(LOOKED))).items():
            if type(count) is int and 0 < count < MOST_LOOKS:
                found[name] = max(count, found.get(name, 0))
    return found


def _before(known: Mapping[str, int], pool: str) -> list[str]:
    names = list(known)
    return names[: names.index(pool)] if pool in known else names


def _read(file: Path) -> dict[str, object]:
    try:
        return _table(json.loads(file.read_text("utf-8")[:MOST_TEXT]))
    except (OSError, ValueError, RecursionError):
        return {}


def _table(found: object) -> dict[str, object]:
    return found if isinstance(found, dict) else {}
