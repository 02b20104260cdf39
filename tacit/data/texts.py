"""Texts: labels and clients by name, in an order a person would write them in; and csv files as columns of text, block by block,
so that no more than a block of rows is ever held as text."""

import contextlib
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from tacit import check
from tacit.errors import BadData, BadInput

if TYPE_CHECKING:
    from _csv import Reader

FROM_DATA = "from-data"
NUMBERS = "numbers"  # targets are no classes at all
FROM_DATA_NOTE = "the set of labels, which was taken from the data, is public"

DECIMAL = re.compile(r"([+-]?)(0|[1-9]\d*)(?:\.(\d*))?", re.ASCII)

Word = Annotated[str, Field(coerce_numbers_to_str=True)]  # [0, 1] are names
Classes = int | str | tuple[Word, ...]  # the labels, how many there are, "from-data" or "numbers"
Coded = tuple[tuple[str, ...], np.ndarray]  # the distinct texts and, for every row, which of them it has


def coded(texts: Sequence[str] | np.ndarray) -> Coded:
    """Distinct texts and their positions; integers count as their digits."""
    values = np.asarray(texts)
    names, codes = np.unique(values if values.dtype.kind in "iu" else values.astype(str), return_inverse=True)
    return tuple(str(name) for name in names.tolist()), codes.astype(np.int32)


def merged(parts: Sequence[Coded]) -> Coded:
    """Several codings as one, with the names in natural order.

    >>> merged([coded(["b10", "b9"]), coded(["a"])])[0]
    ('a', 'b9', 'b10')
    """
    names = in_natural_order({name for known, _ in parts for name in known})
    code_of = {name: code for code, name in enumerate(names)}
    recoded = [np.array([code_of[name] for name in known], np.int32)[codes] for known, codes in parts]
    return names, np.concatenate(recoded)


def plain(text: str) -> str:
    """A number as it is written shortest, so that 1.0 and 1 are one name; every other text, 007 too, as it stands.

    >>> [plain(text) for text in ("1.0", "+1.", "-0.50", "-0.0", "007", "f", "12345678901234567890.0")]
    ['1', '1', '-0.5', '0', '007', 'f', '12345678901234567890']
    """
    found = DECIMAL.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction = found[1], found[2], (found[3] or "").rstrip("0")
    minus = "-" if sign == "-" and (whole != "0" or fraction) else ""
    return f"{minus}{whole}{'.' * bool(fraction)}{fraction}"


def in_natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts "client2" before "client10".

    >>> in_natural_order(["b10", "a", "b9", "9"])
    ('9', 'a', 'b9', 'b10')
    """

    def parts(name: str) -> list[tuple[bool, int, str]]:
        found = (part for part in re.split(r"(\d+)", name) if part)
        return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in found]

    return tuple(sorted(names, key=parts))


def declared(classes: int | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(number) for number in range(classes)) if isinstance(classes, int) else classes


def classes(
    said: int | str | tuple[str, ...] | None, found: Sequence[Coded]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class names, and a note where they were not declared. Raises: BadInput if nothing was said, BadData."""
    if said == FROM_DATA:
        if len(known := merged(found)[0]) < 2:
            raise BadData(f"Expected at least 2 labels in the data, found {', '.join(known) or 'none'}.")
        return known, (FROM_DATA_NOTE,)
    if said is None or isinstance(said, str):
        raise BadInput(f"Expected data.classes to declare the labels, or to say {FROM_DATA!r}.")
    return declared(said), ()


def refuse_undeclared(source: str, path: str | None, classes: Classes | None) -> None:
    """Refuses a person's own file that is not named, and labels that are not declared. Raises BadInput."""
    if path is None:
        raise BadInput(f'Expected data.path to say where the {source} data is, as in path = "records.{source}".')
    refuse_classes(classes, key="data.classes")


def refuse_classes(classes: Classes | None, *, key: str) -> None:
    """Refuses labels that are not declared; `key` is where they should have been. Raises BadInput."""
    if classes == NUMBERS:
        return
    if classes is None or (isinstance(classes, str) and classes != FROM_DATA):
        raise BadInput(
            f'Expected {key} to declare the labels, as in classes = ["no", "yes"] or classes = 10; '
            'classes = "from-data" makes the labels found in the data public, and classes = "numbers" is for a regression.'
        )
    count = classes if isinstance(classes, int) else len(set(classes))
    if count < 2 or (isinstance(classes, tuple) and count < len(classes)):
        raise BadInput(f"Expected {key} to declare at least 2 labels, each once, got {classes!r}.")


