"""New rows from a csv file, predicted block by block, and written so that no spreadsheet takes a cell for a formula."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import torch

from tacit import wire
from tacit.data.columns import Number
from tacit.data.csv import Counts, changed, class_of, counted, number
from tacit.data.encoder import Encoder
from tacit.data.features import MISSING, Heading, Table, header, tables
from tacit.data.names import DECIMAL, plain
from tacit.engine.evaluate import CHUNK
from tacit.errors import BadData, BadInput
from tacit.parts import losses, metrics
from tacit.parts.metrics import Answers
from tacit.parts.tasks import chosen
from tacit.predict import Numbers, Predictions, Predictor


class Judge:
    """Gathers scores and targets block by block, rows without a target left out."""

    def __init__(self, predictor: Predictor):
        self._predictor, self._loss = predictor, _loss(predictor)
        self._targets: list[np.ndarray] = []
        self._means: list[np.ndarray] = []
        self.loss, self.labelled = 0.0, 0

    def add(self, scores: torch.Tensor, targets: torch.Tensor, known: torch.Tensor) -> None:
        """Counts a block as a run's evaluation does, as many rows at a time."""
        blocks = zip(scores.split(CHUNK), targets.split(CHUNK), known.split(CHUNK), strict=True)
        for part, truth, told in blocks:
            part, truth = part[told], truth[told]
            self.labelled += len(truth)
            self._targets.append(truth.numpy())
            self._means.append(self._predictor.task.predictions(part).cpu().numpy())
            if self._loss is not None:
                self.loss += float(self._loss(part, truth).sum())

    def value(self) -> tuple[str, float] | None:
        """The run's metric by its key and its value; None where these rows cannot tell. Raises nothing."""
        experiment, encoder = self._predictor.experiment, self._predictor.encoder
        name = chosen(experiment)
        if not self.labelled or (":" in name):
            return None
        found = Answers(
            experiment.task.kind, np.concatenate(self._targets), np.concatenate(self._means), encoder.classes
        )
        value = metrics.measure_if_possible(metrics.load(name), found)
        return None if value is None else (metrics.key(name), value)

    def sentences(self) -> Iterator[str]:
        """What is said of it."""
        value = self.value() if self.labelled else None
        parts = [f"{metrics.words(value[0])} {value[1]:.4f}"] if value else []
        parts += [f"loss {self.loss / self.labelled:.4f}"] if self._loss is not None and self.labelled else []
        if parts:
            text = f"{', '.join(parts)} on the {self.labelled} that have a label."
            yield text[0].upper() + text[1:]


def _loss(predictor: Predictor) -> losses.Losses | None:
    """The loss that trained the model, where it is one of Tacit's own with nothing set; None where another was."""
    task, experiment = predictor.task, predictor.experiment
    name = experiment.task.loss or task.loss
    if ":" in name or experiment.task.options():
        return None
    classes = len(predictor.encoder.classes)
    width = 1 if experiment.task.kind == "binary" else predictor.encoder.outputs or classes
    outputs = torch.zeros(losses.TRIED, width)
    targets = torch.zeros(losses.TRIED, dtype=torch.int64) if classes else torch.zeros(losses.TRIED)
    try:
        return losses.load(name, {}, outputs=outputs, targets=targets)
    except BadInput:
        return None


if TYPE_CHECKING:
    from _csv import Writer

FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass
class Told:
    """What predicting a file tells beside the predictions: how many rows, and what they are worth where rows have labels."""

    rows: int = 0
    left_out: int = 0
    judge: Judge | None = None
    passed_over: tuple[str, ...] = ()  # columns that are neither features nor the label
    changes: Counts = field(default_factory=Counter)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def sentences(self) -> Iterator[str]:
        """What a person should know, a sentence each."""
        yield f"Predicted {self.rows - self.left_out} of {self.rows} rows."
        if self.judge is not None:
            yield from self.judge.sentences()
        if self.left_out:
            lack = "1 row lacks a value that it must have, and has"
            many = f"{self.left_out} rows lack a value that they must have, and have"
            yield f"{lack if self.left_out == 1 else many} no prediction."
        if self.passed_over:
            yield f"Passed over columns that are no features: {', '.join(map(wire.shown, self.passed_over))}."
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
    told.ranges = {one.name: one.limits for one in encoder.columns if isinstance(one, Number) and one.limits}
    writer = csv.writer(file, lineterminator="\n")
    told.judge = Judge(predictor) if label else None
    for table in tables(path, wanted, ignored=None, heading=heading):
        first = not told.rows
        found = _block(predictor, table, label, told)
        if first:
            writer.writerow(["line", *map(safe, found.columns)])
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
def _block(predictor: Predictor, table: Table, label: str | None, told: Told) -> Predictions | Numbers:
    found = predictor.encode(table)
    scores = predictor.scores(torch.from_numpy(found.x)).cpu()
    told.rows += len(found.kept)
    told.left_out += int((~found.kept).sum())
    told.changes.update(counted(found.changes, None))
    if label is not None and told.judge is not None:
        read = _targets(table, label, predictor.encoder)
        targets, known = (torch.from_numpy(part[found.kept]) for part in read)
        told.judge.add(scores, targets, known)
    return predictor.decided(scores if found.kept.all() else predictor.filled(scores, found.kept))


def _targets(table: Table, label: str, encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """The number or the class of each row, and whether it has one. Raises BadData for a cell that says none."""
    meant, code_of = class_of(encoder.classes), {name: code for code, name in enumerate(encoder.classes)}

    def read(cell: str) -> float | int | None:
        if not encoder.classes:
            return number(str(cell))
        name = meant.get(cell, meant.get(plain(cell)))
        return None if name is None else code_of[name]

    lines = len(table.lines)
    values, known = np.zeros(lines, np.int64 if encoder.classes else np.float32), np.zeros(lines, bool)
    for row, cell in enumerate(table.columns[label]):
        found = read(cell)
        if found is not None:
            values[row], known[row] = found, True
        elif cell not in MISSING:
            what = (
                "the label {!r}, which is no class of the model"
                if encoder.classes
                else "the target {!r}, which is no finite number"
            )
            raise BadData(f"{table.place(row)} has {what.format(cell)}: correct it.", cell=cell)
    return values, known


def _write(writer: "Writer", table: Table, found: Predictions | Numbers) -> None:
    empty = [""] * len(found.columns)
    for line, row in zip(table.lines, found.rows(), strict=True):
        writer.writerow([line, *(empty if row is None else map(_cell, row))])


def _cell(value: str | float) -> str:
    return safe(value) if isinstance(value, str) else f"{value:.6g}"
