"""A model together with its encoder: a plain torch module that takes raw columns."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.data.csv_text import Table
from tacit.data.encoder import Encoder
from tacit.data.features import Encoded, encode
from tacit.engine.evaluate import CHUNK
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.predict import raw
from tacit.tasks import Task

WORD = {"multilabel": "probability"}  # what a number is called; any other is a prediction


@dataclass(frozen=True, eq=False)
class Predictions:
    """A label and the probabilities of all classes for each row; None and NaN for a row that lacks a value it must have."""

    labels: list[str | None]
    probabilities: np.ndarray = field(repr=False)  # [rows, classes]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def columns(self) -> list[str]:
        """The names of what each row has."""
        return ["prediction", *(f"probability_{name}" for name in self.classes)]

    def rows(self) -> list[list[Any] | None]:
        """What each row has; None for one without a prediction."""
        pairs = zip(self.labels, self.probabilities.tolist(), strict=True)
        return [None if label is None else [label, *row] for label, row in pairs]

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per row: `pandas.DataFrame(predictions.records())`."""
        return _records(self.columns, self.rows())


@dataclass(frozen=True, eq=False)
class Numbers:
    """One or several numbers for each row (of several labels their probabilities); NaN for a row that lacks a value."""

    values: np.ndarray = field(repr=False)  # [rows, outputs]
    word: str = "prediction"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> list[str]:
        """The names of what each row has."""
        width = self.values.shape[1]
        return [self.word] if width == 1 else [f"{self.word}_{index + 1}" for index in range(width)]

    def rows(self) -> list[list[Any] | None]:
        """What each row has; None for one without a prediction."""
        return [None if np.isnan(row).any() else row.tolist() for row in self.values]

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per row: `pandas.DataFrame(predictions.records())`."""
        return _records(self.columns, self.rows())


def _records(columns: list[str], rows: list[list[Any] | None]) -> list[dict[str, Any]]:
    missing = [None if name == "prediction" else float("nan") for name in columns]
    return [dict(zip(columns, missing if row is None else row, strict=True)) for row in rows]


class Predictor(nn.Module):
    """`model` reads encoded rows, `encoder` makes them. Rows are a mapping of column names to values, a DataFrame, or an array
    of raw values in the order of `encoder.names`; for a run on tensors, such as images, a tensor of the rows' shape.

    Guarantee: a row of the run's files is encoded to the very bits that it was trained or tested with.
    """

    def __init__(self, model: nn.Module, encoder: Encoder, experiment: Experiment, task: Task):
        super().__init__()
        self.model, self.encoder, self.experiment, self.task = model, encoder, experiment, task

    def forward(self, rows: Any) -> torch.Tensor:
        """The scores, [rows, classes or outputs]; NaN for rows that "drop" leaves out. Raises BadData, BadInput."""
        if not self.encoder.columns:
            return self.scores(raw.tensor(rows, self.encoder, tokens=self.experiment.task.kind == "tokens"))
        found = self.encode(raw.table(rows, self.encoder))
        scores = self.scores(torch.from_numpy(found.x))
        return scores if found.kept.all() else self.filled(scores, found.kept)

    def predict(self, rows: Any) -> Predictions | Numbers:
        """What the task answers for every row: the most probable label with the probability of each class, or numbers.

        Raises BadData; BadInput for rows of tokens, where every position has an answer.
        """
        if self.experiment.task.kind == "tokens":
            raise BadInput(
                "A model of tokens answers at every position of a row: call the predictor itself, predictor(rows), which gives"
                " the scores of every next token."
            )
        with torch.inference_mode():
            return self.decided(self(rows))

    def encode(self, table: Table) -> Encoded:
        """The features of a table. Raises BadData naming row and column."""
        return encode(table, self.encoder.columns, trained=True)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of encoded rows, as many at a time as in a run's evaluation."""
        x = x.to(next(self.model.parameters(), x).device)
        width = self.encoder.outputs or len(self.encoder.classes)
        return torch.cat([self.model(part) for part in x.split(CHUNK)]) if len(x) else torch.zeros(0, width)

    def filled(self, scores: torch.Tensor, kept: np.ndarray) -> torch.Tensor:
        """The scores of the rows that were kept, in their places; NaN for the others."""
        whole = scores.new_full((len(kept), *scores.shape[1:]), float("nan"))
        return whole.index_copy(0, torch.from_numpy(np.flatnonzero(kept)).to(scores.device), scores)

    def decided(self, scores: torch.Tensor) -> Predictions | Numbers:
        """Scores as labels and probabilities, or as numbers."""
        means = self.task.predictions(scores).cpu()
        if self.encoder.outputs:
            return Numbers(means.numpy(), WORD.get(self.experiment.task.kind, "prediction"))
        classes, known = self.encoder.classes, ~means.isnan().any(1)
        labels = [
            classes[code] if ok else None for code, ok in zip(means.argmax(1).tolist(), known.tolist(), strict=True)
        ]
        return Predictions(labels, means.numpy(), classes)
