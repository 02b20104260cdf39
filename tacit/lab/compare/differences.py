"""Paired differences between the cells of a comparison, over the seeds that both have (Student 1908; Holm 1979).
What two runs with one seed have in common (rows, budgets, first weights) cancels in their difference. Cells are compared that
differ in one varied key, each pair once, the later of the grid less the earlier."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from tacit.lab.compare.results import CONFIDENCE, FEWEST_SEEDS, Row
from tacit.parts import metrics
from tacit.table import COUNT, MISSING, SIGNED, Column, Estimate, Kind, Table

ROUNDING = 1e-9  # relative: differences that are closer than this are one number
NUMBERS = ("difference", "difference_low", "difference_high", "p", "p_holm", "comparisons")
KEYS = ("cell", "than", "key", "seeds", *NUMBERS)
MOST_SHOWN = 12


@dataclass(frozen=True)
class Scored:
    """A cell as far as differences need it: its name, what it varies, and its score by seed."""

    label: str
    varied: Mapping[str, Any]
    scores: Mapping[int, float] = field(repr=False)


@dataclass(frozen=True)
class Difference:
    """What `cell` reaches beyond `than`, over the same seeds: a mean with its interval (95 %, Student t) and a two-sided `p`.
    Both are None for fewer than three seeds, and where all seeds differ by the very same number, of whose spread nothing is
    known. `p_holm` is corrected for all `comparisons`: that any of those below 0.05 is chance has at most a probability of 5 %."""

    cell: str
    than: str
    key: str  # what the two differ in; empty where nothing is varied
    seeds: tuple[int, ...]
    mean: float
    interval: float | None
    p: float | None
    p_holm: float | None = None
    comparisons: int = 1

    def record(self) -> dict[str, Any]:
        ends = Estimate(self.mean, self.interval).ends
        who = (self.cell, self.than, self.key, len(self.seeds))
        return dict(zip(KEYS, (*who, self.mean, *ends, self.p, self.p_holm, self.comparisons), strict=True))

    def turned(self) -> "Difference":
        return replace(self, cell=self.than, than=self.cell, mean=-self.mean)


def scored(row: Row) -> Scored:
    return Scored(row.cell.label, row.cell.varied, {run.seed: run.score for run in row.ended})


def differences(cells: Sequence[Scored]) -> list[Difference]:
    """Every pair of cells that differ in one varied key and have a seed in common, with Holm's correction over all of them."""
    found = []
    for before, after in combinations(cells, 2):
        key, seeds = _apart(before.varied, after.varied), _common(before, after)
        if key is not None and seeds:
            values = [after.scores[seed] - before.scores[seed] for seed in seeds]
            found.append(_paired(after.label, before.label, key, seeds, values))
    corrected = holm([one.p for one in found])
    return [replace(one, p_holm=p, comparisons=len(found)) for one, p in zip(found, corrected, strict=True)]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Each p-value as Holm's step-down corrects it; None stays, and still counts as a comparison."""
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    found: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(values) - rank) * p))
        found[place] = largest
    return found


def _paired(cell: str, than: str, key: str, seeds: tuple[int, ...], values: list[float]) -> Difference:
    mean, count = math.fsum(values) / len(values), len(values)
    same = max(values) - min(values) <= ROUNDING * max(map(abs, values))
    if count < FEWEST_SEEDS or (same and mean):
        return Difference(cell, than, key, seeds, mean, None, None)
    if same:  # in every seed there is no difference
        return Difference(cell, than, key, seeds, 0.0, 0.0, 1.0)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    interval = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error
    return Difference(cell, than, key, seeds, mean, interval, 2 * float(stdtr(count - 1, -abs(mean / error))))


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The one key that two cells differ in; None where they differ in several.
    An option that one of them does not take is no difference, unless it is the only one."""
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    both = [key for key in keys if one.get(key) is not None and other.get(key) is not None]
    chosen = both or keys
    return chosen[0] if len(chosen) == 1 else None if chosen else ""


def _common(one: Scored, other: Scored) -> tuple[int, ...]:
    return tuple(
        seed
        for seed in one.scores
        if seed in other.scores and math.isfinite(one.scores[seed]) and math.isfinite(other.scores[seed])
    )


def found(rows: Sequence[Row]) -> list[Difference]:
    return differences([scored(row) for row in rows])


def table(rows: Sequence[Row]) -> Table:
    """A row per pair of cells; no column where no pair has two seeds in common."""
    pairs = found(rows)
    if not any(len(one.seeds) > 1 for one in pairs):
        return Table([])
    shown, number = pairs[:MOST_SHOWN], Kind(probability)
    columns = [
        Column("difference", [f"{one.cell} − {one.than}" for one in shown]),
        Column(metrics.words(rows[0].metric), [Estimate(one.mean, one.interval) for one in shown], SIGNED),
        Column("p", [one.p for one in shown], number),
        *([Column("p (Holm)", [one.p_holm for one in shown], number)] if len(pairs) > 1 else []),
        Column("seeds", [len(one.seeds) for one in shown], COUNT),
    ]
    return Table(columns, notes(rows))


def notes(rows: Sequence[Row]) -> list[str]:
    pairs = found(rows)
    if not any(len(one.seeds) > 1 for one in pairs):
        return []
    many = (
        f"; p (Holm) is corrected for all {len(pairs)} comparisons." if len(pairs) > 1 else ": one comparison was made."
    )
    how = f", ± {100 * CONFIDENCE:g} % interval and two-sided p (Student t), uncorrected{many}"
    said = [f"Differences are paired by seed{how if any(one.p is not None for one in pairs) else '.'}"]
    if any(one.p is None for one in pairs):
        said.append(
            f"{MISSING}: fewer than {FEWEST_SEEDS} seeds, or the very same difference in all, tell nothing about chance."
        )
    if len(pairs) > MOST_SHOWN:
        said.append(f"{len(pairs) - MOST_SHOWN} more differences are in differences.csv.")
    return said + pinned(rows)


def pinned(rows: Sequence[Row]) -> list[str]:
    """What seeds do not change, because it has a seed of its own: no interval says anything about it."""
    every = [experiment for row in rows for experiment in row.cell.experiments]
    if len({one.run.seed for one in every}) < 2:
        return []
    data = all(one.seed.data is not None for one in every)
    held = {
        "rows (seed.data)": data,
        "budgets (seed.data)": data and any(isinstance(one.privacy.epsilon, str) for one in every),
        "first weights (seed.model)": all(one.seed.model is not None for one in every),
    }
    names = [words for words, pinned in held.items() if pinned]
    return [f"The seeds do not change {', '.join(names)}: intervals say nothing about others."] if names else []


def probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
