"""What a comparison found: a `Run` per folder, a `Row` per cell, and the mean with its interval over seeds.
A run's score is the mean of its headline metric over its last 10 rounds, as Liu et al. (PVLDB 15(4), 2021) report an accuracy;
the final one is kept too. An epsilon never loses its unit: record-level and client-level ones are different promises."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from tacit.engine.evaluate import BACKDOOR
from tacit.engine.run_files import RunFiles, read
from tacit.lab.compare.grid import Cell, Task
from tacit.parts import metrics
from tacit.parts.tasks import headline
from tacit.privacy.guarantee import shown_delta
from tacit.table import INTERVAL, SIGNED, Column, Epsilon, Estimate, Kind

LAST_ROUNDS = 10
BACKDOORED = BACKDOOR.replace("_", " ")
FEWEST_SEEDS = 3  # of two, the interval is 9 times their distance, which says nothing
CONFIDENCE = 0.95
ANYTHING = (-math.inf, math.inf)


@dataclass(frozen=True)
class Run:
    """One run as it stands in its folder; `failure` is the sentence of one that did not end."""

    seed: int
    folder: Path
    summary: dict[str, Any] | None = field(repr=False)
    rounds: tuple[dict[str, Any], ...] = field(repr=False)
    failure: str | None = None
    spread: dict[str, float] = field(default_factory=dict, repr=False)  # over clients, where the run measured them

    @property
    def metric(self) -> str:
        return str((self.summary or {}).get("metric", "accuracy"))

    @property
    def score(self) -> float:
        found = last(self.rounds, self.metric)
        return self.final if found is None else found

    @property
    def backdoor(self) -> float | None:
        return last(self.rounds, BACKDOOR)

    @property
    def final(self) -> float:
        return final_score(self.summary, self.metric) if self.summary else math.nan

    @property
    def guarantee(self) -> dict[str, Any] | None:
        return self.summary["guarantee"] if self.summary else None


def last(rounds: Sequence[dict[str, Any]], key: str) -> float | None:
    """The mean of a number over a run's last 10 rounds; None where none of them has it."""
    found = [value for record in rounds[-LAST_ROUNDS:] if (value := record.get(key)) is not None]
    return math.fsum(found) / len(found) if found else None


def final_score(summary: dict[str, Any], metric: str) -> float:
    """What a run's model reaches on public test rows; without any, what its clients' held-out rows say; NaN where nobody knows."""
    value = summary.get(f"test_{metric}")
    if value is None:
        value = summary.get("at_clients", {}).get("metrics", {}).get(metric, {}).get("value")
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Row:
    cell: Cell
    runs: tuple[Run, ...]
    attacked: dict[str, Estimate] = field(default_factory=dict)  # by what was measured: what other attacks found

    @property
    def backdoor(self) -> Estimate | None:
        return estimate([run.backdoor for run in self.ended if run.backdoor is not None], (0.0, 1.0))

    @property
    def attacks(self) -> dict[str, Estimate]:
        """What each attack reached, by name. No epsilon covers it."""
        own = self.backdoor
        return ({} if own is None else {BACKDOORED: own}) | self.attacked

    @property
    def ended(self) -> list[Run]:
        return [run for run in self.runs if run.summary is not None]

    @property
    def metric(self) -> str:
        return headline(self.cell.experiments[0])

    @property
    def score(self) -> Estimate | None:
        return estimate([run.score for run in self.ended], metrics.bounds(self.metric))

    @property
    def final(self) -> Estimate | None:
        return estimate([run.final for run in self.ended], metrics.bounds(self.metric))

    @property
    def guarantee(self) -> dict[str, Any] | None:
        promises = [run.guarantee for run in self.ended if run.guarantee]
        if not promises:
            return None
        return {**promises[0], "epsilon": widest([promise["epsilon"] for promise in promises])}

    def epsilon(self, unit: str) -> Epsilon | None:
        """What its clients spent at most and at least by this unit of privacy; None where it promises nothing by it."""
        promise = self.guarantee
        if promise is None or promise["unit"] != unit:
            return None
        return Epsilon(promise["epsilon"]["min"], promise["epsilon"]["max"], promise["delta"])

    def mean(self, key: str) -> float:
        numbers = [float(run.summary[key]) for run in self.ended if run.summary]
        return math.fsum(numbers) / len(numbers) if numbers else math.nan


