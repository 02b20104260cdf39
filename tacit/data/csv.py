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
from tacit.data import texts
from tacit.data.dataset import FLOAT_IDS, GAPS, PART, Dataset, dataset
from tacit.data.dataset import Table as Rows
from tacit.data.encoder import CLAMPED, DROPPED, FILLED, TO_OTHER, TYPES, Change, Column, Encoder, column_of, encode
from tacit.data.population import person_tags, text_digests
from tacit.data.texts import MISSING, Cells, Coded, Heading, Table, header, is_number, listing, no_column, tables
from tacit.errors import BadData

if TYPE_CHECKING:
    from tacit.data.sources import csv, npz

SHOWN = 12  # columns, and values of one, that a sentence names
TEST_ROWS = "the test rows"


def encoder_of(source: "csv", columns: Sequence[str], classes: Sequence[str]) -> Encoder:
    made = tuple(column_of(column, source) for column in columns)
    shape, outputs = (sum(column.width for column in made),), 0 if classes else 1
    return Encoder(tuple(classes), shape, made, label=source.label, header=source.header, outputs=outputs)


def _heading(source: "csv") -> Heading:
    declared = (name for columns in source.declared_columns.values() for name in columns)
    expected = {source.label, source.client_column, source.person, *(source.columns or ()), *declared}
    return Heading(source.header, frozenset(name for name in expected | {*source.header} if name))


def feature_columns(path: Path, source: "csv") -> tuple[str, ...]:
    """The columns that are features: `data.columns`, or those of the first line. Raises: BadData if a named one is absent."""
    head = header(path, _heading(source))
    roles = {
        "label": [source.label],
        "client_column": [source.client_column] if source.client_column is not None else [],
        "person": [source.person] if source.person is not None else [],
        "columns": source.columns or (),
        **source.declared_columns,
        "missing": source.missing if isinstance(source.missing, dict) else (),
    }
    for key, columns in roles.items():
        for column in set(columns).difference(head):
            text = f"{path} has no column {column!r}, which data.{key} names."
            raise no_column(text, check.nearest(column, head), head)
    if source.columns is not None:
        return source.columns
    if found := tuple(c for c in head if c not in (source.label, source.client_column, source.person)):
        return found
    raise BadData(f"{path} has no feature columns besides {', '.join(head)}.")


def declared_classes(source: "csv | npz") -> tuple[str, ...]:
    return () if source.classes is None or isinstance(source.classes, str) else texts.declared(source.classes)


def _refuse_undeclared(files: Sequence[Path], columns: Sequence[str], source: "csv") -> None:
    """Whether it is refused follows from the declarations alone; what is said of the rows is for whoever holds them."""
    if isinstance(source.numeric, str):
        return
    declared = source.declared_columns
    open_ = [column for column in columns if not any(column in names for names in declared.values())]
    if not open_:
        return
    spans = "; ".join(_spans(files, open_[:SHOWN], source))
    named = check.some([repr(column) for column in open_], SHOWN)
    raise BadData(
        f"{' and '.join(f'data.{key}' for key in declared)} do not say how to read {named}. In these rows they span"
        f" {spans!r}: declare ranges and values that are public, known without looking at the rows, as in"
        f" {' or '.join(kind.example.format(open_[0]) for kind in TYPES)};"
        ' "unscaled" in place of a range takes a column as it stands, data.columns lists the features without it, and data.person'
        " names a column of ids of persons.",
        cell=spans,
    )


def _spans(files: Sequence[Path], columns: Sequence[str], source: "csv") -> Iterator[str]:
    found: dict[str, set[str]] = {column: set() for column in columns}
    for file in files:
        for table in tables(file, columns, ignored=None, heading=_heading(source)):
            for column in columns:
                found[column].update({str(cell) for cell in table.columns[column]} - MISSING)
    for column, cells in found.items():
        ends, words = [float(cell) for cell in cells if is_number(cell)], sorted(c for c in cells if not is_number(c))
        parts = [f"{min(ends):g} to {max(ends):g}"] if ends else []
        parts += [", ".join(words[:SHOWN]) + ", ..." * (len(words) > SHOWN)] if words else []
        yield f"{column}: {' and '.join(parts) or 'nothing'}"


