"""Metrics: how good a model is on public test rows. `metric.choose` names one of these, or anybody's "package.module:name": a class
with `better`, its `best` and `worst` value (None: no limit), and a call that makes one number of `Answers` or raises ValueError.
With `resampled(answers, counts)` a metric reads all draws of rows at once (percentile bootstrap). Tests hold these to
scikit-learn's, which every run would otherwise load: half a second and 75 MB."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, Protocol, cast

import numpy as np

from tacit import plugin
from tacit.errors import BadInput, Unmeasured
from tacit.plugin import part

ROOM = "tacit.parts.metrics"
SPELT = {"auroc": "AUROC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "brier": "Brier score"}
WITH_CLASSES = ("classification", "binary", "multilabel")  # kinds of tasks
RESAMPLES = 200  # of the test rows, for an interval: the ends of the middle 95 % move by a tenth of its width
MIDDLE = (0.025, 0.975)
MOST_NUMBERS = 1 << 22  # of counts held at a time
LEAST = 2.0**-52  # a probability that was rounded to zero


@dataclass(frozen=True, eq=False)
class Answers:
    """Targets, and predictions as the task reads them, one row per answer. Of tokens a test row has one answer per position, and
    `row` says which test row each answer is of; targets of -100 (`ignored`) and their predictions are left out."""

    kind: str
    targets: np.ndarray = field(repr=False)
    predictions: np.ndarray = field(repr=False)
    class_names: tuple[str, ...] = ()
    row: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def test_rows(self) -> int:
        """How many rows were tested; of tokens a row has several answers."""
        return len(self.targets) if self.row is None else int(self.row.max(initial=-1)) + 1

    def rows(self, index: np.ndarray) -> "Answers":
        """The answers of some test rows, perhaps more than once."""
        if self.row is not None:
            index = np.concatenate([np.flatnonzero(self.row == one) for one in index])
        return replace(self, targets=self.targets[index], predictions=self.predictions[index], row=None)

    @property
    def labels(self) -> np.ndarray:
        """The predicted class of every answer, or 0 and 1 for every label."""
        if self.kind == "multilabel":
            return (self.predictions > 0.5).astype(int)
        return self.predictions.argmax(-1)

    @property
    def classes(self) -> Sequence[int]:
        """The classes by number."""
        return range(self.predictions.shape[-1])


class Metric(Protocol):
    """One number about answers."""

    better: Literal["higher", "lower"]
    best: float | None
    worst: float | None

    def __call__(self, answers: Answers) -> float: ...


def load(name: str, *, key: str = "metric.choose") -> Metric:
    made: Any = plugin.make(plugin.find(ROOM, name, key=key), {}, table="metric")
    if not callable(made) or getattr(made, "better", None) not in ("higher", "lower"):
        raise BadInput(f'{key} = {name!r} is no metric: it needs a call and `better`, "higher" or "lower".')
    return cast(Metric, made)


def key(metric: str) -> str:
    """A metric's name in records and summaries: "balanced_accuracy", and "lift" of "mine.metrics:lift"."""
    return metric.rpartition(":")[2].replace("-", "_")


def words(key: str) -> str:
    """A metric's name for people."""
    return SPELT.get(key, key.replace("_", " "))


def bounds(key: str) -> tuple[float, float]:
    """Between which values a metric lies, by its name in records; of somebody else's, nothing is known."""
    name = key.replace("_", "-")
    if name not in plugin.names(ROOM):
        return -math.inf, math.inf
    metric = load(name)
    low, high = (metric.worst, metric.best) if metric.better == "higher" else (metric.best, metric.worst)
    return -math.inf if low is None else low, math.inf if high is None else high


def is_share(key: str) -> bool:
    return bounds(key) == (0.0, 1.0)


def measure(metric: Metric, answers: Answers, *, name: str) -> float:
    """A metric's finite number. Raises: Unmeasured, whatever the metric raises, where the rows cannot tell."""
    try:
        value = float(metric(answers))
    except BadInput as error:
        raise Unmeasured(str(error)) from error
    except Exception as error:
        said = f"metric.choose = {name!r} cannot be computed on these test rows"
        raise Unmeasured(f"{said} ({plugin.said(error)}).") from error
    if not math.isfinite(value):
        raise Unmeasured(f"metric.choose = {name!r} gave {value} on these test rows: choose another.")
    return value


