"""Ranges of numeric columns from noisy histograms: bins whose edges double, from 2^-20 to 2^40 on both sides of zero, or 64
equal bins of a declared `wide` range. The range is from the lowest bin to the highest that hold more rows than noise and a
few outliers explain (Wilson et al. 2020, arXiv:1909.01917, section 5.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from tacit.errors import BadInput
from tacit.experiment.extras import RANGES
from tacit.privacy.queries.evaluation import Cells, OneCell, Values, combine
from tacit.privacy.queries.mechanism import Counts
from tacit.types import Client

SMALLEST, LARGEST = -20, 40  # exponents of two
EQUAL = 64  # bins of a declared wide range
FEWEST = 0.005  # of the rows: what is rarer may lie outside, and is clamped
DOUBT = 0.01  # how probable it may be that noise alone makes any bin of any column count
HALF = 0.5
COARSEST = 0.25  # of the rows: where noise hides bins with so many, nothing can be found

Range = tuple[float, float]


@dataclass(frozen=True)
class Ranges:
    """The query: of each column a histogram of the raw values, over public edges; a record adds 1 to one cell of each.
    `places` are the columns' positions among the features of a row that is read unscaled. Raises BadInput for noise that
    would hide all but the very common values, before anything is asked."""

    columns: tuple[str, ...]
    places: tuple[int, ...]
    wide: tuple[Range | None, ...]
    name: str = RANGES

    @property
    def edges(self) -> list[np.ndarray]:
        """The inner edges of every column's bins; what lies beyond is in the outermost."""
        return [doubling() if wide is None else np.linspace(*wide, EQUAL + 1)[1:-1] for wide in self.wide]

    @property
    def cells(self) -> int:
        return sum(len(edges) + 1 for edges in self.edges)

    @property
    def l2_squared(self) -> int:
        return len(self.columns)

    def count(self, client: Client) -> Counts:
        x = client.x.cpu().numpy()
        counts = [
            np.bincount(np.searchsorted(edges, x[:, place].astype(np.float64), side="right"), minlength=len(edges) + 1)
            for place, edges in zip(self.places, self.edges, strict=True)
        ]
        return Counts(np.concatenate(counts).astype(np.int64), self.l2_squared)

    def threshold(self, sizes: np.ndarray, stds: np.ndarray) -> float:
        """The share of all rows that a bin must seem to hold to count: more than noise makes of an empty one, and than
        outliers. It follows from the clients' declared sizes and the noise alone."""
        weights = _weights(sizes, stds)
        variances = np.where(stds > 0, stds**2 + HALF**2, 0.0)  # rounding takes a count at most half a row further
        std = math.sqrt(float((weights**2 * variances).sum())) / float(weights @ sizes)
        return max(FEWEST, -float(ndtri(DOUBT / self.cells)) * std)

    def refuse_coarse(self, sizes: np.ndarray, stds: np.ndarray) -> None:
        """Raises BadInput where noise would hide all values that fewer than a quarter of the rows have."""
        share = self.threshold(sizes, stds)
        if share > COARSEST:
            raise BadInput(
                f"The noise of private ranges would hide every value that fewer than {100 * share:.0f} % of the rows are near:"
                " raise privacy.query_shares.ranges or epsilon, ask for fewer columns, or declare ranges in data.numeric."
            )

    def refuse_impossible(self, ranges: Mapping[str, Range]) -> None:
        """Refuses ranges that no answers to this query lead to. Guarantee: what passes is one range for each of the columns,
        from the beginning of one of its public bins to the end of one: finite, low < high, and nowhere else than rows were
        looked for. Raises: BadInput."""
        if set(ranges) != set(self.columns):
            raise BadInput(
                f"it gives the ranges of {len(ranges)} columns, which are not the {len(self.columns)} private ones"
            )
        for column, edges, wide in zip(self.columns, self.edges, self.wide, strict=True):
            begins, ends = _ends(edges, wide)
            low, high = ranges[column]
            point = (low, high) == _range(low, low) and bool(((begins == low) & (ends == low)).any())
            if not low < high or low not in begins or not (high in ends or point):
                raise BadInput(f"no histogram of {column!r} shows the range {low!r} to {high!r}")

    def found(self, answers: Sequence[np.ndarray], sizes: np.ndarray, stds: np.ndarray) -> dict[str, Range]:
        """The range of every column, from the noised counts of the clients that answered, weighed by their noise."""
        weights, least = _weights(sizes, stds), self.threshold(sizes, stds)
        shares = np.stack(answers).T.astype(np.float64) @ weights / float(weights @ sizes)
        ranges, start = {}, 0
        for column, edges, wide in zip(self.columns, self.edges, self.wide, strict=True):
            part, start = shares[start : start + len(edges) + 1], start + len(edges) + 1
            kept = np.flatnonzero(part > least)
            kept = kept if len(kept) else np.array([int(np.argmax(part))])
            low, high = _ends(edges, wide)
            ranges[column] = _range(float(low[kept[0]]), float(high[kept[-1]]))
        return ranges