# What reading csv files changed or found, in words: for whoever holds the rows (at a site its own log, in a simulation
# the notes).

MOST_NAMED = 8  # clients in one note
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


def changed(counts: Counts, ranges: Mapping[str, str]) -> Iterator[str]:
    """A note for each column and kind of change, with the clients that have most of it; `ranges` are in words, by column.

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
            total, ends = by_client.total(), ranges.get(column, "")
            first = [f"{who} {count}" if who else str(count) for who, count in by_client.most_common(MOST_NAMED)]
            first += [f"{len(by_client) - MOST_NAMED} more"] if len(by_client) > MOST_NAMED else []
            of = f" ({', '.join(first)})" if set(by_client) != {""} else ""
            yield sentence.format(total, "s" * (total > 1), column, ends) + of


def _same_files(files: Sequence[Path]) -> Iterator[str]:
    """Whoever is in one of two files of the same bytes is in the other, too."""
    first: dict[bytes, Path] = {}
    for file in dict.fromkeys(files if len(files) > 1 else ()):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, partial(hashlib.blake2b, digest_size=16)).digest()
        if digest in first:
            both = f"{first[digest].name} and {file.name}"
            yield f"{both} hold the same rows: each of them counts in both, and no single epsilon holds for it"
        first.setdefault(digest, file)


def _repeated(rows: Rows) -> Iterator[str]:
    """Somebody with k equal records has about k times the epsilon of one."""
    known: set[int] = set()
    for x, y in zip(rows.x.split(PART), np.split(rows.y, range(PART, len(rows.y), PART)), strict=True):
        content, width = x.numpy().tobytes(), x.shape[1:].numel() * x.element_size()
        known.update(hash((content[row * width : (row + 1) * width], int(label))) for row, label in enumerate(y))
    if again := len(rows.y) - len(known):
        yield (
            f"{again} of {len(rows.y)} rows repeat{'s' * (again == 1)} an earlier one: if these are one person's, the"
            " epsilon of a record is not that person's"
        )


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of one file, encoded; labels and clients by their own names; what reading changed, by client."""

    x: np.ndarray
    labels: Coded
    clients: Coded | None
    persons: np.ndarray | None
    changes: Counts
    digests: list[bytes]  # of its rows as they were written


def load(source: "csv", *, seed: int) -> Dataset:
    files, by_column = listing(source.path), source.client_column
    columns = feature_columns(files[0], source)
    _refuse_undeclared(files, columns, source)
    made = [column_of(column, source) for column in columns]
    folder = isinstance(source.path, str) and Path(source.path).expanduser().is_dir()
    by_file = by_column is None and (folder or len(files) > 1)
    blocks = [
        block
        for file in files
        for block in _read(file, made, source, client=file.stem if by_file else None, client_column=by_column)
    ]
    same = source.test_path == source.path
    test_files = [] if same else listing(source.test_path, key="data.test_path")
    tests = [block for file in test_files for block in _read(file, made, source, client=TEST_ROWS)]
    class_names, notes = (), ()
    if source.classes != texts.NUMBERS:
        class_names, notes = texts.classes(source.classes, [block.labels for block in (*blocks, *tests)])
    rows = _joined(blocks, class_names)
    test = rows if same else _joined(tests, class_names) if tests else None
    changes = sum((block.changes for block in (*blocks, *tests)), Counter[tuple[str, str, str]]())
    notes = (
        *notes,
        *changed(changes, {one.name: one.span_words for one in made}),
        *_same_files([*files, *test_files]),
        *(() if source.person else _repeated(rows)),
    )
    if not len(rows.y):
        raise BadData(
            f"{source.path} leaves no rows to train on: correct the data, or data.missing if rows were dropped."
        )
    encoder = encoder_of(source, columns, class_names)
    more = {"class_names": class_names, "share": source.test_share, "seed": seed, "notes": notes, "encoder": encoder}
    return dataset("csv", rows, test, **more)


