"""What a model's parameters are worth on the public test rows, and what else a round tells its reader."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch

from tacit.algorithms.scaffold import CORRECTION
from tacit.data.dataset import IGNORED
from tacit.engine.assemble import Parts, TrainingTask
from tacit.parts import metrics
from tacit.parts.metrics import Answers, Metric
from tacit.training.flat import training
from tacit.types import Client, Message
from tacit.wire import receive, receive_any, size_of

MOST_CLASSES = 30  # of a matrix that people can read
CHUNK = 1000  # rows at a time, so that activations stay in the cache
ON_DEVICE = 1 << 25  # bytes of rows at a time on an accelerator
BACKDOOR = "backdoor_accuracy"  # of a round's record, where clients are malicious
STAGES: tuple[str, ...] = ("admit", "train", "server", "evaluate", "write")
Item = TypeVar("Item")
WORTH_THREADS = 2e7  # rows x parameters: below, waking threads costs more than they do


def evaluate(parts: Parts, params: torch.Tensor) -> dict[str, float]:
    """The headline metric and the mean loss of the model with these parameters; nothing where there are no test rows.
    Raises: BadInput where the rows cannot tell."""
    return evaluating(parts, params)()


def evaluating(parts: Parts, params: torch.Tensor) -> Callable[[], dict[str, float]]:
    """`evaluate` in two steps: a device begins to answer now, and is waited for when the result is asked for."""
    if not len(parts.dataset.test_y):
        return dict
    return partial(_measured, parts.metric, _begin(parts, params, *parts.test_rows))


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
    first = parts.metric
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


# What a round tells its reader beside the result: seconds by stage, traffic, and signal. Nothing here feeds back into a run.


class Watch:
    """Seconds by stage: `with watch("train"): ...`.
    The write stage of a round ends after its record is written, so a record carries that of the round before."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - began

    def each(
        self, stage: str, items: Iterator[Item]
    ) -> Iterator[Item]:  # waiting for each counts, what is done with it not
        while True:
            with self(stage):
                item = next(items, None)
            if item is None:
                return
            yield item

    def read(self) -> dict[str, float]:
        """The seconds since the last reading, as `seconds_<stage>`; all start from zero again."""
        seconds, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return {f"seconds_{stage}": round(seconds[stage], 6) for stage in STAGES}


@dataclass
class Traffic:
    """What one round moved, what its clients told the researcher, and the signal in the updates that carry noise."""

    uplink: int = 0
    downlink: int = 0
    info: list[dict[str, float]] = field(default_factory=list)
    norms: list[tuple[torch.Tensor, float]] = field(default_factory=list)  # of updates, and of their noise as expected

    def broadcast(self, message: Message, clients: int) -> None:
        """Counts what a cohort receives. A simulation has one message for all, and each client reads its own row of corrections."""
        rows = message.tensors.get(CORRECTION)
        others = 0 if rows is None else (len(rows) - 1) * rows.shape[1] * rows.element_size()
        self.downlink = (size_of(message) - others) * clients

    def receive(
        self, sent: bytes | Message, info: dict[str, float], round: int, *, tolerates_invalid: bool = False
    ) -> Message:
        """A reply, read. Only an update that states its noise is looked at: the norm of another would be private."""
        self.info.append(info)
        self.uplink += size_of(sent) if isinstance(sent, Message) else len(sent)
        if tolerates_invalid:  # it may be anything, and carries no noise
            return sent if isinstance(sent, Message) else receive_any(sent)
        message = sent if isinstance(sent, Message) else receive(sent, round=round)
        update, noise_std = message.tensors.get("update"), message.facts.get("noise_std")
        if update is not None and isinstance(noise_std, float) and noise_std > 0:
            self.norms.append((update.norm(), noise_std * math.sqrt(update.numel())))
        return message

    def signal(self, info: dict[str, Any], size: int) -> dict[str, float]:
        """The signal-to-noise ratio of the round's updates: the median client, the lowest and the highest.
        Where the server adds the noise, that of the noised sum, which is what it releases."""
        if "noised_norm" in info and info.get("noise_std"):
            return {"signal_to_noise": signal_to_noise(float(info["noised_norm"]), info["noise_std"] * math.sqrt(size))}
        if not self.norms:
            return {}
        norms = torch.stack([norm for norm, _ in self.norms]).tolist()  # one look at the device for all clients
        ratios = [signal_to_noise(norm, noise) for norm, (_, noise) in zip(norms, self.norms, strict=True)]
        ends = {"signal_to_noise_low": min(ratios), "signal_to_noise_high": max(ratios)}
        return {"signal_to_noise": statistics.median(ratios)} | ends

    def record(
        self, cohort: list[Client], spent: dict[str, Any], moved: torch.Tensor, info: dict[str, Any]
    ) -> dict[str, Any]:
        """Who took part, what it cost, how far the model moved, what was sent."""
        opened, opening = info.pop("answered_bytes", 0), info.pop("asked_bytes", 0)  # between server and key holders
        diverged = [client.id for client, one in zip(cohort, self.info, strict=False) if one.get("diverged")]
        means: dict[str, float | None] = {}
        for key in ("loss", "clipped"):
            values = [one[key] for one in self.info if key in one]
            means[key] = sum(values) / len(values) if values else None
        return {
            "train_loss": means["loss"],
            "clipped": means["clipped"],
            "cohort": len(cohort),
            "answered": len(self.info),
            **spent,
            "update_norm": float(moved.norm()),
            **self.signal(info, moved.numel()),
            "uplink_bytes": self.uplink + opened,
            "downlink_bytes": self.downlink + opening,
            **{name: value.item() if isinstance(value, torch.Tensor) else value for name, value in info.items()},
            **({"diverged": diverged} if diverged else {}),  # for the researcher: nobody may see it in a message
        }


def signal_to_noise(released: float, noise: float) -> float:
    """|signal| / |noise|, from the norm of a released update and the expected norm of its noise: |update|^2 is |signal|^2 +
    |noise|^2 on average.

    >>> signal_to_noise(5.0, 3.0), signal_to_noise(2.9, 3.0)
    (1.3333333333333333, 0.0)
    """
    return math.sqrt(max(0.0, released**2 - noise**2)) / noise
