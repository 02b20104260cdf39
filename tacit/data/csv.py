"""Reads the files of the source `csv`: block by block, encoded by public rules, every refusal with its line."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit import check
from tacit.data import names
from tacit.data.columns import CLAMPED, DROPPED, FILLED, TO_OTHER, Change, Column, column_of, encode
from tacit.data.dataset import Dataset
from tacit.data.encoder import Encoder
from tacit.data.features import MISSING, Cells, Heading, Table, header, is_number, listing, no_column, tables
from tacit.data.names import Coded
from tacit.data.population import text_marks
from tacit.data.table import Table as Rows
from tacit.data.table import dataset
from tacit.errors import BadData

# From what `[data]` declares of csv columns to the encoder that reads them; and what it leaves undeclared.

if TYPE_CHECKING:
    from tacit.data.sources import csv, npz

SHOWN = 12  # columns, and values of one, that a sentence names


def encoder_of(source: "csv", columns: Sequence[str], classes: Sequence[str]) -> Encoder:
    """The encoder of these columns. Raises BadInput for declarations that contradict each other."""
    made = tuple(column_of(column, source) for column in columns)
    width = sum(column.width for column in made)
    outputs = 0 if classes else 1
    return Encoder(tuple(classes), (width,), made, label=source.label, header=source.header, outputs=outputs)


def encoded_width(source: "csv") -> int:
    """How many features the declared columns become: a function of the declarations alone."""
    return sum(column_of(column, source).width for column in source.columns or ())


def heading_of(source: "csv") -> Heading:
    """What a first line of names is known by."""
    expected = {source.label, source.client_column, *(source.columns or ()), *source.ranged, *source.categorical}
    return Heading(source.header, frozenset(name for name in expected | {*source.ignore, *source.header} if name))


def pinned_columns(source: "csv") -> tuple[str, ...]:
    """The features as the public test rows have them, so that everybody reads the same ones in the same order."""
    return feature_columns(listing(source.test_path, key="data.test_path")[0], source)


def feature_columns(path: Path, source: "csv") -> tuple[str, ...]:
    """The columns that are features: `data.columns`, or those of the first line. Raises: BadData if a named one is absent."""
    head = header(path, heading_of(source))
    for key, columns in _roles(source).items():
        for column in set(columns).difference(head):
            text = f"{path} has no column {column!r}, which data.{key} names."
            raise no_column(text, check.nearest(column, head), head)
    if source.columns is not None:
        return source.columns
    apart = {source.label, source.client_column, *source.ignore}
    if found := tuple(column for column in head if column not in apart):
        return found
    raise BadData(f"{path} has no feature columns besides {', '.join(head)}.")


def _roles(source: "csv") -> dict[str, list[str]]:
    return {
        "label": [source.label],
        "client_column": [source.client_column] if source.client_column is not None else [],
        "columns": [*(source.columns or ())],
        "numeric": [*source.ranged],
        "categorical": [*source.categorical],
        "ignore": [*source.ignore],
        "missing": [*source.missing] if isinstance(source.missing, dict) else [],
        "indicators": [*source.indicators],
    }


def declared_classes(source: "csv | npz") -> tuple[str, ...]:
    """The class names that are declared, if they are."""
    return () if source.classes is None or isinstance(source.classes, str) else names.declared(source.classes)


def refuse_undeclared(files: Sequence[Path], columns: Sequence[str], source: "csv") -> None:
    """Refuses features of which nothing is declared, and says what they span. Raises BadData.

    Whether it is refused follows from the declarations alone; what is said of the rows is for whoever holds them.
    """
    if isinstance(source.numeric, str):
        return
    open_ = [column for column in columns if column not in source.numeric and column not in source.categorical]
    if not open_:
        return
    spans = "; ".join(_spans(files, open_[:SHOWN], source))
    more = f" and {len(open_) - SHOWN} more" if len(open_) > SHOWN else ""
    named = ", ".join(map(repr, open_[:SHOWN]))
    raise BadData(
        f"data.numeric and data.categorical do not say how to read {named}{more}. In these rows they span {spans!r}: declare"
        f" ranges and values that are public, known without looking at the rows, as in numeric = {{{open_[0]} = [0, 100]}}"
        f' for numbers or categorical = {{{open_[0]} = ["a", "b"]}} for texts;'
        ' "unscaled" in place of a range takes a column as it stands, and data.ignore leaves it out.',
        cell=spans,
    )


def _spans(files: Sequence[Path], columns: Sequence[str], source: "csv") -> Iterator[str]:
    numbers: dict[str, list[float]] = {column: [] for column in columns}
    texts: dict[str, set[str]] = {column: set() for column in columns}
    for file in files:
        for table in tables(file, columns, ignored=None, heading=heading_of(source)):
            for column in columns:
                found = {cell for cell in map(str, table.columns[column]) if cell not in MISSING}
                read = [float(cell) for cell in found if is_number(cell)]
                numbers[column] += [min(read), max(read)] if read else []
                texts[column] |= {cell for cell in found if not is_number(cell)}
    for column in columns:
        ends, words = numbers[column], sorted(texts[column])
        parts = [f"{min(ends):g} to {max(ends):g}"] if ends else []
        parts += [", ".join(words[:SHOWN]) + ", ..." * (len(words) > SHOWN)] if words else []
        yield f"{column}: {' and '.join(parts) or 'nothing'}"


# What reading csv files changed or found, in words: for whoever holds the rows (at a site its own log, in a simulation
# the notes).

TEST_ROWS = "the test rows"
MOST_NAMED = 8  # clients in one note
PART = 1 << 14  # rows

Counts = Counter[tuple[str, str, str]]  # (what, column, client): how many


def counted(changes: Mapping[Change, np.ndarray], clients: Coded | None) -> Counts:
    """How often each client's values were changed; "" is a client without a name."""
    known, codes = clients or (("",), None)
    found: Counts = Counter()
    for (what, column), rows in changes.items():
        of = np.zeros(int(rows.sum()), np.int64) if codes is None else codes[rows]
        counts = np.bincount(of, minlength=len(known))
        found.update({(what, column, known[code]): int(counts[code]) for code in np.flatnonzero(counts)})
    return found


