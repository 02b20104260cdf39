"""Columns of a federation in numbers: from one noised histogram each to counts, means and quantiles, with their uncertainty.

A record adds 1 to one cell of every column that is asked for, so k columns have the squared sensitivity k. What is read off the
noised counts is post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.errors import BadInput
from tacit.privacy.queries.evaluation import Cells, OneCell, Values, combine
from tacit.privacy.queries.mechanism import Counts
from tacit.privacy.queries.ranges import Range

BINS = 32  # of a declared range
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Z = 1.96  # standard deviations of the middle 95 %


@dataclass(frozen=True)
class NumericColumn(OneCell):
    """A numeric column in bins, in the column's own units; what lies outside is in the outermost."""

    name: str
    place: int  # among the features of a row
    edges: tuple[float, ...]  # of the bins, the two ends included
    scaled: Range | None  # the range that the feature was scaled by

    @property
    def cells(self) -> int:
        """As many as bins."""
        return len(self.edges) - 1

    @property
    def l2_squared(self) -> int:
        """A record is in one bin."""
        return 1

    def cell(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The bin of every row."""
        values = x[:, self.place].astype(np.float64)
        if self.scaled is not None:
            values = self.scaled[0] + values * (self.scaled[1] - self.scaled[0])
        return np.searchsorted(np.array(self.edges[1:-1]), values, side="right")

    def metrics(self, counts: Cells, *, std: float) -> Values:
        """The mean (of the middles of the bins) and quantiles; None where there may be nothing but noise."""
        names = ["mean", *(f"{100 * q:g} %" for q in QUANTILES)]
        total = float(counts.sum())
        if total <= 3 * std * math.sqrt(len(counts)) or total <= 0:
            return dict.fromkeys(names)
        edges = np.array(self.edges)
        mean = float(np.clip(counts @ (edges[:-1] + edges[1:]) / 2 / total, edges[0], edges[-1]))
        below = np.clip(np.maximum.accumulate(np.concatenate([[0.0], np.cumsum(counts)])) / total, 0.0, 1.0)
        return dict(zip(names, [mean, *(float(np.interp(q, below, edges)) for q in QUANTILES)], strict=True))


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of words, or the label: a count for each of its declared values."""

    name: str
    values: tuple[str, ...]
    place: int | None  # the first of its features; None: the label

    @property
    def cells(self) -> int:
        """As many as values."""
        return len(self.values)

    def cell(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The value of every row."""
        return y if self.place is None else x[:, self.place : self.place + self.cells].argmax(1)


@dataclass(frozen=True)
class Described:
    """The query: every column's histogram, side by side."""

    columns: tuple[NumericColumn | CategoricalColumn, ...]

    @property
    def cells(self) -> int:
        """How many counts a client answers with."""
        return sum(column.cells for column in self.columns)

    @property
    def l2_squared(self) -> int:
        """One record is in one cell of each column."""
        return len(self.columns)

    def count(self, x: np.ndarray, y: np.ndarray) -> Counts:
        """The true counts of a client's rows."""
        counts = [np.bincount(column.cell(x, y), minlength=column.cells) for column in self.columns]
        return Counts(np.concatenate(counts).astype(np.int64), self.l2_squared)

    def told(self, answers: Sequence[np.ndarray], stds: np.ndarray, sizes: np.ndarray) -> list[dict[str, Any]]:
        """What the noised counts say of each column, over all clients that answered.

        Counts are plain sums; means and quantiles weigh clients by how much their counts can tell.
        """
        found, start = [], 0
        margin = Z * math.sqrt(float((stds**2).sum()))
        for column in self.columns:
            parts = [one[start : start + column.cells] for one in answers]
            total, start = np.sum(parts, axis=0), start + column.cells
            record: dict[str, Any] = {"column": column.name, "counts": total.tolist(), "margin": margin}
            if isinstance(column, NumericColumn):
                values = combine(column, parts, stds, sizes.astype(float)).values
                found.append(record | {"edges": list(column.edges)} | dict(values))
            else:
                found.append(record | {"values": list(column.values)})
        return found


def numbers(name: str, place: int, *, limits: Range | None, wide: Range | None) -> NumericColumn:
    """A numeric column in equal bins of its declared range; of a private one, of the wide range that its range is looked for in.

    Raises: BadInput for a column with neither: then there are no public bins.
    """
    span = limits or wide
    if span is None:
        raise BadInput(
            f"Column {name!r} has no range, so there are no public bins to count it in: declare one in data.numeric, or in"
            " data.wide for a private one."
        )
    edges = tuple(float(edge) for edge in np.linspace(*span, BINS + 1))
    return NumericColumn(name, place, edges, limits)
