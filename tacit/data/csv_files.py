"""Reads the files of the source `csv`: block by block, encoded by public rules, every refusal with its line."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit.data import csv_columns, names, read_notes
from tacit.data.csv_text import MISSING, Cells, Table, is_number, listing, tables
from tacit.data.dataset import Dataset
from tacit.data.encoder import Column
from tacit.data.features import encode
from tacit.data.held_out import Rows, dataset
from tacit.data.read_notes import TEST_ROWS, Counts
from tacit.data.row_hashes import text_marks
from tacit.errors import BadData

if TYPE_CHECKING:
    from tacit.data.sources.csv import csv


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
    columns = csv_columns.feature_columns(files[0], source)
    csv_columns.refuse_undeclared(files, columns, source)
    made = [csv_columns.column_of(column, source) for column in columns]
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
    encoder = csv_columns.encoder_of(source, columns, class_names)
    rows = _joined(blocks, class_names)
    test = rows if same else _joined(tests, class_names) if tests else None
    changes = sum((block.changes for block in (*blocks, *tests)), Counter[tuple[str, str, str]]())
    notes = (*notes, *read_notes.changed(changes, source.ranged), *read_notes.same_files([*files, *test_files]))
    notes = (*notes, *read_notes.repeated(rows))
    return dataset(source, rows, test, class_names=class_names, seed=seed, notes=notes, encoder=encoder)


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
    ignored, heading, rows = (*source.ignore, source.client_column), csv_columns.heading_of(source), 0
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
            changes=read_notes.counted(found.changes, clients),
            marks=[mark for mark, kept in zip(marks, found.kept.tolist(), strict=True) if kept],
        )
    if not rows:
        of = f", so client {client!r} has no data" if client and client != TEST_ROWS else ""
        raise BadData(f"{path} holds no rows{of}: add some or remove it.")


def read_labels(table: Table, source: "csv") -> names.Coded:
    """The labels of a table's rows; 1.0 is the declared class 1. Raises: BadData."""
    known = csv_columns.declared_classes(source)
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
    """Raises BadData for the first target that is no finite number."""
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
    """A column without gaps: the label or the client."""
    cells = table.columns[column]
    for row, cell in enumerate(cells):
        if cell in marks:
            raise BadData(f"{table.place(row, column)} is missing: every row needs one.")
    return cells


def _joined(blocks: Sequence[Block], class_names: tuple[str, ...]) -> Rows:
    """Blocks as one set of rows, with labels as class indices, or as numbers where there are no classes."""
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
