"""`compare`: a grid of experiments times seeds, run concurrently on this machine, as rows, files and figures.
Every run is an ordinary one in a folder of its own, so it can be resumed, read and repeated alone."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from tacit import check, store
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import whole
from tacit.lab.compare import figures, table
from tacit.lab.compare import ledger as one_ledger
from tacit.lab.compare.findings import columns
from tacit.lab.compare.grid import GRID, expand, refuse_two_metrics, tasks_of, try_out
from tacit.lab.compare.results import Row, rows_of
from tacit.lab.worker import Display, run_all
from tacit.report.page import write_page
from tacit.simulation import new_folder

NOTHING: Mapping[str, Sequence[Any]] = MappingProxyType({})
SEEDS = 3  # the fewest that give an interval one can use


class Comparison(list[Row]):
    """The rows of a comparison, a cell each, and the folder with its files."""

    def __init__(self, rows: Iterable[Row], out: Path):
        super().__init__(rows)
        self.out = out

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per cell: `pandas.DataFrame(comparison.records())`."""
        cells = zip(self, table.cells(self).records(), strict=True)
        return [{"cell": row.cell.label, **row.cell.varied, **numbers} for row, numbers in cells]

    def __str__(self) -> str:
        return table.cells(self).markdown()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = table.cells(self)
        return cells.html() + "".join(f"<p>{escape(note)}</p>" for note in cells.notes)


def compare(
    experiment: Experiment | Mapping[str, Any] | str | Path = "digits",
    vary: Mapping[str, Sequence[Any]] = NOTHING,
    *,
    seeds: int = SEEDS,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    jobs: int | None = None,
    display: Display | None = None,
    ledger: Path | str | None = None,
    **settings: Any,
) -> Comparison:
    """Runs every combination of `vary` with `seeds` seeds, writes tables and figures into `out`, and returns a row per cell.
    A finished run is kept; with `resume` an unfinished one goes on. A run that fails has its sentence in `row.runs`. With
    `ledger` all runs are charged to that file. Raises BadInput, RunExists, or BudgetExhausted for the grid as a whole, before
    anything starts. The experiment and `settings` are as in `tacit.run`; a key of `vary` may be short where one table has it."""
    if not isinstance(vary, Mapping):
        raise BadInput(
            f"Expected vary to be a dict of lists by key, as in {{'aggregate.rule': ['mean']}}, got {vary!r:.60}."
        )
    for key, several in vary.items():
        if isinstance(several, str) or not isinstance(several, Sequence):
            raise BadInput(f"Expected vary[{key!r}] to be a list of values, got {several!r:.60}.")
    vary = {whole(key): several for key, several in vary.items()}
    if settings or not isinstance(experiment, Mapping):
        experiment = Experiment.of(experiment, **settings)
    values = with_ledger(plain(experiment), vary, seeds=seeds, ledger=ledger)
    folder = Path(out) if out is not None else new_folder(f"{values.get('name', 'digits')}-compare")
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
        return Comparison(rows, folder)
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