def measure_if_possible(metric: Metric, answers: Answers) -> float | None:
    """A metric's number, or None where the rows cannot tell: nothing of a run that was paid for may be lost by it."""
    try:
        return measure(metric, answers, name="")
    except BadInput:
        return None


def table(names: Sequence[str], answers: Answers) -> dict[str, dict[str, Any]]:
    """Each metric's value and 95 % interval; left out where the rows cannot tell. The interval (the middle of test rows drawn
    again, or the metric's own `interval`) is about the choice of test rows, not about seeds, noise or clients. A metric without
    `resampled` has one only where it is the first."""
    made = {name: load(name) for name in names}
    values = {name: measure_if_possible(metric, answers) for name, metric in made.items()}
    quick = {name: metric for name, metric in made.items() if hasattr(metric, "resampled") and values[name] is not None}
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in quick}
    for drawn_counts in counts(answers):
        for name, metric in quick.items():
            drawn[name].append(metric.resampled(answers, drawn_counts))  # pyright: ignore[reportAttributeAccessIssue]
    ends = {name: middle(np.concatenate(parts)) if parts else None for name, parts in drawn.items()}
    for name, metric in quick.items():
        exact = getattr(metric, "interval", None)
        ends[name] = (exact(answers) if exact else None) or ends[name]
    if names[0] not in quick:
        slow = [measure_if_possible(made[names[0]], answers.rows(draw)) for draw in draws(answers)]
        ends[names[0]] = middle(np.array([value for value in slow if value is not None]))
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if value is not None:
            low_high = ends.get(name)  # where all draws say the same, rounding may put the value beside them
            around = low_high and [min(low_high[0], value), max(low_high[1], value)]
            found[name] = {"value": value, "interval": around}
    return found


def baseline(metric: Metric, answers: Answers) -> float | None:
    """What one answer to all rows would reach: the shares of the classes among the test rows, or the mean of their numbers."""
    targets, predictions = answers.targets, answers.predictions
    if targets.dtype.kind == "f":
        constant = targets.reshape(predictions.shape).mean(0)
    else:
        constant = np.bincount(targets.reshape(-1), minlength=predictions.shape[-1]) / max(1, targets.size)
    return measure_if_possible(metric, replace(answers, predictions=np.broadcast_to(constant, predictions.shape)))


def per_class(answers: Answers) -> list[dict[str, Any]]:
    """Recall, precision and F1 of every class or label, each with its 95 % interval, or None where the rows cannot tell; empty
    where a task has no classes."""
    if answers.kind not in WITH_CLASSES or not len(answers):
        return []
    classes = len(answers.classes)
    names = answers.class_names or tuple(f"label {k + 1}" for k in range(classes))
    right, held, predicted = (found[0] for found in _by_class(answers, np.ones((1, len(answers)), np.float32)))
    drawn = [_f1(_by_class(answers, drawn_counts), empty=np.nan) for drawn_counts in counts(answers)]
    f1, ends = _f1((right, held, predicted)), np.concatenate(drawn) if drawn else np.empty((0, classes))

    def share(hits: float, total: float) -> dict[str, Any] | None:
        return {"value": float(hits / total), "interval": wilson(hits, total)} if total else None

    return [
        {
            "class": str(names[k]),
            "rows": int(held[k]),
            "recall": share(right[k], held[k]),
            "precision": share(right[k], predicted[k]),
            "f1": {"value": float(f1[k]), "interval": middle(ends[:, k])} if held[k] + predicted[k] else None,
        }
        for k in range(classes)
    ]


# Test rows drawn again. A draw is how often each answer was drawn, [draws, answers].


def draws(answers: Answers) -> Iterator[np.ndarray]:
    """Which test rows each draw has; always the same for as many rows."""
    rng, rows = np.random.default_rng(0), answers.test_rows
    return (rng.integers(0, rows, rows) for _ in range(RESAMPLES if rows > 1 else 0))


