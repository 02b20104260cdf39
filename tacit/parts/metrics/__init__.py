"""Metrics: how good a model is on public test rows. One file per metric; its name is `metric.choose` in the TOML.

Or anybody's "package.module:name". A metric is a class with `better` ("higher" or "lower"), the `best` value there is (None where
there is no limit), and a call that makes one number of `Answers`; it raises ValueError where the test rows cannot tell, such as an
AUROC of one class. Whatever somebody else's raises becomes one sentence before anybody pays, and later costs its number alone.
Computed by scikit-learn wherever it has it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, cast

import numpy as np

from tacit import plugin
from tacit.errors import BadInput, Unmeasured
from tacit.parts.metrics import _resample
from tacit.parts.metrics._answers import Answers as Answers

ROOM = "tacit.parts.metrics"
SPELT = {"auroc": "AUROC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "brier": "Brier score"}


class Metric(Protocol):
    """One number about answers."""

    better: Literal["higher", "lower"]
    best: float | None
    worst: float | None

    def __call__(self, answers: Answers) -> float: ...


def names() -> list[str]:
    """The metrics that ship with Tacit, by file."""
    return plugin.names(ROOM)


def load(name: str, *, key: str = "metric.choose") -> Metric:
    """The metric of a name. Raises BadInput in one sentence.

    >>> load("rmse").better
    'lower'
    """
    made: Any = plugin.make(plugin.find(ROOM, name, key=key), {}, table="metric")
    odd = not callable(made) or getattr(made, "better", None) not in ("higher", "lower")
    if odd:
        raise BadInput(f'{key} = {name!r} is no metric: it needs a call and `better`, "higher" or "lower".')
    return cast(Metric, made)


def key(metric: str) -> str:
    """A metric's name in records and summaries: the last word of somebody's own.

    >>> key("balanced-accuracy"), key("mine.metrics:lift")
    ('balanced_accuracy', 'lift')
    """
    return metric.rpartition(":")[2].replace("-", "_")


def words(key: str) -> str:
    """A metric's name for people.

    >>> words("auroc"), words("balanced_accuracy")
    ('AUROC', 'balanced accuracy')
    """
    return SPELT.get(key, key.replace("_", " "))


def bounds(key: str) -> tuple[float, float]:
    """Between which values a metric lies, by its name in records; of somebody else's, nothing is known.

    >>> bounds("auroc"), bounds("rmse"), bounds("r2"), bounds("lift")
    ((0.0, 1.0), (0.0, inf), (-inf, 1.0), (-inf, inf))
    """
    name = key.replace("_", "-")
    if name not in names():
        return -math.inf, math.inf
    metric = load(name)
    low, high = (metric.worst, metric.best) if metric.better == "higher" else (metric.best, metric.worst)
    return -math.inf if low is None else low, math.inf if high is None else high


def is_share(key: str) -> bool:
    """Whether a metric is a share of 1, which people read in per cent."""
    return bounds(key) == (0.0, 1.0)


def measure(metric: Metric, answers: Answers, *, name: str) -> float:
    """A metric's number. Raises Unmeasured, whatever the metric raises, where the rows cannot tell: it is finite or refused."""
    try:
        with plugin.guarded(f"metric.choose = {name!r} cannot be computed on these test rows"):
            value = float(metric(answers))
    except BadInput as error:
        raise Unmeasured(str(error)) from error
    if not math.isfinite(value):
        raise Unmeasured(f"metric.choose = {name!r} gave {value} on these test rows: choose another.")
    return value


def told(metric: Metric, answers: Answers) -> float | None:
    """A metric's number, or None where these rows cannot tell: at the end of a run that was paid for, nothing may be lost by it."""
    try:
        return measure(metric, answers, name="")
    except BadInput:
        return None


def table(names: Sequence[str], answers: Answers) -> dict[str, dict[str, Any]]:
    """Each metric's value, and the middle 95 % of it over test rows drawn again (or its own `interval`); left out where the rows
    cannot tell.

    The interval is about the choice of test rows alone: not about seeds, noise or clients. Somebody else's metric that cannot read
    all draws at once has one where it stands for the run; two hundred calls of every other would take longer than a short run.
    """
    made = {name: load(name) for name in names}
    values = {name: told(metric, answers) for name, metric in made.items()}
    quick = {name: metric for name, metric in made.items() if hasattr(metric, "resampled") and values[name] is not None}
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in quick}
    for counts in _resample.counts(answers):
        for name, metric in quick.items():
            drawn[name].append(metric.resampled(answers, counts))  # pyright: ignore[reportAttributeAccessIssue]
    ends = {name: _resample.middle(np.concatenate(parts)) if parts else None for name, parts in drawn.items()}
    for name in quick:
        exact = getattr(made[name], "interval", None)
        ends[name] = (exact(answers) if exact else None) or ends[name]
    if names[0] not in quick:
        ends[names[0]] = interval(made[names[0]], answers)
    return {
        name: {"value": value, "interval": _around(value, ends.get(name))}
        for name, value in values.items()
        if value is not None
    }


def _around(value: float, ends: list[float] | None) -> list[float] | None:
    """An interval that holds the value: where all draws say the same, rounding may put it beside them."""
    return ends and [min(ends[0], value), max(ends[1], value)]


def interval(metric: Metric, answers: Answers) -> list[float] | None:
    """The same interval draw by draw, the slow twin that works for every metric; None of fewer than two rows."""
    values = [told(metric, answers.rows(draw)) for draw in _resample.draws(answers)]
    return _resample.middle(np.array([value for value in values if value is not None]))


def baseline(metric: Metric, answers: Answers) -> float | None:
    """What always answering the same would reach: the shares of the classes among the test rows, or the mean of their numbers.

    >>> even = Answers("classification", np.array([0, 0, 0, 1]), np.full((4, 2), 0.5), ("no", "yes"))
    >>> baseline(load("accuracy"), even)
    0.75
    """
    targets, predictions = answers.targets, answers.predictions
    if targets.dtype.kind == "f":
        constant = targets.reshape(predictions.shape).mean(0)
    else:
        constant = np.bincount(targets.reshape(-1), minlength=predictions.shape[-1]) / max(1, targets.size)
    return told(metric, replace(answers, predictions=np.broadcast_to(constant, predictions.shape)))
