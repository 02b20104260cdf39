"""Columns of text as features, by the columns of an encoder, which holds public rules only.

A numeric column with a declared range becomes (value - low)/(high - low), clamped to [0, 1]; one without stays as it is. A
categorical column becomes one 0/1 feature per declared value. The width of the result depends on the declarations alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.data.csv_text import MISSING, Cells, Table, is_number
from tacit.data.encoder import DROP, OTHER, REFUSE, Column
from tacit.data.names import plain
from tacit.errors import BadData

Change = tuple[str, str]  # what was done, and to which column
FILLED, TO_OTHER, CLAMPED, DROPPED = "filled", "other", "clamped", "dropped"

LEAVE_OUT = ", or leave the row out"
MOST_NAMED = 5  # values in one sentence


@dataclass(frozen=True, eq=False)
class Encoded:
    """The features of the rows that are kept, which rows these are, and where reading changed a value."""

    x: np.ndarray
    kept: np.ndarray
    changes: dict[Change, np.ndarray]  # a mark for every row of the table


def encode(table: Table, columns: Sequence[Column], *, trained: bool = False) -> Encoded:
    """Turns the rows of a table into float32 features; where a model is `trained` already, no declaration can be changed any more.

    Raises: BadData naming file, line, column and value.
    """
    rows = len(table.lines)
    absent = {column.name: _absent(table.columns[column.name], column) for column in columns}
    for column in columns:
        if column.missing == REFUSE and absent[column.name].any():
            place = table.place(int(np.argmax(absent[column.name])), column.name)
            before = (
                '; before training data.missing may be "drop", a number (of texts: "missing", or one of their values), or a table'
                " of them by column"
            )
            raise BadData(f"{place} is missing: fill it in{LEAVE_OUT if trained else before}.")
    gaps = [absent[column.name] for column in columns if column.missing == DROP]
    kept = ~np.any(gaps, axis=0) if gaps else np.ones(rows, bool)
    blocks: list[np.ndarray] = []
    changes: dict[Change, np.ndarray] = {}
    for column in columns:
        cells, gone = table.columns[column.name], absent[column.name]
        one = _categories if column.values is not None else _numeric
        block, what, where = one(table, column, cells, gone, trained=trained)
        blocks.append(block)
        found = {what: where & kept & ~gone, FILLED: gone & kept if column.fills else None}
        changes |= {(did, column.name): rows for did, rows in found.items() if rows is not None and rows.any()}
    if not kept.all():
        changes[DROPPED, ""] = ~kept
    return Encoded(np.concatenate(blocks, axis=1)[kept], kept, changes)


def _absent(cells: Cells, column: Column) -> np.ndarray:
    """Which cells say that there is no value; a declared value such as "NA" is one."""
    if isinstance(cells, np.ndarray):
        return np.isnan(cells)
    marks = MISSING.difference(column.values or ())
    return np.fromiter((cell in marks for cell in cells), bool, len(cells))


def _numeric(
    table: Table, column: Column, cells: Cells, absent: np.ndarray, *, trained: bool
) -> tuple[np.ndarray, str, np.ndarray]:
    """A numeric column as [n, 1], or [n, 2] with its indicator, and which values were clamped."""
    values = _numbers(table, column, cells, absent, trained=trained)
    clamped = np.zeros(len(values), bool)
    if column.limits is not None:
        within = np.clip(values, *column.limits)
        clamped = within != values
        values = (within - column.limits[0]) / (column.limits[1] - column.limits[0])
    parts = [values, *([absent] if column.indicator else [])]
    return np.stack([part.astype(np.float32) for part in parts], axis=1), CLAMPED, clamped


def _numbers(table: Table, column: Column, cells: Cells, absent: np.ndarray, *, trained: bool) -> np.ndarray:
    """A numeric column as [n], before it is scaled; without a range it must fit into 32 bits as it stands."""
    fill = 0.0 if isinstance(column.missing, str) else column.missing
    if isinstance(cells, np.ndarray):
        values = np.where(absent, fill, cells)
    else:
        if absent.any():
            cells = [repr(fill) if gone else cell for cell, gone in zip(cells, absent, strict=True)]
        values = _parsed(table, column, cells, trained=trained)
    finite = np.isfinite(values)
    if column.limits is None:
        finite &= np.abs(values) <= np.finfo(np.float32).max
    if not finite.all():
        row = int(np.argmin(finite))
        raise BadData(
            f"{table.place(row, column.name)} is {str(cells[row])!r}, which is not a finite 32-bit number: correct it.",
            cell=str(cells[row]),
        )
    return values


def _parsed(table: Table, column: Column, cells: Cells, *, trained: bool) -> np.ndarray:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if not is_number(cell))
        before = "; before training the column may be declared in data.categorical, or named in data.ignore"
        then = LEAVE_OUT if trained else before
        raise BadData(
            f"{table.place(row, column.name)} is {cells[row]!r}, which is not a number: correct it{then}.",
            cell=cells[row],
        ) from None


def _categories(
    table: Table, column: Column, cells: Cells, absent: np.ndarray, *, trained: bool
) -> tuple[np.ndarray, str, np.ndarray]:
    """A categorical column as [n, values], one feature per declared value, and which cells fell into "other"."""
    values = column.values or ()
    texts = [str(cell) for cell in cells] if isinstance(cells, np.ndarray) else cells
    code_of = {plain(value): code for code, value in enumerate(values)} | {v: code for code, v in enumerate(values)}
    known = {cell: code_of.get(cell, code_of.get(plain(cell), -1)) for cell in set(texts)}
    codes = np.fromiter((known[cell] for cell in texts), np.int64, len(texts))
    codes[absent] = code_of[str(column.missing)] if column.fills else 0
    unknown = codes < 0
    if unknown.any() and OTHER not in code_of:
        row = int(np.argmax(unknown))
        some = ", ".join(map(repr, values[:MOST_NAMED])) + ", ..." * (len(values) > MOST_NAMED)
        now = f"leave the row out, or write one of those that the model was trained with: {some}"
        before = (
            f"correct it; before training data.categorical.{column.name} may declare it, or"
            f' "{OTHER}" to take every unknown one'
        )
        wrong = f"{texts[row]!r}, which is none of its declared values"
        raise BadData(
            f"{table.place(row, column.name)} is {wrong}: {now if trained else before}.",
            cell=texts[row],
        )
    codes[unknown] = code_of.get(OTHER, 0)
    out = np.zeros((len(texts), len(values)), np.float32)
    out[np.arange(len(texts)), codes] = 1
    return out, TO_OTHER, unknown
