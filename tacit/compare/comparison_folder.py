"""A comparison's folder: `compare.toml` and `base.toml` (what was asked), `runs/<cell>/seed-<n>` (a run each), tables,
figures.

It belongs to one process at a time. Nothing in it is ever deleted: `--force` sets the whole folder aside, ledgers
included.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.compare.cells import Cell
from tacit.engine.folder import first_free, replace, says_same
from tacit.engine.neighbours import COMPARISON
from tacit.errors import BadInput, RunExists
from tacit.experiment import Experiment
from tacit.experiment.toml import dumps
from tacit.machine import lock

ASKED, BASE = COMPARISON, "base.toml"


@dataclass(frozen=True, eq=False)
class Task:
    """One run to be done: its cell, its experiment, and its folder."""

    cell: Cell
    experiment: Experiment
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the run has ended in the way it was planned."""
        return (self.folder / "summary.json").exists()


def tasks_of(path: Path, cells: Sequence[Cell]) -> list[Task]:
    """Every run of the grid, cell by cell. Raises BadInput if a folder holds a run with other settings."""
    tasks = []
    for cell in cells:
        for experiment in cell.experiments:
            folder = path / "runs" / cell.slug / f"seed-{experiment.run.seed}"
            known = folder / "experiment.toml"
            if known.exists() and not says_same(known.read_text("utf-8"), experiment):
                raise BadInput(
                    f"The run in {folder} was started with other settings: leave out --set, or choose another --out."
                )
            tasks.append(Task(cell, experiment, folder))
    return tasks


def refuse_taken(path: Path, *, resume: bool, force: bool) -> None:
    """Raises RunExists for a folder that is in use, or BadInput if there is nothing to resume."""
    if resume and force:
        raise BadInput("--resume goes on with a comparison and --force starts a new one: use one of them.")
    if resume and not (path / ASKED).exists():
        raise BadInput(f"There is no comparison to resume in {path}.")
    if force or resume:
        return
    if (path / ASKED).exists():
        raise RunExists(
            f"{path} already holds a comparison: use --resume to go on with it, or --force to set it aside and start anew."
        )
    if (path / "experiment.toml").exists():
        raise RunExists(f"{path} already holds a run: choose another --out, or use --force to set it aside.")


def take(path: Path, *, force: bool) -> int:
    """Makes the folder, sets an earlier one aside if told to, and locks it. Close the descriptor to give it free."""
    if force and ((path / ASKED).exists() or (path / "experiment.toml").exists()):
        os.close(_lock(path))  # a comparison that is still running must not be moved away
        path.rename(first_free(path.with_name(f"{path.name}.{number}") for number in range(1, 10**6)))
    path.mkdir(parents=True, exist_ok=True)
    return _lock(path)


def note(path: Path, values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], *, seeds: int) -> None:
    """Writes down what was asked, for `asked`."""
    replace(path / BASE, dumps(values).encode())
    replace(path / ASKED, dumps({"seeds": seeds, "vary": dict(vary)}).encode())


def asked(path: Path) -> tuple[dict[str, list[Any]], int]:
    """What the comparison in a folder varies, and over how many seeds."""
    file = path / ASKED
    if not file.exists():
        raise BadInput(f"There is no comparison to resume in {path}.")
    with suppress(tomllib.TOMLDecodeError, KeyError):
        known = tomllib.loads(file.read_text("utf-8"))
        return known["vary"], known["seeds"]
    raise BadInput(f"{file} is damaged: start again with --force, which keeps the old files.")


def _lock(path: Path) -> int:
    held = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        lock(held)
    except OSError as error:
        os.close(held)
        raise RunExists(f"Another process is running in {path}: wait for it, or choose another --out.") from error
    return held
