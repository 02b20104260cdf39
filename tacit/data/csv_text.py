"""csv files as columns of text, block by block, so that no more than a block of rows is ever held as text."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.data import names
from tacit.errors import BadData

if TYPE_CHECKING:
    from _csv import Reader

BLOCK_ROWS = 20_000


@dataclass(frozen=True)
class Table:
    """Some rows of one file as text, with the line each row ends on."""

    path: Path
    lines: Sequence[int]
    columns: dict[str, Sequence[str]]


def tables(path: Path, wanted: Sequence[str], *, ignored: Sequence[str | None] = ()) -> Iterator[Table]:
    """The rows of a file as text, block by block. Raises: BadData for a row or a first line of another shape."""
    with _opened(path) as reader:
        head = _first_line(reader, path)
        if absent := [column for column in wanted if column not in head]:
            raise BadData(f"{path} has no column {absent[0]!r}: every file needs the same columns.")
        if extra := [column for column in head if column not in wanted and column not in ignored]:
            raise BadData(
                f"{path} has a column {extra[0]!r} that is no feature of this experiment: remove it or name it in data.ignore.",
                cell=extra[0],  # of a file without a first line of names it is a record's
            )
        rows, lines = [], []
        for row in filter(None, reader):
            if len(row) != len(head):
                raise BadData(f"{path}, line {reader.line_num} has {len(row)} cells, expected {len(head)}.")
            rows.append([cell.strip() for cell in row])
            lines.append(reader.line_num)
            if len(rows) == BLOCK_ROWS:
                yield Table(path, lines, dict(zip(head, zip(*rows, strict=True), strict=True)))
                rows, lines = [], []
        if rows:
            yield Table(path, lines, dict(zip(head, zip(*rows, strict=True), strict=True)))


def header(path: Path) -> list[str]:
    """The names of a file's columns. Raises: BadData."""
    with _opened(path) as reader:
        return _first_line(reader, path)


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


def _first_line(reader: "Reader", path: Path) -> list[str]:
    """The column names in the first line."""
    head = [name.strip() for name in next(reader, [])]
    if not head:
        raise BadData(f"{path} is empty: expected a first line with the names of the columns.")
    if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
        raise BadData(f"{path} does not separate its cells by commas: write them as in {'a,b,c'!r}.")
    if twice := [name for name in head if head.count(name) > 1]:
        raise BadData(f"{path} has two columns named {twice[0]!r}: rename one.", cell=twice[0])
    return head


def listing(named: str | None) -> list[Path]:
    """The files meant by a path: itself, or the csv files in the folder. Raises: BadData if there are none."""
    if named is None:
        return []
    path = Path(named).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadData(f"{named} does not exist: correct data.path or data.test_path.")
    stems = names.in_natural_order(file.stem for file in path.glob("*.csv"))
    if not stems:
        raise BadData(f"{named} holds no .csv files: expected one per client, named after it.")
    return [path / f"{stem}.csv" for stem in stems]
