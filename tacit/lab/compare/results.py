"""What a comparison found: a `Run` per folder, a `Row` per cell, and the mean with its interval over seeds.

A run's score is the mean of its headline metric over its last 10 rounds, as Liu et al. (PVLDB 15(4), 2021) report
an accuracy; the final one is kept too. An epsilon never loses its unit: record-level and client-level ones are different
promises and stay in different columns."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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

LAST_ROUNDS = 10
BACKDOORED = BACKDOOR.replace("_", " ")
FEWEST_SEEDS = 3  # of two, the interval is 9 times their distance, which says nothing
CONFIDENCE = 0.95


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
        """The metric that stands for it."""
        return str((self.summary or {}).get("metric", "accuracy"))

    @property
    def score(self) -> float:
        """The mean of its metric over the last 10 rounds; of a run without rounds, what it ended with."""
        last = [record[self.metric] for record in self.rounds[-LAST_ROUNDS:] if self.metric in record]
        return math.fsum(last) / len(last) if last else self.final

    @property
    def backdoor(self) -> float | None:
        """What malicious clients reached, over the same rounds; None where nobody was malicious. No epsilon covers it."""
        return last_backdoor(self.rounds)

    @property
    def final(self) -> float:
        """What the model it left reaches on the test rows, or on its clients' held-out ones."""
        return final_score(self.summary, self.metric) if self.summary else math.nan

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """What it promises, or None."""
        return self.summary["guarantee"] if self.summary else None


def last_backdoor(rounds: Sequence[dict[str, Any]]) -> float | None:
    """What malicious clients reached over the last 10 rounds of a run; None where nobody was malicious."""
    last = [record[BACKDOOR] for record in rounds[-LAST_ROUNDS:] if BACKDOOR in record]
    return math.fsum(last) / len(last) if last else None


