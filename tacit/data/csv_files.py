"""Reads the files of the source `csv`: block by block, encoded by public rules, every refusal with its line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit import check
from tacit.data import features, names
from tacit.data.csv_text import Table, header, listing, tables
from tacit.data.dataset import Dataset
from tacit.data.held_out import Rows, dataset
from tacit.errors import BadData

if TYPE_CHECKING:
    from tacit.data.sources.csv import csv
    from tacit.data.sources.npz import npz


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of one file, encoded; labels and clients by their own names."""

    x: np.ndarray
    labels: names.Coded
    clients: names.Coded | None
    dropped: int
    clamped: dict[str, int]  # by column: how many values lay beyond the declared range


def load(source: "csv", *, seed: int) -> Dataset:
    """Reads csv files as [n, features]. Raises: BadData naming file, line and column."""
    files, by_column = listing(source.path), source.client_column
    columns = feature_columns(files[0], source)
    by_file = by_column is None and Path(str(source.path)).expanduser().is_dir()
    owners = [file.stem if by_file else None for file in files]
    blocks = [
        block
        for file, owner in zip(files, owners, strict=True)
        for block in read(file, columns, source, client=owner, client_column=by_column)
    ]
    same = source.test_path == source.path
    tests = [] if same else [block for file in listing(source.test_path) for block in read(file, columns, source)]
    class_names, notes = names.classes(source.classes, [block.labels for block in (*blocks, *tests)])
    notes = (*notes, *_changes((*blocks, *tests), source))
    rows = _joined(blocks, class_names)
    test = rows if same else _joined(tests, class_names) if tests else None
    return dataset(source, rows, test, class_names=class_names, seed=seed, notes=notes)


def pinned_columns(source: "csv") -> tuple[str, ...]:
    """The features as the public test rows have them, so that everybody reads the same ones in the same order."""
    return feature_columns(listing(source.test_path)[0], source)


def feature_columns(path: Path, source: "csv") -> tuple[str, ...]:
    """The columns that are features: `data.columns`, or those of the first line. Raises: BadData if a named one is absent."""
    head = header(path)
    roles = {"label": [source.label], "client_column": [source.client_column] * (source.client_column is not None)}
    roles |= {
        "columns": [*(source.columns or ())],
        "numeric": [*source.numeric],
        "categorical": [*source.categorical],
        "ignore": [*source.ignore],
    }
    for key, columns in roles.items():
        for column in set(columns).difference(head):
            near = check.nearest(column, head)
            text = f"{path} has no column {column!r}, which data.{key} names.{near}"
            raise BadData(text, cell=next((name for name in head if repr(name) in near), None))
    if source.columns is not None:
        return source.columns
    apart = {source.label, source.client_column, *source.ignore}
    if found := tuple(column for column in head if column not in apart):
        return found
    raise BadData(f"{path} has no feature columns besides {', '.join(head)}.")


def read(
    path: Path,
    columns: Sequence[str],
    source: "csv",
    *,
    client: str | None = None,
    client_column: str | None = None,
) -> Iterator[Block]:
    """Reads one file block by block; its rows belong to `client`, or to those named in a column. Raises: BadData."""
    wanted = [*columns, source.label, *([client_column] if client_column else [])]
    rows = 0
    for table in tables(path, wanted, ignored=(*source.ignore, source.client_column)):
        rows += len(table.lines)
        labels = names.coded(_present(table, source.label, marks=features.MISSING.difference(declared_classes(source))))
        _refuse_unknown_label(table, labels, source)
        clients = names.coded([client] * len(table.lines)) if client else None
        if client_column:
            clients = names.coded(_present(table, client_column, marks=frozenset(("",))))
        x, kept, clamped = features.encode(table, columns, source)
        yield Block(
            x=x,
            labels=names.coded(np.array(labels[0])[labels[1][kept]]),
            clients=(clients[0], clients[1][kept]) if clients else None,
            dropped=int((~kept).sum()),
            clamped=clamped,
        )
    if not rows:
        raise BadData(
            f"{path} holds no rows{f', so client {client!r} has no data' if client else ''}: add some or remove it."
        )


def _present(table: Table, column: str, *, marks: frozenset[str]) -> Sequence[str]:
    """A column without gaps: the label or the client."""
    cells = table.columns[column]
    for row, cell in enumerate(cells):
        if cell in marks:
            raise BadData(f"{table.path}, line {table.lines[row]}, column {column!r} is missing: every row needs one.")
    return cells


def declared_classes(source: "csv | npz") -> tuple[str, ...]:
    """The class names that are declared, if they are."""
    return () if source.classes is None or isinstance(source.classes, str) else names.declared(source.classes)


def _refuse_unknown_label(table: Table, labels: names.Coded, source: "csv") -> None:
    """Refuses a label that is not declared, with its line."""
    if source.classes == names.FROM_DATA:
        return
    known = frozenset(declared_classes(source))
    unknown = np.array([name not in known for name in labels[0]])[labels[1]]
    if unknown.any():
        row = int(np.argmax(unknown))
        label = labels[0][labels[1][row]]
        raise BadData(
            f"{table.path}, line {table.lines[row]} has the label {label!r}, which data.classes does not declare: correct it or"
            " declare it.",
            cell=label,
        )


def _changes(blocks: Sequence[Block], source: "csv") -> Iterator[str]:
    """What reading changed, a note each: rows that were dropped, values that were pulled into their range."""
    if dropped := sum(block.dropped for block in blocks):
        yield f"dropped {dropped} row{'s' * (dropped > 1)} with missing values"
    for column, (low, high) in source.numeric.items():
        if count := sum(block.clamped.get(column, 0) for block in blocks):
            yield f"clamped {count} value{'s' * (count > 1)} of {column!r} into its declared range [{low:g}, {high:g}]"


def _joined(blocks: Sequence[Block], class_names: tuple[str, ...]) -> Rows:
    """Blocks as one set of rows, with labels as class indices."""
    code_of = {name: code for code, name in enumerate(class_names)}
    y = [np.array([code_of[name] for name in block.labels[0]], np.int64)[block.labels[1]] for block in blocks]
    clients = [block.clients for block in blocks if block.clients]
    x = torch.from_numpy(np.concatenate([block.x for block in blocks]))
    return Rows(x=x, y=np.concatenate(y), clients=names.merged(clients) if clients else None)