def widest(spent: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """The widest range of epsilon over some runs; one without a bound is null in a run's files, and infinite."""
    low, high = ([math.inf if one[end] is None else float(one[end] or 0) for one in spent] for end in ("min", "max"))
    return {"min": min(low), "max": max(high)}


def estimate(numbers: Sequence[float], bounds: tuple[float, float] = ANYTHING) -> Estimate | None:
    """The mean with Student's t interval, from three numbers on."""
    count = len(numbers)
    if not count:
        return None
    mean = math.fsum(numbers) / count
    if count < FEWEST_SEEDS:
        return Estimate(mean, None, bounds)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Estimate(mean, quantile * float(np.std(numbers, ddof=1)) / math.sqrt(count), bounds)


def last_rounds(lengths: Iterable[int]) -> str:
    """Over which rounds a score is the mean, in words: short runs have fewer than ten."""
    counts = {min(LAST_ROUNDS, length) for length in lengths} or {LAST_ROUNDS}
    low, high = min(counts), max(counts)
    if high == 0:
        return "untrained model"
    if low != high:
        return f"last {LAST_ROUNDS} rounds, or all of a shorter run"
    return "last round" if high == 1 else f"last {high} rounds"


def lengths(rows: Iterable[Row]) -> list[int]:
    return [len(run.rounds) for row in rows for run in row.ended]


def statement(guarantee: dict[str, Any]) -> str:
    """For whom, against whom, under which change of the data an epsilon holds; without the number."""
    return (
        f"per {guarantee['unit']} ({guarantee['relation']}), against {guarantee['adversary']},"
        f" delta = {shown_delta(guarantee['delta'])}"
    )


def statements(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(statement(row.guarantee) for row in rows if row.guarantee))


def which_promise(row: Row, known: Sequence[str]) -> str:
    """The number of a cell's promise among the known ones, and its unit."""
    if row.guarantee is None:
        return "no promise"
    return f"({known.index(statement(row.guarantee)) + 1}) per {row.guarantee['unit']}"


def units(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.guarantee["unit"] for row in rows if row.guarantee))


def rows_of(tasks: Sequence[Task], failures: dict[Path, str]) -> list[Row]:
    """Reads every run of the grid from its folder. Raises BadInput where a file of one is damaged."""
    cells = {task.cell.slug: task.cell for task in tasks}
    return [
        Row(cell, tuple(_read(task, failures.get(task.folder)) for task in tasks if task.cell is cell))
        for cell in cells.values()
    ]


def _read(task: Task, failure: str | None) -> Run:
    seed = task.experiment.run.seed
    if not task.finished:
        return Run(seed, task.folder, None, (), failure or "The run has not ended.")
    files = read(task.folder)
    spread = (files.per_client or {}).get("spread") or {}
    return Run(seed, task.folder, files.summary, tuple(files.rounds), spread=spread)


def over_rounds(row: Row, key: str, *, cumulated: bool = False) -> np.ndarray:
    """A number by seed and round; a run that stopped early keeps its last value, as its model stays what it is."""
    series = [[record.get(key, math.nan) for record in run.rounds] for run in row.ended if run.rounds]
    series = [np.cumsum(one).tolist() for one in series] if cumulated else series
    longest = max(map(len, series), default=0)
    return np.array([one + one[-1:] * (longest - len(one)) for one in series], float).reshape(len(series), longest)


def tested(values: np.ndarray) -> np.ndarray:
    """The places of rounds that are known in every run, of values by runs and rounds."""
    return np.flatnonzero(np.isfinite(values).all(axis=0))


# What clients have: personalised models on rows that each kept (`[personal]`), and how the model serves clients apart
# (`metric.per_client`). Both are measured on raw rows, and no epsilon covers them.

