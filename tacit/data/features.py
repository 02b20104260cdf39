"""Columns of text as features, by public rules only.

A numeric column with a declared range becomes (value - low)/(high - low), clamped to [0, 1]; one without stays as it
is. A categorical column becomes one 0/1 feature per declared value. The width of the result depends on the
declarations alone.
"""

from collections.abc import Sequence

import numpy as np

from tacit.data.csv_text import Table
from tacit.data.section import DataSection
from tacit.errors import BadData

MISSING = frozenset(("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"))
OTHER = "other"
MISSING_CATEGORY = "missing"


def encode(table: Table, columns: Sequence[str], section: DataSection) -> tuple[np.ndarray, np.ndarray]:
    """Turns the rows of a table into float32 features, and says which rows are kept.

    Raises: BadData naming file, line, column and value.
    """
    absent = {column: _absent(table.columns[column], section.categorical.get(column, ())) for column in columns}
    kept = ~np.any(list(absent.values()), axis=0)
    if section.missing == "refuse" and not kept.all():
        column = next(column for column in columns if absent[column].any())
        raise BadData(
            f"{_place(table, int(np.argmax(absent[column])), column)} is missing: fill it in, or set data.missing to "
            '"drop" or to a number.'
        )
    fill = section.missing if isinstance(section.missing, float) else 0.0
    blocks = [
        _categories(table, column, absent[column], section)
        if column in section.categorical
        else _numbers(table, column, absent[column], fill=fill, limits=section.numeric.get(column))
        for column in columns
    ]
    kept = kept if section.missing == "drop" else np.ones(len(table.lines), bool)
    return np.concatenate(blocks, axis=1)[kept], kept


def _absent(cells: Sequence[str], values: Sequence[str]) -> np.ndarray:
    """Which cells say that there is no value; a declared value such as "NA" is one."""
    marks = MISSING.difference(values)
    return np.fromiter((cell in marks for cell in cells), bool, len(cells))


def _numbers(
    table: Table, column: str, absent: np.ndarray, *, fill: float, limits: tuple[float, float] | None
) -> np.ndarray:
    """A numeric column as [n, 1]."""
    cells = table.columns[column]
    if absent.any():
        cells = [repr(fill) if gone else cell for cell, gone in zip(cells, absent, strict=True)]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if not _is_number(cell))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which is not a number: correct it, declare the column in "
            "data.categorical, or name it in data.ignore."
        ) from None
    finite = np.isfinite(values)
    if limits is not None:
        values = (np.clip(values, *limits) - limits[0]) / (limits[1] - limits[0])
    else:
        finite &= np.abs(values) <= np.finfo(np.float32).max
    if not finite.all():
        row = int(np.argmin(finite))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which is not a finite 32-bit number: correct it."
        )
    return values.astype(np.float32)[:, None]


def _categories(table: Table, column: str, absent: np.ndarray, section: DataSection) -> np.ndarray:
    """A categorical column as [n, values], one feature per declared value."""
    vocabulary = _vocabulary(column, section)
    place = {value: code for code, value in enumerate(vocabulary)}
    cells, other = table.columns[column], place.get(OTHER, -1)
    codes = np.fromiter((place.get(cell, other) for cell in cells), np.int64, len(cells))
    codes[absent] = place.get(MISSING_CATEGORY, 0)
    if (codes < 0).any():
        row = int(np.argmin(codes))
        raise BadData(
            f"{_place(table, row, column)} is {cells[row]!r}, which data.categorical.{column} does not declare: add "
            f'it, or declare the value "{OTHER}" to take every unknown one.'
        )
    out = np.zeros((len(cells), len(vocabulary)), np.float32)
    out[np.arange(len(cells)), codes] = 1
    return out


def _vocabulary(column: str, section: DataSection) -> tuple[str, ...]:
    """The declared values, and "missing" where missing values are filled in."""
    values = section.categorical[column]
    return values if isinstance(section.missing, str) or MISSING_CATEGORY in values else (*values, MISSING_CATEGORY)


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
