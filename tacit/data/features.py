"""Columns of text as features, by the columns of an encoder, which holds public rules only.

A numeric column with a declared range becomes (value - low)/(high - low), clamped to [0, 1]; one without stays as it is. A
categorical column becomes one 0/1 feature per declared value. The width of the result depends on the declarations alone."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit import check
from tacit.data import names
from tacit.data.encoder import DROP, OTHER, REFUSE, Column
from tacit.data.names import plain
from tacit.errors import BadData

# csv files as columns of text, block by block, so that no more than a block of rows is ever held as text.

if TYPE_CHECKING:
    from _csv import Reader

BLOCK_ROWS = 20_000
MISSING = frozenset(("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"))

Cells = Sequence[str] | np.ndarray  # texts, or numbers that somebody's own table has


@dataclass(frozen=True)
class Table:
    """Some rows of one file as text, with the line each row ends on; or of a table in memory, with their numbers."""

    path: Path | str
    lines: Sequence[int]
    columns: dict[str, Cells]
    unit: str = "line"

    def place(self, row: int, column: str | None = None) -> str:
        """The words that point at one row, or at one of its cells."""
        cell = "" if column is None else f", column {column!r}"
        return f"{self.path}, {self.unit} {self.lines[row]}{cell}"


@dataclass(frozen=True)
class Heading:
    """What is known of a file's first line: `names` where files have none, and `expected` names that a first line has."""

    names: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()
    optional: str | None = None  # a column that a file without a first line may lack: the label of new rows


NAMES_FIRST = Heading()


def tables(
    path: Path, wanted: Sequence[str], *, ignored: Sequence[str | None] | None = (), heading: Heading = NAMES_FIRST
) -> Iterator[Table]:
    """The rows of a file as text, block by block; `ignored = None` passes over every column that is not wanted.

    Raises: BadData for a row or a first line of another shape.
    """
    with _opened(path) as reader:
        head, first = _first_line(reader, path, heading)
        refuse_absent(path, wanted, head)
        extra = [column for column in head if ignored is not None and column not in wanted and column not in ignored]
        if extra:
            raise BadData(
                f"{path} has a column {extra[0]!r} that is no feature of this experiment: remove it or name it in data.ignore.",
                cell=extra[0],  # of a file without a first line of names it is a record's
            )
        rows, lines = [], []
        for row in filter(None, chain(first, reader)):
            if len(row) != len(head):
                raise BadData(f"{path}, line {reader.line_num} has {len(row)} cells, expected {len(head)}.")
            rows.append([cell.strip() for cell in row])
            lines.append(reader.line_num)
            if len(rows) == BLOCK_ROWS:
                yield Table(path, lines, dict(zip(head, zip(*rows, strict=True), strict=True)))
                rows, lines = [], []
        if rows:
            yield Table(path, lines, dict(zip(head, zip(*rows, strict=True), strict=True)))


def header(path: Path, heading: Heading = NAMES_FIRST) -> list[str]:
    """The names of a file's columns. Raises: BadData."""
    with _opened(path) as reader:
        return _first_line(reader, path, heading)[0]


def refuse_absent(path: Path | str, wanted: Sequence[str], head: Sequence[str]) -> None:
    """Refuses a table that lacks a column, and names the nearest that it has. Raises: BadData."""
    absent = [column for column in wanted if column not in head]
    if not absent:
        return
    near = check.nearest(absent[0], [name for name in head if name not in wanted])
    raise no_column(f"{path} has no column {absent[0]!r}: every file needs the same columns.", near, head)


def no_column(text: str, near: str, head: Sequence[str]) -> BadData:
    """The refusal of a column that a file has not: with the nearest that it has, else with all.

    Guarantee: none of them is in the discreet message, as of a file without a first line of names they are a record's cells.
    """
    if not near:
        return BadData(text, hint=check.listed(head))
    return BadData(f"{text}{near}", cell=next((name for name in head if repr(name) in near), None))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator["Reader"]:
    """A csv reader that refuses what is not text or not csv by the name of the file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield csv.reader(file, skipinitialspace=True, strict=True)
    except (OSError, csv.Error) as error:
        raise BadData(f"{path} cannot be read as csv in UTF-8 ({error}): correct it.") from error
    except UnicodeDecodeError as error:  # its own words quote a byte of the file
        raise BadData(f"{path} cannot be read as csv in UTF-8 (byte {error.start} is none): correct it.") from None


def _first_line(reader: "Reader", path: Path, heading: Heading) -> tuple[list[str], list[list[str]]]:
    """The column names, and the first line where it is a record already."""
    row = next(reader, [])
    head = [name.strip() for name in row]
    if not head:
        raise BadData(f"{path} is empty: expected a first line with the names of the columns.")
    if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
        raise BadData(f"{path} does not separate its cells by commas: write them as in {'a,b,c'!r}.")
    if heading.names and not heading.expected.intersection(head):
        return _declared(head, path, heading), [row]
    if heading.expected and not heading.expected.intersection(head) and any(map(_is_value, head)):
        raise BadData(
            f"{path} begins with a record, not with the names of its columns: add a first line of names, or list them in"
            ' data.header = ["...", ...].'
        )
    if twice := [name for name in head if head.count(name) > 1]:
        raise BadData(f"{path} has two columns named {twice[0]!r}: rename one.", cell=twice[0])
    return head, []


def _declared(head: Sequence[str], path: Path, heading: Heading) -> list[str]:
    """The declared names of a file without a first line of names."""
    for names_ in (heading.names, tuple(name for name in heading.names if name != heading.optional)):
        if len(names_) == len(head):
            return list(names_)
    raise BadData(f"{path}, line 1 has {len(head)} cells, and data.header names {len(heading.names)} columns.")


def _is_value(cell: str) -> bool:
    """Whether a cell of a first line can hardly be a name: a number, or a mark of a missing value."""
    return (cell in MISSING and bool(cell)) or is_number(cell)


def is_number(cell: str) -> bool:
    """Whether a cell reads as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def listing(named: str | Sequence[str] | None, *, key: str = "data.path") -> list[Path]:
    """The files meant by a path: itself, several, or the csv files in the folder; `key` is what names it.

    Raises: BadData if there are none.
    """
    if named is None:
        return []
    if not isinstance(named, str):
        found = [file for one in named for file in listing(one, key=key)]
        if len({file.stem for file in found}) < len(found):
            raise BadData(f"Two files of {key} have one name, which is their client's: rename one.")
        return found
    path = Path(named).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadData(f"{named} does not exist: correct {key}.")
    stems = names.in_natural_order(file.stem for file in path.glob("*.csv"))
    if not stems:
        raise BadData(f"{named} holds no .csv files: expected one per client, named after it.")
    return [path / f"{stem}.csv" for stem in stems]


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