def final_score(summary: dict[str, Any], metric: str) -> float:
    """What a run's model reaches on public test rows; without any, what its clients' held-out rows say; NaN where nobody knows."""
    value = summary.get(f"test_{metric}")
    if value is None:
        value = summary.get("at_clients", {}).get("metrics", {}).get(metric, {}).get("value")
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; `interval` is the half width of its 95 % confidence interval, None with fewer than 3 seeds.

    >>> Estimate(0.75, 0.5).span, Estimate(0.75, 0.5, (0.0, 1.0)).span
    ((0.5, 0.5), (0.5, 0.25))
    """

    mean: float
    interval: float | None
    bounds: tuple[float, float] = (-math.inf, math.inf)  # between which the metric lies

    @property
    def span(self) -> tuple[float, float]:
        """How far a picture draws the interval below and above: not where the metric cannot be."""
        wide, (low, high) = self.interval or 0.0, self.bounds
        return min(wide, self.mean - low), min(wide, high - self.mean)


@dataclass(frozen=True)
class Row:
    """One cell and its runs."""

    cell: Cell
    runs: tuple[Run, ...]
    attacked: dict[str, Estimate] = field(default_factory=dict)  # by what was measured: what other attacks found

    @property
    def backdoor(self) -> Estimate | None:
        """What malicious clients reached, over seeds, in the last 10 rounds; None where nobody was malicious."""
        return estimate([run.backdoor for run in self.ended if run.backdoor is not None], (0.0, 1.0))

    @property
    def attacks(self) -> dict[str, Estimate]:
        """What each attack reached, by name. No epsilon covers it."""
        own = self.backdoor
        return ({} if own is None else {BACKDOORED: own}) | self.attacked

    @property
    def ended(self) -> list[Run]:
        """The runs that can be counted."""
        return [run for run in self.runs if run.summary is not None]

    @property
    def metric(self) -> str:
        """The metric that stands for its runs."""
        return headline(self.cell.experiments[0])

    @property
    def score(self) -> Estimate | None:
        """Over seeds, of the last 10 rounds; None where no run ended."""
        return estimate([run.score for run in self.ended], metrics.bounds(self.metric))

    @property
    def final(self) -> Estimate | None:
        """Over seeds, of the final models."""
        return estimate([run.final for run in self.ended], metrics.bounds(self.metric))

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """What the cell promises: the widest range of epsilon over its seeds, the rest as any of its runs says it."""
        promises = [run.guarantee for run in self.ended if run.guarantee]
        if not promises:
            return None
        return {**promises[0], "epsilon": widest([promise["epsilon"] for promise in promises])}

    def mean(self, key: str) -> float:
        """The mean of a number of the summaries; NaN where no run ended."""
        numbers = [float(run.summary[key]) for run in self.ended if run.summary]
        return math.fsum(numbers) / len(numbers) if numbers else math.nan


def widest(spent: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """The widest range of epsilon over some runs; one without a bound is null in a run's files, and infinite.

    >>> widest([{"min": 1.0, "max": 2.0}, {"min": 0.5, "max": None}])
    {'min': 0.5, 'max': inf}
    """
    low, high = ([math.inf if one[end] is None else float(one[end] or 0) for one in spent] for end in ("min", "max"))
    return {"min": min(low), "max": max(high)}


def estimate(numbers: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Estimate | None:
    """The mean with Student's t interval.

    >>> estimate([0.8, 0.9, 1.0]).mean, round(estimate([0.8, 0.9, 1.0]).interval, 3), estimate([0.5]).interval
    (0.9, 0.248, None)
    """
    count = len(numbers)
    if not count:
        return None
    mean = math.fsum(numbers) / count
    if count < FEWEST_SEEDS:
        return Estimate(mean, None, bounds)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Estimate(mean, quantile * float(np.std(numbers, ddof=1)) / math.sqrt(count), bounds)


def last_rounds(lengths: Iterable[int]) -> str:
    """Over which rounds a score is the mean, in words: short runs have fewer than ten.

    >>> last_rounds([60, 60]), last_rounds([4]), last_rounds([60, 4])
    ('last 10 rounds', 'last 4 rounds', 'last 10 rounds, or all of a shorter run')
    """
    counts = {min(LAST_ROUNDS, length) for length in lengths} or {LAST_ROUNDS}
    low, high = min(counts), max(counts)
    if high == 0:
        return "untrained model"
    if low != high:
        return f"last {LAST_ROUNDS} rounds, or all of a shorter run"
    return "last round" if high == 1 else f"last {high} rounds"


def lengths(rows: Iterable[Row]) -> list[int]:
    """The rounds of every run that ended."""
    return [len(run.rounds) for row in rows for run in row.ended]


def statement(guarantee: dict[str, Any]) -> str:
    """For whom, against whom, under which change of the data an epsilon holds; without the number."""
    return (
        f"per {guarantee['unit']} ({guarantee['relation']}), against {guarantee['adversary']},"
        f" delta = {shown_delta(guarantee['delta'])}"
    )


def units(rows: Iterable[Row]) -> list[str]:
    """The units of privacy that occur."""
    return list(dict.fromkeys(row.guarantee["unit"] for row in rows if row.guarantee))


def rows_of(tasks: Sequence[Task], failures: dict[Path, str]) -> list[Row]:
    """Reads every run of the grid from its folder. Raises BadInput where a file of one is damaged."""
    cells = {task.cell.slug: task.cell for task in tasks}
    return [
        Row(cell, tuple(_read(task, failures.get(task.folder)) for task in tasks if task.cell is cell))
        for cell in cells.values()
    ]


def values_of(run: Run, key: str) -> list[float]:
    """A number of every round of a run; NaN where a round was not tested."""
    return [record.get(key, math.nan) for record in run.rounds]


def tested(values: np.ndarray) -> np.ndarray:
    """The places of rounds that are known in every run, of values by runs and rounds.

    >>> tested(np.array([[0.1, math.nan, 0.3], [0.2, 0.3, 0.4]])).tolist()
    [0, 2]
    """
    return np.flatnonzero(np.isfinite(values).all(axis=0))


def over_rounds(row: Row, number: Callable[[Run], Sequence[float]]) -> np.ndarray:
    """Seeds by rounds; a run that stopped early keeps its last value, as its model stays what it is."""
    series = [list(number(run)) for run in row.ended if run.rounds]
    longest = max((len(one) for one in series), default=0)
    return np.array([one + one[-1:] * (longest - len(one)) for one in series], dtype=float).reshape(
        len(series), longest
    )


def _read(task: Task, failure: str | None) -> Run:
    seed = task.experiment.run.seed
    if not task.finished:
        return Run(seed, task.folder, None, (), failure or "The run has not ended.")
    files = read(task.folder)
    spread = (files.per_client or {}).get("spread") or {}
    return Run(seed, task.folder, files.summary, tuple(files.rounds), spread=spread)


# What clients have at home, cell by cell: alone, by the common model and by their own, on rows that each kept
# (`[personal]`).

NAMES = {
    "alone": "alone",
    "common": "common",
    "own": "own",
    "own_less_alone": "own − alone",
    "own_less_common": "own − common",
}
NOTHING = "–"
MARK = "†"


def told(run: Run | RunFiles) -> dict[str, Any]:
    """A run's numbers of the metric that stands for it, by model and by difference; empty where it has none."""
    found = (run.summary or {}).get("personal") or {}
    by = found.get("metrics", {}).get(found.get("metric"), {})
    return {key: by[key] for key in NAMES if key in by}


def asked(rows: Sequence[Row]) -> bool:
    """Whether any run of a comparison has own models to tell of."""
    return any(told(run) for row in rows for run in row.ended)


def over_seeds(row: Row, key: str) -> Estimate | None:
    """The mean of one number over a cell's seeds, with its interval."""
    bounds = (-math.inf, math.inf) if "_less_" in key else metrics.bounds(row.metric)
    return estimate([found[key]["value"] for run in row.ended if (found := told(run))], bounds)


def columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """A column for each model and each difference; none where no run has own models."""
    if not asked(rows):
        return []
    return [(f"{name}{MARK}", [_text(row, key) for row in rows]) for key, name in NAMES.items()]


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be read with the columns."""
    if not asked(rows):
        return []
    seeds = max(len(row.runs) for row in rows)
    how = (
        f"± the {100 * CONFIDENCE:g} % interval over seeds"
        if seeds >= FEWEST_SEEDS
        else "without an interval over so few seeds"
    )
    how = f"with the {100 * CONFIDENCE:g} % interval over kept rows" if seeds == 1 else how
    what = f"{metrics.words(rows[0].metric)} on rows that each client kept, mean over clients by these rows"
    return [
        f"{MARK} At home: {what}, {how}; differences are paired. From raw rows, not covered by epsilon: choosing by"
        " them is choosing by private rows."
    ]


def record(row: Row) -> dict[str, float | None]:
    """A cell's numbers for programs; nothing where it has none."""
    found = {key: over_seeds(row, key) for key in NAMES} if asked([row]) else {}
    pairs = {f"{row.metric}_at_home_{key}": one for key, one in found.items()}
    return {
        name: value
        for key, one in pairs.items()
        for name, value in ((key, one.mean if one else None), (f"{key}_interval", one.interval if one else None))
    }


def run_record(run: Run, *, metric: str) -> dict[str, float | None]:
    """A run's numbers, each with the ends of its interval over kept rows."""
    found: dict[str, float | None] = {}
    for key, one in told(run).items():
        low, high = one["interval"] or (None, None)
        name = f"{metric}_at_home_{key}"
        found |= {name: one["value"], f"{name}_low": low, f"{name}_high": high}
    return found


def _text(row: Row, key: str) -> str:
    known = [found[key] for run in row.ended if (found := told(run))]
    mean, sign = over_seeds(row, key), "+" if "_less_" in key else ""
    if mean is None:
        return NOTHING
    text = f"{mean.mean:{sign}.4f}"
    if mean.interval is not None:
        return f"{text} ± {max(mean.span):.4f}"
    ends = known[0]["interval"] if len(known) == 1 else None
    return f"{text} ({ends[0]:{sign}.4f} to {ends[1]:{sign}.4f})" if ends else text


# How the model serves clients apart (`metric.per_client`), in the table and the files of a comparison.

NAMES_CLIENT_SPREAD = {"std": "std over clients", "worst_tenth": "worst tenth of clients"}  # what the table shows
FILED = ("mean", "std", "worst", "worst_tenth", "median", "best")  # what the files have
MARK_CLIENT_SPREAD, NOTHING_CLIENT_SPREAD = "‡", "–"


def over_seeds_client_spread(row: Row, key: str) -> Estimate | None:
    """The mean of one number over a cell's seeds, with its interval."""
    bounds = (0.0, float("inf")) if key == "std" else metrics.bounds(row.metric)
    return estimate([run.spread[key] for run in row.ended if run.spread], bounds)


def asked_client_spread(rows: Sequence[Row]) -> bool:
    """Whether any run of a comparison measured its clients."""
    return any(run.spread for row in rows for run in row.ended)


def spread_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """A column for each number that the table shows; none where no run measured its clients."""
    return (
        [
            (f"{name}{MARK_CLIENT_SPREAD}", [_text_client_spread(row, key) for row in rows])
            for key, name in NAMES_CLIENT_SPREAD.items()
        ]
        if asked_client_spread(rows)
        else []
    )


def notes_client_spread(rows: Sequence[Row]) -> list[str]:
    """What must be read with the columns."""
    if not asked_client_spread(rows):
        return []
    own = [row.cell.experiments[0].data.own_share is not None for row in rows]
    where = "kept" if all(own) else "kept or, where it kept none, trained on" if any(own) else "trained on"
    return [
        f"{MARK_CLIENT_SPREAD} By client: {metrics.words(rows[0].metric)} of the final model on the rows that each client {where};"
        " every client counts once, and the worst tenth is a mean. From raw rows, not covered by epsilon:"
        " choosing by it is choosing by private rows."
    ]


def record_client_spread(row: Row) -> dict[str, float | None]:
    """A cell's numbers for programs; nothing where it has none."""
    found = {key: over_seeds_client_spread(row, key) for key in FILED} if asked_client_spread([row]) else {}
    return {
        name: value
        for key, one in found.items()
        for name, value in (
            (_named(row.metric, key), one.mean if one else None),
            (f"{_named(row.metric, key)}_interval", one.interval if one else None),
        )
    }


def run_record_client_spread(run: Run, *, metric: str) -> dict[str, float]:
    """A run's numbers for programs."""
    return {_named(metric, key): run.spread[key] for key in FILED} if run.spread else {}


def _named(metric: str, key: str) -> str:
    return f"{metric}_by_client_{key}"


def _text_client_spread(row: Row, key: str) -> str:
    found = over_seeds_client_spread(row, key)
    if found is None:
        return NOTHING_CLIENT_SPREAD
    return f"{found.mean:.4f}" + ("" if found.interval is None else f" ± {max(found.span):.4f}")
