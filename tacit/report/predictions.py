"""New rows from a csv file, predicted block by block, and written so that no spreadsheet takes a cell for a formula."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from tacit import wire
from tacit.data.csv import Counts, changed, class_of, counted, number
from tacit.data.encoder import Encoder
from tacit.data.texts import DECIMAL, MISSING, Heading, Table, header, plain, tables
from tacit.errors import BadData, BadInput
from tacit.parts import metrics
from tacit.parts.metrics import Answers
from tacit.parts.tasks import chosen
from tacit.predict import Predictor

FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass
class Told:
    """What predicting a file tells beside the predictions: how many rows, and what they are worth where rows have labels."""

    rows: int = 0
    left_out: int = 0
    labelled: int = 0
    score: tuple[str, float] | None = (
        None  # the run's metric by its key and its value; None where these rows cannot tell
    )
    passed_over: tuple[str, ...] = ()  # columns that are neither features nor the label
    changes: Counts = field(default_factory=Counter)
    ranges: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> Iterator[str]:
        """What a person should know, a sentence each."""
        yield f"Predicted {self.rows - self.left_out} of {self.rows} rows."
        if self.score is not None:
            text = f"{metrics.words(self.score[0])} {self.score[1]:.4f} on the {self.labelled} that have a label."
            yield text[0].upper() + text[1:]
        if self.left_out == 1:
            yield "1 row lacks a value that it must have, and has no prediction."
        elif self.left_out:
            yield f"{self.left_out} rows lack a value that they must have, and have no prediction."
        if self.passed_over:
            yield f"Passed over columns that are no features: {', '.join(map(wire.shown, self.passed_over))}."
        for note in changed(self.changes, self.ranges):
            if not note.startswith("dropped"):
                yield f"Note: {note}."


@torch.inference_mode()
def predict_file(predictor: Predictor, path: Path, file: TextIO) -> Told:
    """Predicts the rows of a csv file, whatever the order of its columns, and writes them to an open text file, row for row.
    Raises BadData naming file, line and column, and BadInput where the model does not read columns."""
    encoder = predictor.encoder
    if not encoder.columns:
        raise BadInput(
            f"This model reads tensors of shape {list(encoder.shape)}, not csv columns: use tacit.load(RUN).predict(tensor) in"
            " Python."
        )
    names: frozenset[str] = frozenset([*encoder.names, *([encoder.label] if encoder.label else [])])
    heading = Heading(encoder.header, names, encoder.label)
    head = header(path, heading)
    label = encoder.label if encoder.label in head else None
    wanted = [*encoder.names, *([label] if label else [])]
    told = Told(passed_over=tuple(name for name in head if name not in wanted))
    told.ranges = {one.name: one.span_words for one in encoder.columns}
    writer, judged = csv.writer(file, lineterminator="\n"), list[tuple[np.ndarray, np.ndarray]]()
    for table in tables(path, wanted, ignored=None, heading=heading):
        block = predictor.encode(table)
        scores = predictor.scores(torch.from_numpy(block.x)).cpu()
        found = predictor.decided(scores if block.kept.all() else predictor.filled(scores, block.kept))
        if not told.rows:
            writer.writerow(["line", *map(safe, found.columns)])
        told.rows += len(block.kept)
        told.left_out += int((~block.kept).sum())
        told.changes.update(counted(block.changes, None))
        if label is not None:
            targets, known = (part[block.kept] for part in _targets(table, label, encoder))
            means = predictor.task.predictions(scores[torch.from_numpy(known)])
            judged.append((targets[known], means.cpu().numpy()))
        empty = [""] * len(found.columns)
        for line, row in zip(table.lines, found.rows(), strict=True):
            writer.writerow([line, *(empty if row is None else map(_cell, row))])
    if not told.rows:
        raise BadData(f"{path} holds no rows: there is nothing to predict.")
    told.labelled = sum(len(targets) for targets, _ in judged)
    name = chosen(predictor.experiment)
    if told.labelled and ":" not in name:  # which is code of somebody's own
        targets, means = (np.concatenate(parts) for parts in zip(*judged, strict=True))
        answers = Answers(predictor.experiment.task.kind, targets, means, encoder.classes)
        value = metrics.measure_if_possible(metrics.load(name), answers)
        told.score = None if value is None else (metrics.key(name), value)
    return told


def safe(cell: str) -> str:
    """A cell that no spreadsheet computes: one that begins like a formula, and is no number, gets an apostrophe.

    >>> safe("=cmd|' /C calc'!A0"), safe("-1"), safe("benign")
    ("'=cmd|' /C calc'!A0", '-1', 'benign')
    """
    return f"'{cell}" if cell.startswith(FORMULA) and not DECIMAL.fullmatch(cell) else cell


def _cell(value: str | float) -> str:
    return safe(value) if isinstance(value, str) else f"{value:.6g}"


def _targets(table: Table, label: str, encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """The number or the class of each row, and whether it has one. Raises BadData for a cell that says none."""
    meant, code_of = class_of(encoder.classes), {name: code for code, name in enumerate(encoder.classes)}
    lines = len(table.lines)
    values, known = np.zeros(lines, np.int64 if encoder.classes else np.float32), np.zeros(lines, bool)
    for row, cell in enumerate(table.columns[label]):
        if encoder.classes:
            name = meant.get(cell, meant.get(plain(cell), ""))
            found, what = code_of.get(name), "the label {!r}, which is no class of the model"
        else:
            found, what = number(str(cell)), "the target {!r}, which is no finite number"
        if found is not None:
            values[row], known[row] = found, True
        elif cell not in MISSING:
            raise BadData(f"{table.place(row)} has {what.format(cell)}: correct it.", cell=cell)
    return values, known
