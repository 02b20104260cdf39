"""What nobody may see of a search while it goes on: how many runs there are, what each picks, and the runs that lose.

It lies in the folder `secret`, which its owner alone can open, and is deleted when the best is published. The number of runs and
the picks are drawn once, from the operating system and never from a seed (a seed stands in the experiment, which is published),
and written down before the search is paid for: a search that was killed goes on with what it drew.
"""

import math
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.digest import mark
from tacit.errors import BadInput, KeyRefused
from tacit.privacy.accounting.selected import Repetitions
from tacit.protect import owner_files

NAME, STATE, README = "secret", "state.json", "README"
KEY_BYTES = 32
NAMED = 16  # characters of a folder's name
WARNING = """This folder is private: it holds runs that may lose, and how many there are. The promise of the search is about whoever
sees none of it. It is deleted when the search ends; do not copy, show or back it up. Deleted files may stay on a disk until
they are overwritten.
"""


@dataclass(frozen=True)
class State:
    """How far a search has come: the picks of all its runs, how many are done, and the best of those (its number and its place).

    `starts` are those of the search itself, by name, where what its runs draw will not come again.
    """

    key: str
    picks: tuple[int, ...]
    done: int = 0
    best: int | None = None
    rank: tuple[float, str] | None = None
    starts: tuple[str, ...] = ()

    def draw(self, number: int) -> str:
        """What the noise of one run is keyed by beside all else: no two runs share it."""
        return f"{self.key}:{number}"

    def after(self, rank: tuple[float, str] | None) -> "State":
        """The state after one more run, which would be released if nothing ranked higher; None ranks below everything.

        A score that is no number ranks as None: it compares with nothing, so that the order of runs would decide.
        """
        rank = None if rank is None or math.isnan(rank[0]) else rank
        done, better = self.done + 1, rank is not None and (self.rank is None or rank > self.rank)
        return replace(self, done=done, best=done, rank=rank) if better else replace(self, done=done)


def drawn(law: Repetitions, candidates: int) -> State:
    """A new search: its number of runs, and the candidate of each, from the operating system's entropy."""
    count = law.draw()
    return State(secrets.token_hex(KEY_BYTES), tuple(secrets.randbelow(candidates) for _ in range(count)))


def write(path: Path, state: State) -> None:
    """Keeps the state. Guarantee: nobody but its owner can open the folder `secret` or read the file, whatever the umask."""
    folder = path / NAME
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    if not (folder / README).exists():
        (folder / README).write_text(WARNING, "utf-8")
    owner_files.write(folder / STATE, asdict(state), mode=owner_files.SECRET, force=True)


def read(path: Path) -> State | None:
    """The state of a search that goes on; None where there is none. Raises BadInput where it is damaged or lies open."""
    file = path / NAME / STATE
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = owner_files.read(file, secret=True)
        picks, rank = tuple(int(pick) for pick in found["picks"]), found["rank"]
        placed = None if rank is None else (float(rank[0]), str(rank[1]))
        best = None if found["best"] is None else int(found["best"])
        starts = tuple(str(start) for start in found.get("starts", ()))
        state = State(str(found["key"]), picks, int(found["done"]), best, placed, starts)
    except (KeyRefused, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(
            f"{file} is damaged or can be read by others, and a search cannot go on without it ({error!s:.80})."
        ) from None
    known = (best is None) == (placed is None) and (best is None or 1 <= best <= state.done)
    known = known and (placed is None or not math.isnan(placed[0]))
    if not (known and picks and min(picks) >= 0 and 0 <= state.done <= len(picks)):
        raise BadInput(f"{file} is damaged, and a search cannot go on without it.")
    return state


def place(path: Path, state: State, number: int) -> Path:
    """The folder of a run; its name, which a refusal may quote, does not say which run it is."""
    return path / NAME / f"run-{mark(state.draw(number))[:NAMED]}"


def forget_losers(path: Path, state: State) -> None:
    """Deletes every run but the best so far and the one that may be going on."""
    kept = {place(path, state, number).name for number in (state.best, state.done + 1) if number is not None}
    for folder in (path / NAME).glob("run-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


def forget(path: Path) -> None:
    """Deletes all of it."""
    if (path / NAME).exists():
        shutil.rmtree(path / NAME)
