"""How good a model is on rows that clients held out, from noised counts. Of a record one number is asked, or one cell; sums
of noised counts over clients, weighed by how much each can be trusted, give the metric, and the interval holds the noise and
the choice of rows. All of that is post-processing of noised counts and public numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tacit.errors import BadInput
from tacit.privacy.queries.mechanism import Counts

# Sums of numbers with a bound, one or a few for each held-out record: what clients count where no cell of a table says
# it.

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
VALUES: dict[tuple[str, str], Value] = {  # by task and metric: the same numbers as tacit/parts/metrics has
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


DRAWS = 1000  # of an interval
MIDDLE = (0.025, 0.975)
SCORES = np.arange(-4.0, 4.5, 0.5)  # logits between which scores are told apart; 0 is where the answer changes
COIN = 0.95  # of all values: an interval as wide as that of a coin, which shows one side or the other
MOST_CLASSES = 30  # of a table that has a cell for each two


class Reading(Protocol):
    """Numbers that follow from counts, which one record changes by a vector of squared length at most `l2_squared`."""

    @property
    def cells(self) -> int: ...
    @property
    def l2_squared(self) -> int: ...

    def metrics(self, counts: Cells, *, std: float) -> Values:
        """Each metric, of counts (perhaps negative) with noise of this standard deviation; None where they cannot tell."""
        ...

    def sampling(self, counts: Cells) -> Cells: ...  # the variance of each count over the choice of records
    def rows(self, counts: Cells) -> float: ...  # how many records were counted


class Judgement(Reading, Protocol):
    """What is counted of (target, prediction). Guarantee asked: one record changes `count` by at most `l2_squared`, squared."""

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts: ...


class OneCell:
    """Counts of which each record is in one: they add up to the records, and over their choice each varies by itself."""

    def sampling(self, counts: Cells) -> Cells:
        return np.maximum(counts, 0.0)

    def rows(self, counts: Cells) -> float:
        return float(counts.sum())


@dataclass(frozen=True)
class Hits(OneCell):
    """Right and wrong answers: two counts, for the accuracy alone."""

    cells: int = 2
    l2_squared: int = 1

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts:
        right = int((predictions.argmax(-1) == targets).sum())
        return Counts(np.array([len(targets) - right, right]), self.l2_squared)

    def metrics(self, counts: Cells, *, std: float) -> Values:
        return {"accuracy": ratio(counts[1], counts.sum(), least=SURE * std * math.sqrt(2))}


@dataclass(frozen=True)
class Confusion(OneCell):
    """Which class was taken for which: a cell for each two."""

    classes: int
    l2_squared: int = 1

    @property
    def cells(self) -> int:
        return self.classes**2

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts:
        places = targets * self.classes + predictions.argmax(-1)
        return Counts(np.bincount(places, minlength=self.cells), self.l2_squared)

    def metrics(self, counts: Cells, *, std: float) -> Values:
        table, least = counts.reshape(self.classes, self.classes), SURE * std * math.sqrt(self.classes)
        return _of_table(table, least=least)


@dataclass(frozen=True)
class Scores(OneCell):
    """Of two classes, the histogram of each one's scores: for the AUROC, and what follows from the table of both classes."""

    l2_squared: int = 1

    @property
    def cells(self) -> int:
        return 2 * (len(SCORES) + 1)

    def count(self, targets: np.ndarray, predictions: np.ndarray) -> Counts:
        p = np.clip(predictions[:, 1].astype(np.float64), 1e-12, 1 - 1e-12)
        places = np.searchsorted(SCORES, np.log(p) - np.log1p(-p), side="left")  # even odds are a no
        return Counts(np.bincount(targets * (len(SCORES) + 1) + places, minlength=self.cells), self.l2_squared)

    def metrics(self, counts: Cells, *, std: float) -> Values:
        no, yes = counts.reshape(2, -1)
        least, cut = SURE * std * math.sqrt(len(no)), int(np.searchsorted(SCORES, 0.0, side="right"))
        pairs = float(yes @ (np.cumsum(no) - no / 2))  # Mann and Whitney's U; a tie counts half
        enough = no.sum() > least and yes.sum() > least
        table = np.array([[part[:cut].sum(), part[cut:].sum()] for part in (no, yes)])
        auroc = ratio(pairs, float(no.sum() * yes.sum()), least=0.0) if enough else None
        return {"auroc": auroc} | _of_table(table, least=least)


