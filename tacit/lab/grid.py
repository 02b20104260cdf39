"""`compare`: a grid of experiments times seeds, run concurrently on this machine, as rows, files and figures.
Every run is an ordinary one in a folder of its own, so it can be resumed, read and repeated alone."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from tacit import check, store
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.compare import figures, table
from tacit.lab.compare import ledger as one_ledger
from tacit.lab.compare.findings import columns
from tacit.lab.compare.grid import GRID, expand, refuse_two_metrics, tasks_of, try_out
from tacit.lab.compare.results import Row, rows_of
from tacit.lab.worker import Display, run_all
from tacit.report.page import write_page


def compare(
    experiment: Experiment | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    seeds: int,
    out: Path | str,
    resume: bool = False,
    force: bool = False,
    jobs: int | None = None,
    display: Display | None = None,
    ledger: Path | str | None = None,
) -> list[Row]:
    """Runs every combination of `vary` with `seeds` seeds, writes tables and figures into `out`, and returns a row per cell.
    A finished run is kept; with `resume` an unfinished one goes on. A run that fails has its sentence in `row.runs`. With
    `ledger` all runs are charged to that file. Raises BadInput, RunExists, or BudgetExhausted for the grid as a whole, before
    anything starts."""
    folder, values = Path(out), with_ledger(plain(experiment), vary, seeds=seeds, ledger=ledger)
    jobs = store.cores() if jobs is None else jobs
    check.at_least(1, jobs=jobs)
    GRID.refuse_taken(folder, resume=resume, force=force)
    cells = expand(values, vary, seeds=seeds)
    refuse_two_metrics(cells)
    known = [] if force else tasks_of(folder, cells)
    one_ledger.refuse_unpaid(cells, begun=any(task.folder.exists() for task in known))
    for cell in cells:
        if not known or any(task.cell is cell and not task.finished for task in known):
            try_out(cell)
    lock = GRID.take(folder, force=force)
    try:
        GRID.write(folder, GRID.texts(values, vary, seeds))
        tasks = tasks_of(folder, cells)
        waiting = [task for task in tasks if not task.finished]
        display = display or Display(Console(quiet=True))
        display.begin(tasks, waiting, jobs=jobs)
        failures = run_all(waiting, jobs=jobs, logs=folder / "log", watch=display.watch)
        rows = [replace(row, attacked=columns(folder, row.cell)) for row in rows_of(tasks, failures)]
        table.write(folder, rows)
        figures.draw(folder, rows)
        write_page([folder], folder / "report.html")
        return rows
    finally:
        os.close(lock)


def with_ledger(
    values: dict[str, Any], vary: Mapping[str, Sequence[Any]], *, seeds: int, ledger: Path | str | None
) -> dict[str, Any]:
    """The values of an experiment with a ledger that all runs share, each with an equal part of delta unless one is said.
    Raises BadInput as `expand`."""
    if ledger is None:
        return values
    runs = len(expand(values, vary, seeds=seeds)) * seeds
    privacy = {"delta_share": 1.0 / runs} | dict(values.get("privacy", {})) | {"ledger": str(ledger)}
    return values | {"privacy": privacy}


def plain(experiment: Experiment | Mapping[str, Any]) -> dict[str, Any]:
    """What an experiment says, without the defaults it does not name."""
    values = dict(_dumped(experiment) if isinstance(experiment, BaseModel) else experiment)
    for section in set(Experiment.model_fields) & set(values) - {"name"}:
        part = _dumped(values[section]) if isinstance(values[section], BaseModel) else values[section]
        if not isinstance(part, Mapping):
            raise BadInput(f"Expected {section} to be a table of settings, got {part!r}.")
        values[section] = {key: value for key, value in part.items() if value is not None}
    return values


def _dumped(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(exclude_unset=True, exclude_none=True)