def counts(answers: Answers) -> Iterator[np.ndarray]:
    """How often each answer is drawn, some draws at a time: answers of one test row are drawn together."""
    at_once = max(1, MOST_NUMBERS // max(1, len(answers)))
    drawn = (np.bincount(draw, minlength=answers.test_rows) for draw in draws(answers))
    while some := list(islice(drawn, at_once)):
        by_row = np.stack(some).astype(np.float32)
        yield by_row if answers.row is None else by_row[:, answers.row]


def middle(values: np.ndarray) -> list[float] | None:
    """The middle 95 % of draws that could tell; None where half of them could not, as where a class is too rare."""
    finite = values[np.isfinite(values)]
    return [float(end) for end in np.quantile(finite, MIDDLE)] if len(finite) > RESAMPLES // 2 else None


def wilson(hits: float, total: float) -> list[float]:
    """Wilson's 95 % interval of a share: draws of rows that are all right say nothing of the one that will be wrong."""
    share, z = hits / total, 1.959964
    centre, spread = share + z * z / (2 * total), z * np.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    low, high = (centre - spread) / (1 + z * z / total), (centre + spread) / (1 + z * z / total)
    return [float(max(0.0, low)), float(min(1.0, high))]


def means(each: np.ndarray, counts: np.ndarray) -> np.ndarray:
    centre = each.mean(dtype=np.float64)  # so that float32 sums lose nothing that is seen
    return centre + (counts @ (each - centre).astype(np.float32)).astype(np.float64) / counts.sum(1)


def sums(each: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of columns (whole numbers: exact) in every draw, [draws, columns]."""
    return (counts @ each.astype(np.float32)).astype(float)


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return labels.astype(bool) if labels.ndim > 1 else labels[:, None] == np.arange(classes)


def columns(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Whether each class, or label, holds, and its scores; of two classes only the second counts."""
    holds = one_hot(answers.targets, len(answers.classes))
    if answers.kind == "multilabel":
        return holds, answers.predictions
    only = slice(1, None) if holds.shape[1] == 2 else slice(None)
    return holds[:, only], answers.predictions[:, only]


def ranked(scores: np.ndarray, holds: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drawn answers that hold, and that do not, by score from the highest down, equal scores together: [draws, scores] each."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    drawn = counts[:, order]
    held = drawn * holds[order].astype(np.float32)
    rest = drawn - held
    if len(first) < len(ordered):
        held, rest = np.add.reduceat(held, first, axis=1), np.add.reduceat(rest, first, axis=1)
    return held, rest


def _errors(answers: Answers) -> np.ndarray:
    return (answers.predictions - answers.targets.reshape(answers.predictions.shape)).reshape(len(answers), -1)


def _by_class(answers: Answers, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers of each class in every draw that are right, that hold, and that are predicted; [draws, classes] each."""
    holds, guessed = (one_hot(labels, len(answers.classes)) for labels in (answers.targets, answers.labels))
    return sums(holds & guessed, counts), sums(holds, counts), sums(guessed, counts)


def _share(part: np.ndarray, of: np.ndarray, *, empty: float) -> np.ndarray:
    """`part` over `of`, both counts that are not negative, and `empty` where there is nothing."""
    return np.divide(part, of, out=np.full(of.shape, empty), where=of > 0)


def _f1(counted: tuple[np.ndarray, np.ndarray, np.ndarray], *, empty: float = 0.0) -> np.ndarray:
    right, held, predicted = counted
    return _share(2 * right, held + predicted, empty=empty)


# The metrics: means of a number per answer, and those that are counted.


class _Mean:
    better = "lower"
    best: float | None = 0.0
    worst: float | None = None
    each: Any  # (answers) -> a number per answer, or one per answer and target

    def of(self, mean: np.ndarray) -> np.ndarray:
        return mean

    def __call__(self, answers: Answers) -> float:
        return float(self.of(self.each(answers).mean(dtype=np.float64)))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        return self.of(means(self.each(answers).reshape(len(answers), -1).mean(1), counts))


@part
class accuracy(_Mean):
    """The share of test rows (of labels, of tokens) whose prediction is right."""

    better, best, worst = "higher", 1.0, 0.0

    def each(self, answers: Answers) -> np.ndarray:
        right = answers.labels == answers.targets.reshape(answers.labels.shape)
        return right.reshape(len(right), -1).mean(1)

    def interval(self, answers: Answers) -> list[float] | None:
        whole = answers.row is None and answers.targets.ndim == 1 and len(answers) > 1
        return wilson(float(self.each(answers).sum()), len(answers)) if whole else None


@part
class brier(_Mean):
    """The mean squared distance of the probabilities from what held: of yes for two classes, summed over more classes."""

    def each(self, answers: Answers) -> np.ndarray:
        if answers.kind == "multilabel":
            return np.square(answers.predictions - answers.targets).mean(1)
        errors = np.square(answers.predictions - one_hot(answers.targets, len(answers.classes)))
        return errors[:, 1] if errors.shape[1] == 2 else errors.sum(1)


@part
class log_loss(_Mean):
    """The mean of -log of the probability given to what held, without class weights."""

    def each(self, answers: Answers) -> np.ndarray:
        given = np.take_along_axis(answers.predictions, answers.targets[:, None], axis=1)
        return -np.log(np.maximum(given[:, 0], LEAST))


@part
class perplexity(log_loss):
    """exp of the mean of -log of the probability given to each token: as if one of that many were guessed evenly."""

    best = 1.0

    def of(self, mean: np.ndarray) -> np.ndarray:
        return np.exp(mean)


@part
class mae(_Mean):
    """The mean absolute error, in the targets' own units."""

    def each(self, answers: Answers) -> np.ndarray:
        return np.abs(_errors(answers))


@part
class rmse(_Mean):
    """The root of the mean squared error, in the targets' own units."""

    def each(self, answers: Answers) -> np.ndarray:
        return np.square(_errors(answers))

    def of(self, mean: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(mean, 0.0))


class _Counted:
    better = "higher"
    best: float | None = 1.0
    worst: float | None = 0.0
    resampled: Any  # (answers, counts) -> the metric in every draw

    def refuse(self, answers: Answers) -> None:
        """Raises: ValueError where the rows cannot tell."""

    def __call__(self, answers: Answers) -> float:
        self.refuse(answers)
        return float(self.resampled(answers, np.ones((1, len(answers))))[0])  # every answer once, in float64


@part
class balanced_accuracy(_Counted):
    """The mean recall of the classes that test rows have: .5 for a coin, however rare a class is."""

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        holds = one_hot(answers.targets, len(answers.classes))
        right = holds & (answers.labels == answers.targets)[:, None]
        drawn = sums(holds, counts)
        recall = _share(sums(right, counts), drawn, empty=0.0)
        return recall.sum(1) / (drawn > 0).sum(1)  # of the classes that are drawn


@part
class f1(_Counted):
    """F1 of the second of two classes; of several classes or labels the mean over them. 0 where none holds or is predicted."""

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        each = _f1(_by_class(answers, counts))
        return each[:, 1] if answers.kind != "multilabel" and each.shape[1] == 2 else each.mean(1)


@part
class auroc(_Counted):
    """The chance that a row of a class scores higher than one of the others; the mean over classes (one against the rest)."""

    def refuse(self, answers: Answers) -> None:
        holds, _ = columns(answers)
        if not (holds.any(0) & ~holds.all(0)).all():
            raise ValueError("test rows of both kinds are needed for every class")

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        holds, scores = columns(answers)
        return np.mean([self.area(*ranked(scores[:, k], holds[:, k], counts)) for k in range(holds.shape[1])], axis=0)

    def area(self, held: np.ndarray, rest: np.ndarray) -> np.ndarray:
        above = np.cumsum(held, axis=1, dtype=float)
        pairs = above[:, -1] * rest.sum(1, dtype=float)
        ordered = np.einsum("ds,ds->d", above - 0.5 * held, rest)
        return _share(ordered, pairs, empty=np.nan)


@part
class average_precision(auroc):
    """The mean precision over the ranks of the rows that hold; the mean over classes or labels."""

    def refuse(self, answers: Answers) -> None:
        holds, _ = columns(answers)
        if not holds.any(0).all():
            raise ValueError("every class needs a test row")

    def area(self, held: np.ndarray, rest: np.ndarray) -> np.ndarray:
        hits, taken = np.cumsum(held, axis=1, dtype=float), np.cumsum(held + rest, axis=1, dtype=float)
        precision = _share(hits, taken, empty=0.0)
        return _share(np.einsum("ds,ds->d", precision, held), hits[:, -1], empty=np.nan)


@part
class r2(_Counted):
    """1 for exact predictions, 0 for always answering the mean, below 0 for worse; the mean over several targets."""

    worst = None

    def refuse(self, answers: Answers) -> None:
        if len(answers) < 2:
            raise ValueError("two test rows are needed")

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        drawn, targets = counts.astype(float), answers.targets.reshape(len(answers), -1).astype(float)
        targets = targets - targets.mean(0)
        spread = drawn @ np.square(targets) - np.square(drawn @ targets) / drawn.sum(1, keepdims=True)
        missed = drawn @ np.square(_errors(answers).astype(float))
        each = 1 - np.divide(missed, spread, out=np.ones_like(spread), where=spread > 0)
        return np.where((spread <= 0) & (missed == 0), 1.0, each).mean(1)
