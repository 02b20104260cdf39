"""Recall, precision and F1 of every class or label, each with its 95 % interval over test rows."""

from typing import Any

import numpy as np

from tacit.parts.metrics import _resample
from tacit.parts.metrics._answers import Answers

KINDS = ("classification", "binary", "multilabel")


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
    right, held, taken = (found[0] for found in _counted(answers, once))
    drawn = [_f1(*_counted(answers, counts)) for counts in _resample.counts(answers)]
    f1, ends = _f1(right, held, taken), np.concatenate(drawn) if drawn else np.empty((0, classes))
    return [
        {
            "class": str(names[k]),
            "rows": int(held[k]),
            "recall": _share(right[k], held[k]),
            "precision": _share(right[k], taken[k]),
            "f1": {"value": float(f1[k]), "interval": _resample.middle(ends[:, k])} if held[k] + taken[k] else None,
        }
        for k in range(classes)
    ]


def _counted(answers: Answers, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each class in every draw: answers that are right, that hold, and that are taken for it; [draws, classes] each."""
    classes = answers.predictions.shape[-1]
    holds, guessed = (_resample.one_hot(labels, classes) for labels in (answers.targets, answers.labels))
    right, held, taken = (_resample.sums(each, counts) for each in (holds & guessed, holds, guessed))
    return right, held, taken


def _f1(right: np.ndarray, held: np.ndarray, taken: np.ndarray) -> np.ndarray:
    among = held + taken
    return np.divide(2 * right, among, out=np.full_like(among, np.nan), where=among > 0)


def _share(hits: float, total: float) -> dict[str, Any] | None:
    return {"value": float(hits / total), "interval": _resample.wilson(hits, total)} if total else None