def judgement(
    kind: str, metric: str, *, classes: int, numbers: int = 1, largest_error: float | None = None
) -> Judgement:
    """What is counted for a task's headline metric, of `classes` or of so many `numbers` a record. Raises: BadInput for a
    metric that noised counts cannot tell."""
    if kind == "regression" and metric in ("mae", "rmse") and numbers == 1:
        if largest_error is None:
            raise BadInput(
                "An error has no bound, so no noise covers it: set metric.largest_error, beyond which errors on held-out rows are"
                " cut."
            )
        return Errors(largest_error)
    if (kind, metric) in VALUES:
        bound = largest_error if metric == "log_loss" else 1.0
        if bound is None:
            raise BadInput(
                "A log loss has no bound, so no noise covers it: set metric.largest_error, beyond which the loss of a held-out row"
                " is cut."
            )
        return Means(kind, metric, bound)
    if kind in ("classification", "binary"):
        if metric == "accuracy" and classes > 2:
            return Hits()
        if metric == "auroc" and classes == 2:
            return Scores()
        if metric in ("accuracy", "balanced_accuracy", "f1") and classes <= MOST_CLASSES:
            return Confusion(classes)
    *others, last = _asked_instead(kind, classes=classes, numbers=numbers) or [""]
    told = f"set metric.choose to {', '.join(others)}{' or ' if others else ''}{last}, or " if last else ""
    raise BadInput(
        f"Clients cannot be asked for {metric} of this {kind} task on their held-out rows: {told}leave out data.held_out."
    )


def _asked_instead(kind: str, *, classes: int, numbers: int) -> list[str]:
    """The metrics that noised counts can tell of a task, as `metric.choose` spells them: what `judgement` takes."""
    if kind == "regression":
        return ["mae", "rmse"] if numbers == 1 else []
    means = [metric.replace("_", "-") for task, metric in VALUES if task == kind]
    if kind not in ("classification", "binary"):
        return means
    table = ["balanced-accuracy", "f1"] if classes <= MOST_CLASSES else []
    return ["accuracy", *table, *(["auroc"] if classes == 2 else []), *means]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A metric over clients: its value, the middle 95 % over noise and the choice of rows, and about how many rows there were."""

    values: Mapping[str, dict[str, Any]]
    rows: float


def combine(
    judged: Reading, answers: Sequence[np.ndarray], stds: np.ndarray, expected: np.ndarray, *, seed: int = 0
) -> Evaluated:
    """The metrics of the clients' noised counts together. `expected` is how many rows each is likely to have held out:
    public. A client weighs by what its counts can tell: all records alike where noise is small beside the rows, less where
    it is large."""
    weights = expected / (1.5 * stds**2 / judged.l2_squared + expected / 4)
    weights = weights / weights.max()
    stacked = np.stack(answers).astype(np.float64)
    counts, squares = weights @ stacked, weights**2 @ stacked
    noise = float(weights**2 @ (stds**2 + (stds > 0) / 12))
    rng, spread = np.random.default_rng(seed), np.sqrt(judged.sampling(squares) + noise)
    drawn = [judged.metrics(counts + spread * rng.standard_normal(len(counts)), std=0.0) for _ in range(DRAWS)]
    values = {}
    for name, value in judged.metrics(counts, std=math.sqrt(noise)).items():
        others = [float(found) for one in drawn if (found := one[name]) is not None]
        ends = None if value is None or len(others) < DRAWS // 2 else np.quantile(others, MIDDLE)
        values[name] = {"value": value, "interval": None if ends is None else [float(ends[0]), float(ends[1])]}
    return Evaluated(values, max(0.0, judged.rows(stacked.sum(0))))


def is_informative(judged: Judgement, metric: str, stds: np.ndarray, expected: np.ndarray) -> bool:
    """Whether noised counts of so many expected records will tell more of a metric than a coin: its interval leaves something
    out."""
    largest, guessed = 1.0, np.full(judged.cells, 1 / judged.cells)  # who answers at random is in every cell as often
    if isinstance(judged, Errors | Means):  # or has errors that are as often small as large
        largest, guessed = judged.largest, GRID * np.array([1.0, 1 / 2, 1 / 3])[: judged.cells]
    ends = combine(judged, [rows * guessed for rows in expected], stds, expected).values[metric]["interval"]
    return ends is not None and ends[1] - ends[0] < COIN * largest


def _of_table(table: np.ndarray, *, least: float) -> Values:
    right, asked, said = np.diag(table), table.sum(1), table.sum(0)
    recalls = [ratio(one, of, least=least) for one, of in zip(right, asked, strict=True)]
    scores = [ratio(2 * one, of + to, least=least) for one, of, to in zip(right, asked, said, strict=True)]
    return {
        "accuracy": ratio(right.sum(), table.sum(), least=least * math.sqrt(len(table))),
        "balanced_accuracy": _mean(recalls),
        "f1": scores[1] if len(scores) == 2 else _mean(scores),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