def _read(
    path: Path, columns: Sequence[Column], source: "csv", *, client: str | None, client_column: str | None = None
) -> Iterator[Block]:
    person = source.person if client != TEST_ROWS else None  # test rows are public, whosoever they are
    roles = [name for name in (client_column, person) if name]
    wanted = [*(column.name for column in columns), source.label, *roles]
    ignored, rows = (source.client_column, source.person) if source.columns is None else None, 0
    for table in tables(path, wanted, ignored=ignored, heading=_heading(source)):
        rows += len(table.lines)
        labels = _labels(table, source)
        clients = texts.coded([client] * len(table.lines)) if client else None
        if client_column:
            clients = texts.coded(_present(table, client_column, gaps=frozenset(("",))))
        found = encode(table, columns)
        digests = text_digests([table.columns[name] for name in wanted])
        yield Block(
            x=found.x,
            labels=texts.coded(np.array(labels[0])[labels[1][found.kept]]),
            clients=(clients[0], clients[1][found.kept]) if clients else None,
            persons=person_tags(_ids(table, person))[found.kept] if person else None,
            changes=counted(found.changes, clients),
            digests=[digest for digest, kept in zip(digests, found.kept.tolist(), strict=True) if kept],
        )
    if not rows:
        of = f", so client {client!r} has no data" if client and client != TEST_ROWS else ""
        raise BadData(f"{path} holds no rows{of}: add some or remove it.")


def _labels(table: Table, source: "csv") -> Coded:
    known, is_regression = declared_classes(source), source.classes == texts.NUMBERS
    words, codes = texts.coded(_present(table, source.label, gaps=MISSING.difference(known)))
    meant = class_of(known)
    if is_regression:
        found = np.array([text if number(text) is not None else "" for text in words])
    elif known:
        found = np.array([meant.get(text, meant.get(texts.plain(text), "")) for text in words])
    else:
        found = np.array([texts.plain(text) for text in words])
    odd = np.array([not name for name in found], bool)[codes]
    if odd.any():
        row = int(np.argmax(odd))
        cell = words[codes[row]]
        wrong = f"label {cell!r}, which data.classes does not declare: correct it or declare it."
        wrong = f"target {cell!r}, which is no finite number: correct it." if is_regression else wrong
        raise BadData(f"{table.place(row)} has the {wrong}", cell=cell)
    return texts.coded(found[codes])


def number(cell: str) -> float | None:
    """The number that a cell says, as a float32 has it; None where it says none that is finite."""
    with np.errstate(over="ignore"):
        found = float(np.float32(cell)) if is_number(cell) else math.nan
    return found if math.isfinite(found) else None


def class_of(known: Sequence[str]) -> dict[str, str]:
    """The class that a text means, by its name or by its number as it is written shortest."""
    return {texts.plain(name): name for name in known} | {name: name for name in known}


def _present(table: Table, column: str, *, gaps: frozenset[str]) -> Cells:
    cells = table.columns[column]
    for row, cell in enumerate(cells):
        if cell in gaps:
            raise BadData(f"{table.place(row, column)} is missing: every row needs one.")
    return cells


def _ids(table: Table, column: str) -> list[str]:
    ids = [str(cell) for cell in _present(table, column, gaps=GAPS)]
    for row, cell in enumerate(ids):
        if is_number(cell) and not cell.lstrip("+-").isdecimal():
            raise BadData(f"{table.place(row, column)} has the id {cell!r}: {FLOAT_IDS}.", cell=cell)
    return ids


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
    digests = [digest for block in blocks for digest in block.digests]
    whose = {"clients": texts.merged(clients) if clients else None, "digests": digests}
    ids = [block.persons for block in blocks if block.persons is not None]
    return Rows(x=x, y=np.concatenate(y), **whose, persons=np.concatenate(ids) if ids else None)
