"""What a model's parameters are worth on the public test rows."""

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
from tacit.parts.metrics import Answers, Metric, per_class
from tacit.parts.tasks import chosen, headline
from tacit.training.flat import training
from tacit.types import Guarantee

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
    return partial(_measured, parts, _asked(parts, params, *parts.test_rows))


def _measured(parts: Parts, found_and_loss: Callable[[], tuple[Answers, float]]) -> dict[str, float]:
    (found, loss), name = found_and_loss(), chosen(parts.experiment)
    if not math.isfinite(loss):  # training diverged: the loop says so, and no metric has anything to add
        return {metrics.key(name): math.nan, "loss": loss}
    return {metrics.key(name): metrics.measure(_metric(name), found, name=name), "loss": loss}


def backdoor(parts: Parts, params: torch.Tensor) -> dict[str, float]:
    """The share of triggered public rows that the model takes for what malicious clients want; nothing where there are none.
    It is for the researcher of a simulation: no epsilon covers it."""
    if parts.backdoor_rows is None:
        return {}
    found, _ = answers_to(parts, params, *parts.backdoor_rows)
    return {BACKDOOR: float((found.labels == found.targets).mean())}


def answers(parts: Parts, params: torch.Tensor) -> tuple[Answers, float]:
    """What the model answers to the test rows, and its mean loss."""
    return answers_to(parts, params, *parts.test_rows)


def answers_to(parts: TrainingTask, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[Answers, float]:
    """What the model answers to some rows, and its mean loss."""
    return _asked(parts, params, x, y)()


def _asked(
    parts: TrainingTask, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], tuple[Answers, float]]:
    before = torch.get_num_threads()
    size = sum(parameter.numel() for parameter in parts.model.parameters())
    worth = len(y) * size > WORTH_THREADS
    torch.set_num_threads(parts.threads if worth else before)
    try:
        return _answers(parts, params, x, y)
    finally:
        torch.set_num_threads(before)


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


def classes_measured(found: Answers) -> list[dict[str, Any]]:
    """Recall, precision and F1 of each class among test rows; empty where there are none, or more than people read."""
    return per_class(found) if found.predictions.shape[-1] <= MOST_CLASSES else []


@torch.inference_mode()
def _answers(
    parts: TrainingTask, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], tuple[Answers, float]]:
    parts.theta.copy_(params)
    chunk = _at_once(x, parts.theta.device)
    while True:
        parts.model.eval()
        try:
            told, summed = _outputs(parts, x, y, chunk)
            break
        except torch.OutOfMemoryError:  # somebody else's, or what training keeps: fewer rows at a time
            if chunk == 1:
                raise
            torch.cuda.empty_cache()
            chunk //= 2
        finally:
            training(parts.model)
    return lambda: (answered(parts, told.cpu().numpy(), y), sum(summed.tolist()) / len(y))


def _outputs(parts: TrainingTask, x: torch.Tensor, y: torch.Tensor, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    predictions, losses, device = [], [], parts.theta.device
    for rows, targets in zip(x.split(chunk), y.split(chunk), strict=True):
        outputs = parts.model(rows.to(device))
        losses.append(parts.losses(outputs, targets.to(device)).sum())
        predictions.append(parts.task.predictions(outputs))
    return torch.cat(predictions), torch.stack(losses)


def _at_once(x: torch.Tensor, device: torch.device) -> int:
    most = ON_DEVICE // max(1, x[:1].nbytes) if device.type == "cuda" else 0
    return max(CHUNK, most)


def answered(parts: TrainingTask, predictions: np.ndarray, y: torch.Tensor) -> Answers:
    """Predictions beside their targets. Of tokens each position is one answer, but for those that are not counted."""
    kind, names, targets = parts.experiment.task.kind, parts.dataset.class_names, y.cpu().numpy()
    if targets.ndim == 1 or y.is_floating_point():
        return Answers(kind, targets, predictions, names)
    counted = targets != IGNORED
    return Answers(kind, targets[counted], predictions[counted], names, np.nonzero(counted)[0])


@lru_cache(maxsize=16)
def _metric(name: str) -> Metric:
    return metrics.load(name)


# The records of a run in other shapes: flat rows for tables, and who its clients are for the report.

MOST_COLUMNS = 2000  # more clients share a column of labels by clients


def flat_records(rounds: Sequence[dict[str, Any]], *, unit: str | None) -> list[dict[str, Any]]:
    """One flat dict of scalars per round, all with the same keys; the name of an epsilon carries its unit.

    >>> flat_records([{"round": 0, "dropped": ["a"], "epsilon_loosest": 1.5}, {"round": 1}], unit="record")
    [{'round': 0, 'epsilon_per_record_loosest': 1.5}, {'round': 1, 'epsilon_per_record_loosest': None}]
    """
    return filled([scalars(record, unit=unit) for record in rounds])


def filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the same keys each, in the order of the fullest: a round that was not tested has no score.

    >>> filled([{"round": 0, "cohort": 5}, {"round": 1, "accuracy": 0.5, "cohort": 5}])[0]
    {'round': 0, 'accuracy': None, 'cohort': 5}
    """
    keys = dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def scalars(record: dict[str, Any], *, unit: str | None) -> dict[str, Any]:
    """The numbers and texts of a record."""
    kept = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
    return {re.sub("^epsilon_", f"epsilon_per_{unit}_", key) if unit else key: value for key, value in kept.items()}


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV with a heading."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["round"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def clients_record(
    parts: Parts, promise: Guarantee | None, *, ledger: str | None, simulated: bool = True
) -> dict[str, Any]:
    """Names, sizes, limits and labels of the clients, and what they are promised. True counts: for the researcher.
    `ledger` is the way from the run's folder to its ledger. Labels are known where clients are simulated alone."""
    population = parts.population
    together = -(-len(population) // MOST_COLUMNS)
    return {
        "names": list(population.names),
        "records": population.sizes.tolist(),
        "limits": [None if np.isinf(limit) else float(limit) for limit in population.epsilons],
        "classes": list(parts.dataset.class_names),
        "together": together,
        "all_pay": parts.plan.sampler.charges_all,
        "labels": _label_counts(parts, together) if simulated and parts.dataset.classified else [],
        "metric": headline(parts.experiment),
        "guarantee": promise.record() if promise else None,
        "ledger": ledger,
        "parameters": parts.params.numel(),
        "notes": list(parts.dataset.notes),
    }


def _label_counts(parts: Parts, together: int) -> list[list[int]]:
    population, classes = parts.population, parts.dataset.classes
    owner = np.repeat(np.arange(len(population)), population.sizes)
    columns = -(-len(population) // together)
    counts = np.bincount((owner // together) * classes + population.y.cpu().numpy(), minlength=columns * classes)
    return counts.reshape(columns, classes).tolist()
