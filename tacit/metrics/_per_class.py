"""Recall, precision and F1 of every class or label, each with its 95 % interval over test rows."""

from typing import Any

import numpy as np

from tacit.metrics import _resample
from tacit.metrics._answers import Answers

KINDS = ("classification", "binary", "multilabel")
MEASURES = ("recall", "precision", "f1")


def per_class(answers: Answers) -> list[dict[str, Any]]:
    """One entry per class: its name, how many test rows it has, and its measures; empty where a task has no classes.

    A measure is None where these rows cannot tell: the recall of a class that no row has, the precision of one never predicted.

    >>> found = per_class(Answers("classification", np.array([0, 0, 1]), np.eye(3)[[0, 1, 1]], ("a", "b", "c")))
    >>> [(one["class"], one["rows"], one["recall"] and one["recall"]["value"]) for one in found]
    [('a', 2, 0.5), ('b', 1, 1.0), ('c', 0, None)]
    """
    if answers.kind not in KINDS or not len(answers):
        return []
    classes = answers.predictions.shape[-1]
    names = answers.class_names or tuple(f"label {k + 1}" for k in range(classes))
    once = np.ones((1, len(answers)), np.float32)
    values = {key: found[0] for key, found in _measures(answers, once).items()}
    parts = [_measures(answers, counts) for counts in _resample.counts(answers)]
    drawn = {key: np.concatenate([part[key] for part in parts]) if parts else None for key in MEASURES}
    rows = _resample.one_hot(answers.targets, classes).sum(0).tolist()
    return [
        {"class": str(names[k]), "rows": rows[k]} | {key: _entry(values[key][k], drawn[key], k) for key in MEASURES}
        for k in range(classes)
    ]


def _measures(answers: Answers, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Each measure of each class in every draw, [draws, classes]; NaN where it cannot be told."""
    holds, guessed = (
        _resample.one_hot(labels, answers.predictions.shape[-1]) for labels in (answers.targets, answers.labels)
    )
    right, held, taken = (_resample.sums(each, counts) for each in (holds & guessed, holds, guessed))
    return {"recall": _share(right, held), "precision": _share(right, taken), "f1": _share(2 * right, held + taken)}


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _entry(value: float, drawn: np.ndarray | None, k: int) -> dict[str, Any] | None:
    if not np.isfinite(value):
        return None
    return {"value": float(value), "interval": None if drawn is None else _resample.middle(drawn[:, k])}
