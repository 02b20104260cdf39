"""Tasks: what a model is trained for. One file per task; its name is `task.kind` in the TOML.

A task says which targets it takes, what a model must answer, which loss trains it and which metric stands for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from tacit import plugin
from tacit.data.dataset import Dataset
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.parts import losses, metrics

ROOM = "tacit.parts.tasks"


class Task(ABC):
    """One task for one data set. Raises BadData where the data's targets are not of its kind."""

    loss: ClassVar[str]  # the loss that trains it unless another is named
    headline: ClassVar[str]  # the metric that stands for it unless another is chosen
    metrics: ClassVar[tuple[str, ...]]  # what is measured at the end

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.refuse(dataset)

    @abstractmethod
    def refuse(self, dataset: Dataset) -> None:
        """Raises BadData for targets that this task cannot be trained on."""

    @property
    @abstractmethod
    def answer(self) -> tuple[int, ...]:
        """The shape of a model's answer to one example."""

    @abstractmethod
    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """What the outputs mean: a probability for each class, for yes, or the numbers themselves. It asks no data set."""


def names() -> list[str]:
    """The tasks that ship with Tacit, by file."""
    return plugin.names(ROOM)


def load(experiment: Experiment, dataset: Dataset) -> Task:
    """The experiment's task for a data set. Raises BadInput for an unknown one, BadData for targets of another kind.

    >>> from tacit.data.load import load as read
    >>> found = load(Experiment(), read(Experiment().data, seed=0))
    >>> found.answer, found.headline
    ((10,), 'accuracy')
    """
    factory = plugin.find(ROOM, experiment.task.kind, key="task.kind")
    with plugin.guarded(f"task.kind = {experiment.task.kind!r} cannot be made"):
        return factory(dataset)


def unread(kind: str) -> Task:
    """A task without its data set, for whoever has outputs already: it knows what they mean, and no targets."""
    factory: Any = plugin.find(ROOM, kind, key="task.kind")
    return object.__new__(factory)


def headline(experiment: Experiment) -> str:
    """The metric that stands for a run, as records name it: the chosen one, or the task's own.

    >>> headline(Experiment(metric={"choose": "balanced-accuracy"})), headline(Experiment(task={"kind": "regression"}))
    ('balanced_accuracy', 'rmse')
    """
    return metrics.key(chosen(experiment))


def chosen(experiment: Experiment) -> str:
    """That metric, as `metric.choose` says it."""
    found: Any = plugin.find(ROOM, experiment.task.kind, key="task.kind")
    return experiment.metric.choose or found.headline


def loss_of(experiment: Experiment, task: Task) -> losses.Losses:
    """The loss that trains a task, tried on made-up rows of the data's shapes. Raises BadInput in one sentence."""
    outputs = torch.randn(losses.TRIED, *task.answer, generator=torch.Generator().manual_seed(0))
    y, classes = task.dataset.y, task.answer[-1]
    shape = torch.Size((losses.TRIED, *y.shape[1:]))
    targets = (torch.arange(shape.numel()) % max(2, classes)).reshape(shape).to(y.dtype)
    options = _by_position(experiment.task.options(), task.dataset.class_names)
    return losses.load(experiment.task.loss or task.loss, options, outputs=outputs, targets=targets)


def _by_position(options: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, Any]:
    """The options with class weights in the order of the classes. Raises BadInput for weights that do not fit the classes."""
    weights = options.get("class_weights")
    if weights is None:
        return dict(options)
    if isinstance(weights, Mapping):
        if set(weights) != set(class_names):
            raise BadInput(
                f"Expected task.class_weights for the classes {', '.join(class_names)}; got {', '.join(weights)}."
            )
        weights = [weights[name] for name in class_names]
    if not isinstance(weights, Sequence) or len(weights) != len(class_names):
        raise BadInput(f"Expected one number in task.class_weights for each of {len(class_names)} classes.")
    if not all(isinstance(w, int | float) and not isinstance(w, bool) and 0 <= w < float("inf") for w in weights):
        raise BadInput("Expected task.class_weights to be finite numbers that are not negative.")
    return dict(options) | {"class_weights": list(weights)}
