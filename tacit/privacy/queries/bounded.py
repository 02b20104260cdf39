"""Sums of numbers with a bound, one or a few for each held-out record: what clients count where no cell of a table says it.

Each is cut at the bound and counted in whole steps of a 1024th of it, so that a record changes each sum by at most 1024.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.privacy.queries.mechanism import Counts

SURE = 3.0  # standard deviations of its noise: a class with fewer rows than that may have none
GRID = 1 << 10  # steps of the largest error
LEAST = 2.0**-52  # a probability that was rounded to zero

Cells = np.ndarray
Values = dict[str, float | None]


def ratio(part: float, whole: float, *, least: float, most: float = 1.0) -> float | None:
    """part / whole within [0, most]; None where the whole may be nothing but noise."""
    return None if whole <= max(least, 0.0) else min(max(float(part) / float(whole), 0.0), most)


def cut(values: np.ndarray, largest: float) -> np.ndarray:
    """Numbers from 0 to 1: each over the largest, and 1 where it is larger, or no number."""
    shares = values / largest
    return np.where(np.isfinite(shares), np.clip(shares, 0.0, 1.0), 1.0)


@dataclass(frozen=True)
class Errors:
    """Sums of absolute and of squared errors, each cut at `largest`, in whole steps of a 1024th of it; and how many there are."""

    largest: float
    cells: int = 3
    l2_squared: int = 3 * GRID**2

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts:
        """How many answers there are, and the sums of their errors."""
        error = np.abs(predictions.reshape(-1).astype(np.float64) - targets.reshape(-1)) / self.largest
        error = cut(error, 1.0)
        parts = (np.ones(len(error)), error, error**2)
        return Counts(np.array([int(np.rint(GRID * part).sum()) for part in parts]), self.l2_squared)

    def metrics(self, counts: Cells, *, std: float) -> Values:
        mean, square = (ratio(part, counts[0], least=SURE * std, most=1.0) for part in counts[1:])
        return {
            "mae": None if mean is None else self.largest * mean,
            "rmse": None if square is None else self.largest * math.sqrt(square),
        }

    def sampling(self, counts: Cells) -> Cells:
        rows = max(float(counts[0]) / GRID, 1.0)
        mean, square = (min(max(float(part) / max(float(counts[0]), GRID), 0.0), 1.0) for part in counts[1:])
        spread = max(square - mean**2, 0.0), max(square - square**2, 0.0)  # errors are at most 1: E e^4 <= E e^2
        return np.array([0.0, *(rows * GRID**2 * variance for variance in spread)])

    def rows(self, counts: Cells) -> float:
        return float(counts[0]) / GRID


def surprise(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """-log of the probability that was given to the class of each record."""
    return -np.log(np.maximum(np.take_along_axis(predictions, targets[:, None], axis=1)[:, 0], LEAST))


def right(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """The share of each record's labels that is right."""
    return ((predictions > 0.5) == (targets > 0.5)).mean(1)


def distance(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """The mean squared distance of each record's probabilities from what held."""
    return np.square(predictions - targets).mean(1)


Value = Callable[
    [np.ndarray, np.ndarray], np.ndarray
]  # (targets, predictions) to one number for each record, not below 0
VALUES: dict[tuple[str, str], Value] = {  # by task and metric: the same numbers as tacit/metrics has
    ("classification", "log_loss"): surprise,
    ("binary", "log_loss"): surprise,
    ("multilabel", "accuracy"): right,
    ("multilabel", "brier"): distance,
}


@dataclass(frozen=True)
class Means:
    """The sum of one number for each record, cut at `largest`; and how many records there are."""

    kind: str
    metric: str
    largest: float
    cells: int = 2
    l2_squared: int = 2 * GRID**2

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts:
        """How many records there are, and the sums of their values."""
        values = VALUES[self.kind, self.metric](targets, predictions.astype(np.float64))
        steps = np.rint(GRID * cut(values, self.largest))
        return Counts(np.array([GRID * len(targets), int(steps.sum())]), self.l2_squared)

    def metrics(self, counts: Cells, *, std: float) -> Values:
        mean = ratio(counts[1], counts[0], least=SURE * std, most=1.0)
        return {self.metric: None if mean is None else self.largest * mean}

    def sampling(self, counts: Cells) -> Cells:
        rows = max(float(counts[0]) / GRID, 1.0)
        mean = min(max(float(counts[1]) / max(float(counts[0]), GRID), 0.0), 1.0)
        return np.array([0.0, rows * GRID**2 * mean * (1 - mean)])  # of numbers from 0 to 1 it is never more

    def rows(self, counts: Cells) -> float:
        return float(counts[0]) / GRID