def changed(counts: Counts, ranges: Mapping[str, object]) -> Iterator[str]:
    """A note for each column and kind of change, with the clients that have most of it.

    >>> next(changed(Counter({("dropped", "", "north"): 3, ("dropped", "", "coast"): 1}), {}))
    'dropped 4 rows with missing values (north 3, coast 1)'
    """
    words = {
        DROPPED: "dropped {} row{} with missing values",
        FILLED: "filled in {} missing value{} of {!r}",
        TO_OTHER: 'took {} unknown value{} of {!r} as "other"',
        CLAMPED: "clamped {} value{} of {!r} into its declared range {}",
    }
    for what, sentence in words.items():
        for column in dict.fromkeys(column for did, column, _ in counts if did == what):
            by_client = Counter({who: n for (did, one, who), n in counts.items() if (did, one) == (what, column)})
            total = by_client.total()
            limits = ranges.get(column)
            ends = f"[{limits[0]:g}, {limits[1]:g}]" if isinstance(limits, tuple) else ""
            yield sentence.format(total, "s" * (total > 1), column, ends) + _named(by_client)


def _named(by_client: Counter[str]) -> str:
    if set(by_client) == {""}:
        return ""
    first = [f"{who} {count}" if who else str(count) for who, count in by_client.most_common(MOST_NAMED)]
    rest = len(by_client) - len(first)
    return f" ({', '.join([*first, *([f'{rest} more'] if rest else [])])})"


def same_files(files: Sequence[Path]) -> Iterator[str]:
    """A note for each two files of the same bytes: whoever is in one of them is in the other, too."""
    if len(files) < 2:
        return
    first: dict[bytes, Path] = {}
    for file in dict.fromkeys(files):
        mark = _mark(file)
        if mark in first:
            both = f"{first[mark].name} and {file.name}"
            yield f"{both} hold the same rows: each of them counts in both, and no single epsilon holds for it"
        first.setdefault(mark, file)


def repeated(rows: Rows) -> Iterator[str]:
    """A note where rows equal another one: somebody with k records has about k times the epsilon of one."""
    known: set[int] = set()
    for x, y in zip(rows.x.split(PART), np.split(rows.y, range(PART, len(rows.y), PART)), strict=True):
        content, width = x.numpy().tobytes(), x.shape[1:].numel() * x.element_size()
        known.update(hash((content[row * width : (row + 1) * width], int(label))) for row, label in enumerate(y))
    if again := len(rows.y) - len(known):
        yield (
            f"{again} of {len(rows.y)} rows repeat{'s' * (again == 1)} an earlier one: if these are one person's, the"
            " epsilon of a record is not that person's"
        )


