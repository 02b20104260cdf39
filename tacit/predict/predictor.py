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
from tacit.predict import raw


@dataclass(frozen=True, eq=False)
class Predictions:
    """A label and the probabilities of all classes for each row; None and NaN for a row that lacks a value it must have."""

    labels: list[str | None]
    probabilities: np.ndarray = field(repr=False)  # [rows, classes]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per row: `pandas.DataFrame(predictions.records())`."""
        names = [f"probability_{name}" for name in self.classes]
        rows = zip(self.labels, self.probabilities.tolist(), strict=True)
        return [{"prediction": label, **dict(zip(names, row, strict=True))} for label, row in rows]


class Predictor(nn.Module):
    """`model` reads encoded rows, `encoder` makes them. Rows are a mapping of column names to values, a DataFrame, or an array
    of raw values in the order of `encoder.names`; for a run on tensors, such as images, a tensor of the rows' shape.

    Guarantee: a row of the run's files is encoded to the very bits that it was trained or tested with.
    """

    def __init__(self, model: nn.Module, encoder: Encoder):
        super().__init__()
        self.model, self.encoder = model, encoder

    def forward(self, rows: Any) -> torch.Tensor:
        """The scores, [rows, classes]; NaN for rows that "drop" leaves out. Raises BadData, BadInput."""
        if not self.encoder.columns:
            return self.scores(raw.tensor(rows, self.encoder))
        found = self.encode(raw.table(rows, self.encoder))
        scores = self.scores(torch.from_numpy(found.x))
        if found.kept.all():
            return scores
        whole = scores.new_full((len(found.kept), len(self.encoder.classes)), float("nan"))
        return whole.index_copy(0, torch.from_numpy(np.flatnonzero(found.kept)).to(scores.device), scores)

    def predict(self, rows: Any) -> Predictions:
        """The most probable label and the probability of each class, for every row. Raises BadData, BadInput."""
        with torch.inference_mode():
            return self.decided(self(rows))

    def encode(self, table: Table) -> Encoded:
        """The features of a table. Raises BadData naming row and column."""
        return encode(table, self.encoder.columns)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of encoded rows, as many at a time as in a run's evaluation."""
        x = x.to(next(self.model.parameters(), x).device)
        return (
            torch.cat([self.model(part) for part in x.split(CHUNK)])
            if len(x)
            else x.new_zeros(0, len(self.encoder.classes))
        )

    def decided(self, scores: torch.Tensor) -> Predictions:
        """Scores as labels and probabilities."""
        classes, known = self.encoder.classes, ~scores.isnan().any(1)
        labels = [
            classes[code] if ok else None for code, ok in zip(scores.argmax(1).tolist(), known.tolist(), strict=True)
        ]
        return Predictions(labels, scores.softmax(1).cpu().numpy(), classes)
