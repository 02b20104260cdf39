"""Shadow models: real runs of the experiment on other members, side by side, kept in a folder and found again by digest."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tacit.attacks import Place
from tacit.attacks._pool import pooled
from tacit.build.parts import Parts
from tacit.compare.cells import Cell
from tacit.compare.comparison_folder import Task
from tacit.compare.pool import Event, run_all
from tacit.digest import mark
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.train.flat import trainable
from tacit.train.frozen import training

ROWS = 1000  # at a time
SMALLEST_LOSS = 1e-15
CLASSES = ("classification", "binary")


def shadows(experiment: Experiment, place: Place, *, models: int) -> list[Path]:
    """The folders of `models` finished runs; what is finished already is not run again. Raises TacitError where one fails."""
    tasks = [_task(pooled(experiment, number=number), place.folder / "shadows") for number in range(models)]
    trained(tasks, place)
    return [task.folder for task in tasks]


def trained(tasks: Sequence[Task], place: Place) -> None:
    """Runs or resumes what is not finished, `place.jobs` at once. Raises TacitError where one fails."""
    waiting, done = [task for task in tasks if not task.finished], 0
    place.tell(f"{len(tasks)} models, {len(tasks) - len(waiting)} of them trained before")

    def watch(task: Task | None, event: Event) -> None:
        nonlocal done
        if task is not None and event["kind"] == "done":
            done += 1
            place.tell(f"model {len(tasks) - len(waiting) + done} of {len(tasks)} is trained")

    if waiting:
        failed = run_all(waiting, jobs=place.jobs, logs=place.folder / "log", watch=watch)
        for sentence in failed.values():
            raise TacitError(f"A shadow model could not be trained: {sentence}")


def _task(experiment: Experiment, home: Path) -> Task:
    folder = home / mark(experiment.toml())
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Task(Cell(folder.name, folder.name, {}, (experiment,)), experiment, folder)


@torch.inference_mode()
def confidences(
    parts: Parts, folders: Sequence[Path], x: torch.Tensor, y: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """What every model says of rows, (model, row): phi, and log p of the right answer.

    phi = log p/(1 - p) for classes, with p = exp(-loss); of other tasks both are the loss with its sign turned.
    """
    found, foreign = [], ":" in (parts.experiment.task.loss or "")  # somebody's own loss may know one width of numbers
    for folder in folders:
        tensors = load_file(folder / "model.safetensors")
        for name, parameter in trainable(parts.model):
            parameter.copy_(tensors[name])
        parts.model.eval()
        device = parts.theta.device
        pairs = zip(x.split(ROWS), y.split(ROWS), strict=True)
        outputs = ((parts.model(rows.to(device)), targets.to(device)) for rows, targets in pairs)
        losses = [parts.losses(out if foreign else out.double(), targets) for out, targets in outputs]
        found.append(torch.cat(losses).double().cpu().numpy())
    training(parts.model)
    loss = np.array(found)
    if parts.experiment.task.kind not in CLASSES:
        return -loss, -loss
    loss = np.maximum(loss, SMALLEST_LOSS)
    return -loss - np.log(-np.expm1(-loss)), -loss