def _mark(file: Path) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, partial(hashlib.blake2b, digest_size=16)).digest()


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of one file, encoded; labels and clients by their own names; what reading changed, by client."""

    x: np.ndarray
    labels: names.Coded
    clients: names.Coded | None
    changes: Counts
    marks: list[bytes]  # of its rows as they were written


def load(source: "csv", *, seed: int) -> Dataset:
    """Reads csv files as [n, features]. Raises: BadData naming file, line and column."""
    files, by_column = listing(source.path), source.client_column
    columns = feature_columns(files[0], source)
    refuse_undeclared(files, columns, source)
    made = [column_of(column, source) for column in columns]
    folder = isinstance(source.path, str) and Path(source.path).expanduser().is_dir()
    by_file = by_column is None and (folder or len(files) > 1)
    owners = [file.stem if by_file else None for file in files]
    blocks = [
        block
        for file, owner in zip(files, owners, strict=True)
        for block in read(file, made, source, client=owner, client_column=by_column)
    ]
    same = source.test_path == source.path
    test_files = [] if same else listing(source.test_path, key="data.test_path")
    tests = [block for file in test_files for block in read(file, made, source, client=TEST_ROWS)]
    class_names, notes = (), ()
    if source.classes != names.NUMBERS:
        class_names, notes = names.classes(source.classes, [block.labels for block in (*blocks, *tests)])
    encoder = encoder_of(source, columns, class_names)
    rows = _joined(blocks, class_names)
    test = rows if same else _joined(tests, class_names) if tests else None
    changes = sum((block.changes for block in (*blocks, *tests)), Counter[tuple[str, str, str]]())
    notes = (*notes, *changed(changes, source.ranged), *same_files([*files, *test_files]))
    notes = (*notes, *repeated(rows))
    if not len(rows.y):
        raise BadData(
            f"{source.path} leaves no rows to train on: correct the data, or data.missing if rows were dropped."
        )
    more = {"class_names": class_names, "share": source.test_share, "seed": seed, "notes": notes, "encoder": encoder}
    return dataset("csv", rows, test, **more)


def read(
    path: Path,
    columns: Sequence[Column],
    source: "csv",
    *,
    client: str | None = None,
    client_column: str | None = None,
) -> Iterator[Block]:
    """Reads one file block by block; its rows belong to `client`, or to those named in a column. Raises: BadData."""
    wanted = [*(column.name for column in columns), source.label, *([client_column] if client_column else [])]
    ignored, heading, rows = (*source.ignore, source.client_column), heading_of(source), 0
    for table in tables(path, wanted, ignored=ignored, heading=heading):
        rows += len(table.lines)
        labels = read_labels(table, source)
        clients = names.coded([client] * len(table.lines)) if client else None
        if client_column:
            clients = names.coded(_present(table, client_column, marks=frozenset(("",))))
        found = encode(table, columns)
        marks = text_marks([table.columns[name] for name in wanted])
        yield Block(
            x=found.x,
            labels=names.coded(np.array(labels[0])[labels[1][found.kept]]),
            clients=(clients[0], clients[1][found.kept]) if clients else None,
            changes=counted(found.changes, clients),
            marks=[mark for mark, kept in zip(marks, found.kept.tolist(), strict=True) if kept],
        )
    if not rows:
        of = f", so client {client!r} has no data" if client and client != TEST_ROWS else ""
        raise BadData(f"{path} holds no rows{of}: add some or remove it.")


def read_labels(table: Table, source: "csv") -> names.Coded:
    """The labels of a table's rows; 1.0 is the declared class 1. Raises: BadData."""
    known = declared_classes(source)
    texts, codes = names.coded(_present(table, source.label, marks=MISSING.difference(known)))
    if source.classes == names.NUMBERS:
        return _refuse_no_numbers(table, texts, codes), codes
    meant = class_of(known)
    found = np.array(
        [meant.get(text, meant.get(names.plain(text), "")) if known else names.plain(text) for text in texts]
    )
    unknown = np.array([not name for name in found], bool)[codes]
    if unknown.any():
        row = int(np.argmax(unknown))
        raise undeclared_label(table, row, texts[codes[row]])
    return names.coded(found[codes])


def number(cell: str) -> float | None:
    """The number that a cell says, as a float32 has it; None where it says none that is finite."""
    with np.errstate(over="ignore"):
        found = float(np.float32(cell)) if is_number(cell) else math.nan
    return found if math.isfinite(found) else None


def _refuse_no_numbers(table: Table, texts: tuple[str, ...], codes: np.ndarray) -> tuple[str, ...]:
    odd = np.array([number(text) is None for text in texts], bool)[codes]
    if odd.any():
        row = int(np.argmax(odd))
        cell = texts[codes[row]]
        raise BadData(f"{table.place(row)} has the target {cell!r}, which is no finite number: correct it.", cell=cell)
    return texts


def class_of(known: Sequence[str]) -> dict[str, str]:
    """The class that a text means, by its name or by its number as it is written shortest."""
    return {names.plain(name): name for name in known} | {name: name for name in known}


def undeclared_label(table: Table, row: int, label: str) -> BadData:
    """The refusal of a label that is no class, with its line."""
    return BadData(
        f"{table.place(row)} has the label {label!r}, which data.classes does not declare: correct it or declare it.",
        cell=label,
    )


def _present(table: Table, column: str, *, marks: frozenset[str]) -> Cells:
    cells = table.columns[column]
    for row, cell in enumerate(cells):
        if cell in marks:
            raise BadData(f"{table.place(row, column)} is missing: every row needs one.")
    return cells


def _joined(blocks: Sequence[Block], class_names: tuple[str, ...]) -> Rows:
    code_of = {name: code for code, name in enumerate(class_names)}
    y = [
        np.array([code_of[name] for name in block.labels[0]], np.int64)[block.labels[1]]
        if class_names
        else np.array(block.labels[0], np.float32)[block.labels[1]]
        for block in blocks
    ]
    clients = [block.clients for block in blocks if block.clients]
    x = torch.from_numpy(np.concatenate([block.x for block in blocks]))
    marks = [mark for block in blocks for mark in block.marks]
    return Rows(x=x, y=np.concatenate(y), clients=names.merged(clients) if clients else None, marks=marks)