PERSONAL = {
    "alone": "alone",
    "common": "common",
    "own": "own",
    "own_less_alone": "own − alone",
    "own_less_common": "own − common",
}
ON_CLIENT, BY_CLIENT = "†", "‡"
SPREAD = {  # by what the files have; people read what has a heading
    "mean": "",
    "std": f"std over clients{BY_CLIENT}",
    "worst": "",
    "worst_tenth": f"worst tenth of clients{BY_CLIENT}",
    "median": "",
    "best": "",
}


def own_metrics(run: Run | RunFiles) -> dict[str, Any]:
    """A run's numbers of the metric that stands for it, by model and by difference; empty where it has no personalised models."""
    found = (run.summary or {}).get("personal") or {}
    by = found.get("metrics", {}).get(found.get("metric"), {})
    return {key: by[key] for key in PERSONAL if key in by}


@dataclass(frozen=True)
class Measure:
    """A number that a run may have, perhaps with an interval of its own, which stands where there is one run alone."""

    key: str
    heading: str
    bounds: tuple[float, float]
    of: Callable[[Run], Estimate | float | None] = field(repr=False)
    kind: Kind = INTERVAL

    def over(self, row: Row) -> Estimate | None:
        known = [one for run in row.ended if (one := self.of(run)) is not None]
        if len(known) == 1 and isinstance(known[0], Estimate):
            return known[0]
        return estimate([one.mean if isinstance(one, Estimate) else one for one in known], self.bounds)


def client_measures(metric: str) -> list[Measure]:
    def on_client(run: Run, key: str) -> Estimate | None:
        one = own_metrics(run).get(key)
        return one and Estimate.between(one["value"], *(one["interval"] or (None, None)))

    bounds, found = metrics.bounds(metric), list[Measure]()
    for key, name in PERSONAL.items():
        ends, kind = (ANYTHING, SIGNED) if "_less_" in key else (bounds, INTERVAL)
        found.append(
            Measure(f"{metric}_on_client_{key}", f"{name}{ON_CLIENT}", ends, partial(on_client, key=key), kind)
        )
    for key, name in SPREAD.items():
        ends = (0.0, math.inf) if key == "std" else bounds
        found.append(Measure(f"{metric}_by_client_{key}", name, ends, lambda run, key=key: run.spread.get(key)))
    return found


def client_columns(rows: Sequence[Row]) -> list[Column]:
    """A column for each number of the clients that any run has."""
    return [
        Column(one.heading, [one.over(row) for row in rows], one.kind, one.key)
        for one in client_measures(rows[0].metric)
        if any(one.of(run) is not None for row in rows for run in row.ended)
    ]


def client_notes(rows: Sequence[Row]) -> list[str]:
    metric, said = metrics.words(rows[0].metric), []
    raw = "From raw rows, not covered by epsilon: choosing by it is choosing by private rows."
    if any(own_metrics(run) for row in rows for run in row.ended):
        seeds, level = max(len(row.runs) for row in rows), f"{100 * CONFIDENCE:g} % interval"
        how = f"± the {level} over seeds" if seeds >= FEWEST_SEEDS else "without an interval over so few seeds"
        how = f"with the {level} over kept rows" if seeds == 1 else how
        said.append(
            f"{ON_CLIENT} On the client: {metric} on rows that each kept, mean over clients by rows, {how}; differences are"
            f" paired. {raw}"
        )
    if any(run.spread for row in rows for run in row.ended):
        own = [row.cell.experiments[0].data.own_share is not None for row in rows]
        where = "kept" if all(own) else "kept or, where it kept none, trained on" if any(own) else "trained on"
        said.append(
            f"{BY_CLIENT} By client: {metric} of the final model on the rows that each client {where}; every client counts once,"
            f" and the worst tenth is a mean. {raw}"
        )
    return said


def client_record(run: Run, *, metric: str) -> dict[str, float | None]:
    """A run's numbers of its clients for programs, with the ends of their intervals where they have one."""
    found: dict[str, float | None] = {}
    for one in client_measures(metric):
        value = one.of(run)
        if isinstance(value, Estimate):
            found |= {one.key: value.mean, **dict(zip((f"{one.key}_low", f"{one.key}_high"), value.ends, strict=True))}
        elif value is not None:
            found[one.key] = value
    return found
