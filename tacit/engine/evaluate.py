"""What a model's parameters are worth on the public test rows, and the records of a run as flat rows for tables."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from tacit.data.dataset import IGNORED
from tacit.engine.assemble import Parts, TrainingTask
from tacit.parts import metrics
from tacit.parts.metrics import Answers, Metric
from tacit.parts.tasks import chosen
from tacit.training.flat import training

MOST_CLASSES = 30  # of a matrix that people can read
CHUNK = 1000  # rows at a time, so that activations stay in the cache
ON_DEVICE = 1 << 25  # bytes of rows at a time on an accelerator
BACKDOOR = "backdoor_accuracy"  # of a round's record, where clients are malicious
WORTH_THREADS = 2e7  # rows x parameters: below, waking threads costs more than they do


def evaluate(parts: Parts, params: torch.Tensor) -> dict[str, float]:
    """The headline metric and the mean loss of the model with these parameters; nothing where there are no test rows.
    Raises: BadInput where the rows cannot tell."""
    return evaluating(parts, params)()


def evaluating(parts: Parts, params: torch.Tensor) -> Callable[[], dict[str, float]]:
    """`evaluate` in two steps: a device begins to answer now, and is waited for when the result is asked for."""
    if not len(parts.dataset.test_y):
        return dict
    return partial(_measured, chosen(parts.experiment), _begin(parts, params, *parts.test_rows))


def _measured(name: str, found_and_loss: Callable[[], tuple[Answers, float]]) -> dict[str, float]:
    found, loss = found_and_loss()
    if not math.isfinite(loss):  # training diverged: the loop says so, and no metric has anything to add
        return {metrics.key(name): math.nan, "loss": loss}
    return {metrics.key(name): metrics.measure(_metric(name), found, name=name), "loss": loss}


def backdoor(parts: Parts, params: torch.Tensor) -> dict[str, float]:
    """The share of triggered public rows that the model takes for what malicious clients want; nothing where there are none.
    It is for the researcher of a simulation: no epsilon covers it."""
    if parts.attack is None or parts.backdoor_rows is None:
        return {}
    found, _ = answers_to(parts, params, *parts.backdoor_rows)
    return {BACKDOOR: float((found.labels == found.targets).mean())}


def answers_to(parts: TrainingTask, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[Answers, float]:
    return _begin(parts, params, x, y)()


@torch.inference_mode()
def _begin(
    parts: TrainingTask, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], tuple[Answers, float]]:
    threads, device = torch.get_num_threads(), parts.theta.device
    size = sum(parameter.numel() for parameter in parts.model.parameters())
    torch.set_num_threads(parts.threads if len(y) * size > WORTH_THREADS else threads)
    parts.theta.copy_(params)
    chunk = max(CHUNK, ON_DEVICE // max(1, x[:1].nbytes) if device.type == "cuda" else 0)
    try:
        while True:
            parts.model.eval()
            predictions, losses = [], []
            try:
                for rows, targets in zip(x.split(chunk), y.split(chunk), strict=True):
                    outputs = parts.model(rows.to(device))
                    losses.append(parts.losses(outputs, targets.to(device)).sum())
                    predictions.append(parts.task.predictions(outputs))
                answers, summed = torch.cat(predictions), torch.stack(losses)
                break
            except torch.OutOfMemoryError:  # somebody else's, or what training keeps: fewer rows at a time
                if chunk == 1:
                    raise
                torch.cuda.empty_cache()
                chunk //= 2
    finally:
        training(parts.model)
        torch.set_num_threads(threads)
    return lambda: (answered(parts, answers.cpu().numpy(), y), sum(summed.tolist()) / len(y))


def answered(parts: TrainingTask, predictions: np.ndarray, y: torch.Tensor) -> Answers:
    """Predictions beside their targets. Of tokens each position is one answer, but for those that are not counted."""
    kind, names, targets = parts.experiment.task.kind, parts.dataset.class_names, y.cpu().numpy()
    if targets.ndim == 1 or y.is_floating_point():
        return Answers(kind, targets, predictions, names)
    counted = targets != IGNORED
    return Answers(kind, targets[counted], predictions[counted], names, np.nonzero(counted)[0])


def measurements(parts: Parts, found: Answers) -> dict[str, dict[str, Any]]:
    """Every metric of the task, the headline first: value, 95 % interval over test rows, what a constant answer reaches.
    Raises Unmeasured where the test rows cannot tell the headline."""
    first = chosen(parts.experiment)
    known = {first: {"value": metrics.measure(_metric(first), found, name=first), "interval": None}}
    names = [first, *(name for name in parts.task.metrics if name != first)]
    facts = {
        name: {"better": _metric(name).better, "baseline": metrics.baseline(_metric(name), found)} for name in names
    }
    return {metrics.key(name): values | facts[name] for name, values in (known | metrics.table(names, found)).items()}


def confusion(found: Answers) -> list[list[int]] | None:
    """How often each class (row) was taken for each (column), among test rows; None where there are no such classes."""
    classes = len(found.class_names)
    if found.kind not in ("classification", "binary") or classes > MOST_CLASSES:
        return None
    cells = np.bincount(found.targets * classes + found.labels, minlength=classes * classes)
    return cells.reshape(classes, classes).tolist()


@lru_cache(maxsize=16)
def _metric(name: str) -> Metric:
    return metrics.load(name)


def flat_records(rounds: Sequence[dict[str, Any]], *, unit: str | None) -> list[dict[str, Any]]:
    """One flat dict of scalars per round, all with the same keys; the name of an epsilon carries its unit.

    >>> flat_records([{"round": 0, "dropped": ["a"], "epsilon_loosest": 1.5}, {"round": 1}], unit="record")
    [{'round': 0, 'epsilon_per_record_loosest': 1.5}, {'round': 1, 'epsilon_per_record_loosest': None}]
    """
    return filled([scalars(record, unit=unit) for record in rounds])


def filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def scalars(record: dict[str, Any], *, unit: str | None) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
    return {re.sub("^epsilon_", f"epsilon_per_{unit}_", key) if unit else key: value for key, value in kept.items()}


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["round"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