def doubling() -> np.ndarray:
    """The edges of bins that double: -2^40, ..., -2^-20, 2^-20, ..., 2^40. Between the two smallest is zero."""
    ends = 2.0 ** np.arange(SMALLEST, LARGEST + 1)
    return np.concatenate([-ends[::-1], ends])


def _weights(sizes: np.ndarray, stds: np.ndarray) -> np.ndarray:
    return np.ones(len(sizes)) if not stds.any() else sizes / np.maximum(stds, stds.max() * 1e-9) ** 2


def _ends(edges: np.ndarray, wide: Range | None) -> tuple[np.ndarray, np.ndarray]:
    """Where each bin begins and ends; the outermost bins of doubling edges end there, and that of zero is zero."""
    first, last = (edges[0], edges[-1]) if wide is None else wide
    low, high = np.concatenate([[first], edges]), np.concatenate([edges, [last]])
    if wide is None:
        middle = len(edges) // 2
        low[middle] = high[middle] = 0.0
    return low, high


def _range(low: float, high: float) -> Range:
    return (low, high) if low < high else (low, low + 1.0)


def asked_ranges(private: Mapping[str, Range | None], encoder_columns: Sequence[tuple[str, int]]) -> Ranges | None:
    """The query for the `private` columns of a csv source, with where each is looked for; `encoder_columns` are (name, width) in
    the order of features."""
    columns, places, start = [], [], 0
    for name, width in encoder_columns:
        if name in private:
            columns.append(name)
            places.append(start)
        start += width
    spans = (private[name] for name in columns)
    wide = tuple(None if span is None else (float(span[0]), float(span[1])) for span in spans)
    return Ranges(tuple(columns), tuple(places), wide) if columns else None


# Columns of a federation in numbers: from one noised histogram each to counts, means and quantiles, with their
# uncertainty.

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
        return len(self.edges) - 1

    @property
    def l2_squared(self) -> int:
        return 1

    def cell(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The bin of every row."""
        values = x[:, self.place].astype(np.float64)
        if self.scaled is not None:
            values = self.scaled[0] + values * (self.scaled[1] - self.scaled[0])
        return np.searchsorted(np.array(self.edges[1:-1]), values, side="right")

    def metrics(self, counts: Cells, *, std: float) -> Values:
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
        return sum(column.cells for column in self.columns)

    @property
    def l2_squared(self) -> int:
        return len(self.columns)

    def count(self, x: np.ndarray, y: np.ndarray) -> Counts:
        counts = [np.bincount(column.cell(x, y), minlength=column.cells) for column in self.columns]
        return Counts(np.concatenate(counts).astype(np.int64), self.l2_squared)

    def statistics(self, answers: Sequence[np.ndarray], stds: np.ndarray, sizes: np.ndarray) -> list[dict[str, Any]]:
        """What the noised counts say of each column, over all clients that answered. Counts are plain sums; means and
        quantiles weigh clients by how much their counts can tell."""
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
    """A numeric column in equal bins of its declared range; of a private one, of the wide range that its range is looked for
    in. Raises: BadInput for a column with neither: then there are no public bins."""
    span = limits or wide
    if span is None:
        raise BadInput(
            f"Column {name!r} has no range, so there are no public bins to count it in: declare one in data.numeric, for a"
            " private one as {private = [low, high]}."
        )
    edges = tuple(float(edge) for edge in np.linspace(*span, BINS + 1))
    return NumericColumn(name, place, edges, limits)