# csv files, block by block.

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
    """The rows of a file as text, block by block; `ignored = None` passes over every column that is not wanted. Raises: BadData."""
    with _opened(path) as reader:
        head, first = _first_line(reader, path, heading)
        refuse_absent(path, wanted, head)
        extra = [column for column in head if ignored is not None and column not in wanted and column not in ignored]
        if extra:
            raise BadData(
                f"{path} has a column {extra[0]!r} that is no feature of this experiment: remove it, or list the features in"
                " data.columns.",
                cell=extra[0],  # of a file without a first line of names it is a record's
            )
        filled = ((reader.line_num, row) for row in chain(first, reader) if row)
        while block := list(islice(filled, BLOCK_ROWS)):
            for line, row in block:
                if len(row) != len(head):
                    raise BadData(f"{path}, line {line} has {len(row)} cells, expected {len(head)}.")
            columns = zip(*([cell.strip() for cell in row] for _, row in block), strict=True)
            yield Table(path, [line for line, _ in block], dict(zip(head, columns, strict=True)))


def header(path: Path, heading: Heading = NAMES_FIRST) -> list[str]:
    with _opened(path) as reader:
        return _first_line(reader, path, heading)[0]


def refuse_absent(path: Path | str, wanted: Sequence[str], head: Sequence[str]) -> None:
    """Refuses a file, or rows for a model (a text), that lack a column, and names the nearest one. Raises: BadData."""
    if absent := [column for column in wanted if column not in head]:
        near = check.nearest(absent[0], [name for name in head if name not in wanted])
        file = isinstance(path, Path)
        text = f"{path} {'has' if file else 'have'} no column {absent[0]!r}"
        raise no_column(
            f"{text}: every file needs the same columns." if file else f"{text}, which the model needs.", near, head
        )


def no_column(text: str, near: str, head: Sequence[str]) -> BadData:
    """The refusal of a column that a file has not: with the nearest that it has, else with all. Guarantee: none of them is in
    the discreet message, as of a file without a first line of names they are a record's cells."""
    if not near:
        return BadData(text, hint=check.listed(head))
    return BadData(f"{text}{near}", cell=next((name for name in head if repr(name) in near), None))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator["Reader"]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield csv.reader(file, skipinitialspace=True, strict=True)
    except (OSError, csv.Error) as error:
        raise BadData(f"{path} cannot be read as csv in UTF-8 ({error}): correct it.") from error
    except UnicodeDecodeError as error:  # its own words quote a byte of the file
        raise BadData(f"{path} cannot be read as csv in UTF-8 (byte {error.start} is none): correct it.") from None


def _first_line(reader: "Reader", path: Path, heading: Heading) -> tuple[list[str], list[list[str]]]:
    row = next(reader, [])
    head = [name.strip() for name in row]
    if not head:
        raise BadData(f"{path} is empty: expected a first line with the names of the columns.")
    if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
        raise BadData(f"{path} does not separate its cells by commas: write them as in {'a,b,c'!r}.")
    is_record = not heading.expected.intersection(head)
    if heading.names and is_record:
        for known in (heading.names, tuple(name for name in heading.names if name != heading.optional)):
            if len(known) == len(head):
                return list(known), [row]
        raise BadData(f"{path}, line 1 has {len(head)} cells, and data.header names {len(heading.names)} columns.")
    if heading.expected and is_record and any((cell in MISSING and bool(cell)) or is_number(cell) for cell in head):
        raise BadData(
            f"{path} begins with a record, not with the names of its columns: add a first line of names, or list them in"
            ' data.header = ["...", ...].'
        )
    if twice := [name for name in head if head.count(name) > 1]:
        raise BadData(f"{path} has two columns named {twice[0]!r}: rename one.", cell=twice[0])
    return head, []


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def listing(named: str | Sequence[str] | None, *, key: str = "data.path") -> list[Path]:
    """The files meant by a path: itself, several, or the csv files in the folder; `key` is what names it. Raises: BadData."""
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
    stems = in_natural_order(file.stem for file in path.glob("*.csv"))
    if not stems:
        raise BadData(f"{named} holds no .csv files: expected one per client, named after it.")
    return [path / f"{stem}.csv" for stem in stems]
