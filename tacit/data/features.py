"""Columns of text as features, by public rules only.

A numeric column with a declared range becomes (value - low)/(high - low), clamped to [0, 1]; one without stays as it
is. A categorical column becomes one 0/1 feature per declared value. The width of the result depends on the
declarations alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tacit.data.csv_text import Table
from tacit.errors import BadData

if TYPE_CHECKING:
    from tacit.data.sources.csv import csv

MISSING = frozenset(("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"))
OTHER = "other"
MISSING_CATEGORY = "missing"


def encode(table: Table, columns: Sequence[str], source: "csv") -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Turns the rows of a table into float32 features; says which rows are kept and how many values were clamped.

    Raises: BadData naming file, line, column and value.
    """
    absent = {column: _absent(table.columns[column], source.categorical.get(column, ())) for column in columns}
    kept = ~np.any(list(absent.values()), axis=0)
    if source.missing == "refuse" and not kept.all():
        column = next(column for column in columns if absent[column].any())
        raise BadData(
            f"{_place(table, int(np.argmax(absent[column])), column)} is missing: fill it in, or set data.missing to "
            '"drop" or to a number.'
        )
    fill = source.missing if isinstance(source.missing, float) else 0.0
    kept = kept if source.missing == "drop" else np.ones(len(table.lines), bool)
    blocks, clamped = [], {}
    for column in columns:
        if column in source.categorical:
            blocks.append(_categories(table, column, absent[column], source))
            continue
        limits = source.numeric.get(column)
        values = _numbers(table, column, absent[column], fill=fill, ranged=limits is not None)
        if limits is not None:
            within = np.clip(values, *limits)
            clamped[column] = int(((within != values) & kept & ~absent[column]).sum())
            values = (within - limits[0]) / (limits[1] - limits[0])
        blocks.append(values.astype(np.float32)[:, None])
    return np.concatenate(blocks, axis=1)[kept], kept, clamped


def encoded_width(source: "csv") -> int:
    """How many features the declared columns become: a function of the declarations alone."""
    return sum(len(_vocabulary(c, source)) if c in source.categorical else 1 for c in source.columns or ())


def _absent(cells: Sequence[str], values: Sequence[str]) -> np.ndarray:
    """Which cells say that there is no value; a declared value such as "NA" is one."""
    marks = MISSING.difference(values)
    return np.fromiter((cell in marks for cell in cells), bool, len(cells))


def _numbers(table: Table, column: str, absent: np.ndarray, *, fill: float, ranged: bool) -> np.ndarray:
    """A numeric column as [n], before it is scaled; without a range it must fit into 32 bits as it stands."""
    cells = table.columns[column]
    if absent.any():
        cells = [repr(fill) if gone else cell for cell, gone in zip(cells, absent, strict=True)]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if not _is_number(cell))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which is not a number: correct it, declare the column in "
            "data.categorical, or name it in data.ignore.",
            cell=cells[row],
        ) from None
    finite = np.isfinite(values)
    if not ranged:
        finite &= np.abs(values) <= np.finfo(np.float32).max
    if not finite.all():
        row = int(np.argmin(finite))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which is not a finite 32-bit number: correct it.",
            cell=cells[row],
        )
    return values


def _categories(table: Table, column: str, absent: np.ndarray, source: "csv") -> np.ndarray:
    """A categorical column as [n, values], one feature per declared value."""
    vocabulary = _vocabulary(column, source)
    code_of = {value: code for code, value in enumerate(vocabulary)}
    cells, other = table.columns[column], code_of.get(OTHER, -1)
    codes = np.fromiter((code_of.get(cell, other) for cell in cells), np.int64, len(cells))
    codes[absent] = code_of.get(MISSING_CATEGORY, 0)
    if (codes < 0).any():
        row = int(np.argmin(codes))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which data.categorical.{column} does not declare: add "
            f'it, or declare the value "{OTHER}" to take every unknown one.',
            cell=cells[row],
        )
    out = np.zeros((len(cells), len(vocabulary)), np.float32)
    out[np.arange(len(cells)), codes] = 1
    return out


def _vocabulary(column: str, source: "csv") -> tuple[str, ...]:
    """The declared values, and "missing" where missing values are filled in."""
    values = source.categorical[column]
    return values if isinstance(source.missing, str) or MISSING_CATEGORY in values else (*values, MISSING_CATEGORY)


def _is_number(cell: str) -> bool:
    """Whether a cell reads as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _place(table: Table, row: int, column: str) -> str:
    """The words that point at one cell."""
    return f"{table.path}, line {table.lines[row]}, column {column!r}"
