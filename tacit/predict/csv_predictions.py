"""New rows from a csv file, predicted block by block, and written so that no spreadsheet takes a cell for a formula."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import torch

from tacit import parse
from tacit.data.csv_files import class_of
from tacit.data.csv_text import MISSING, Heading, Table, header, tables
from tacit.data.encoder import Encoder
from tacit.data.names import DECIMAL, plain
from tacit.data.read_notes import Counts, changed, counted
from tacit.engine.evaluate import CHUNK
from tacit.errors import BadData, BadInput
from tacit.losses.cross_entropy import cross_entropy
from tacit.predict.predictor import Predictions, Predictor

if TYPE_CHECKING:
    from _csv import Writer

FORMULA = ("=", "+", "-", "@", "\t", "\r")
UNLABELLED = -1


@dataclass
class Told:
    """What predicting a file tells beside the predictions: how many rows, and where they have labels how many were right."""

    rows: int = 0
    left_out: int = 0
    labelled: int = 0
    right: int = 0
    loss: float = 0.0  # summed
    passed_over: tuple[str, ...] = ()  # columns that are neither features nor the label
    changes: Counts = field(default_factory=Counter)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def sentences(self) -> Iterator[str]:
        """What a person should know, a sentence each."""
        yield f"Predicted {self.rows - self.left_out} of {self.rows} rows."
        if self.labelled:
            yield (
                f"Accuracy {self.right / self.labelled:.4f}, loss {self.loss / self.labelled:.4f} on the {self.labelled} that"
                " have a label."
            )
        if self.left_out:
            lack = "1 row lacks a value that it must have, and has"
            many = f"{self.left_out} rows lack a value that they must have, and have"
            yield f"{lack if self.left_out == 1 else many} no prediction."
        if self.passed_over:
            yield f"Passed over columns that are no features: {', '.join(map(parse.shown, self.passed_over))}."
        for note in changed(self.changes, self.ranges):
            if not note.startswith("dropped"):
                yield f"Note: {note}."


def predict_file(predictor: Predictor, path: Path, file: TextIO) -> Told:
    """Predicts the rows of a csv file, whatever the order of its columns, and writes them to an open text file, row for row.

    Raises BadData naming file, line and column, and BadInput where the model does not read columns.
    """
    encoder = predictor.encoder
    if not encoder.columns:
        raise BadInput(
            f"This model reads tensors of shape {list(encoder.shape)}, not csv columns: use tacit.load(RUN).predict(tensor) in"
            " Python."
        )
    heading = Heading(
        encoder.header, frozenset({*encoder.names, *([encoder.label] if encoder.label else [])}), encoder.label
    )
    head = header(path, heading)
    label = encoder.label if encoder.label in head else None
    wanted = [*encoder.names, *([label] if label else [])]
    told = Told(passed_over=tuple(name for name in head if name not in wanted))
    told.ranges = {column.name: column.limits for column in encoder.columns if column.limits}
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["line", "prediction", *(safe(f"probability_{name}") for name in encoder.classes)])
    for table in tables(path, wanted, ignored=None, heading=heading):
        found = _block(predictor, table, label, told)
        _write(writer, table, found)
    if not told.rows:
        raise BadData(f"{path} holds no rows: there is nothing to predict.")
    return told


def safe(cell: str) -> str:
    """A cell that no spreadsheet computes: one that begins like a formula, and is no number, gets an apostrophe.

    >>> safe("=cmd|' /C calc'!A0"), safe("-1"), safe("benign")
    ("'=cmd|' /C calc'!A0", '-1', 'benign')
    """
    return f"'{cell}" if cell.startswith(FORMULA) and not DECIMAL.fullmatch(cell) else cell


@torch.inference_mode()
def _block(predictor: Predictor, table: Table, label: str | None, told: Told) -> Predictions:
    found = predictor.encode(table)
    scores = predictor.scores(torch.from_numpy(found.x)).cpu()
    told.rows += len(found.kept)
    told.left_out += int((~found.kept).sum())
    told.changes.update(counted(found.changes, None))
    if label is not None:
        _judge(scores, torch.from_numpy(_labels(table, label, predictor.encoder)[found.kept]), told)
    whole = torch.full((len(found.kept), len(predictor.encoder.classes)), float("nan"))
    whole[torch.from_numpy(found.kept)] = scores
    return predictor.decided(whole)


def _judge(scores: torch.Tensor, y: torch.Tensor, told: Told) -> None:
    """Counts what was right as a run's evaluation does, so that the same rows give the same figures."""
    for part, truth in zip(scores.split(CHUNK), y.split(CHUNK), strict=True):
        known = truth != UNLABELLED
        told.labelled += int(known.sum())
        told.right += int((part.argmax(1)[known] == truth[known]).sum())
        told.loss += float(cross_entropy(part[known], truth[known]).sum())


def _labels(table: Table, label: str, encoder: Encoder) -> np.ndarray:
    """The class of each row, or UNLABELLED. Raises BadData for a label that is no class."""
    meant, code_of = class_of(encoder.classes), {name: code for code, name in enumerate(encoder.classes)}
    codes = np.full(len(table.lines), UNLABELLED, np.int64)
    for row, cell in enumerate(table.columns[label]):
        name = meant.get(cell, meant.get(plain(cell)))
        if name is not None:
            codes[row] = code_of[name]
        elif cell not in MISSING:
            raise BadData(
                f"{table.place(row)} has the label {cell!r}, which is no class of the model: correct it.", cell=cell
            )
    return codes


def _write(writer: "Writer", table: Table, found: Predictions) -> None:
    for line, label, row in zip(table.lines, found.labels, found.probabilities.tolist(), strict=True):
        if label is None:
            writer.writerow([line, "", *[""] * len(row)])
        else:
            writer.writerow([line, safe(label), *(f"{value:.6g}" for value in row)])
