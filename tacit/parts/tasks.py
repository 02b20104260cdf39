"""Tasks: what a model is trained for; `task.kind` names one. A task says which targets it takes, what a model must answer, which
loss trains it and which metric stands for it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from tacit import plugin
from tacit.data.dataset import Dataset
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.parts import losses, metrics
from tacit.plugin import part

ROOM = "tacit.parts.tasks"


class Task(ABC):
    """One task for one data set. Raises: BadData where the data's targets are not of its kind."""

    loss: ClassVar[str]  # the loss that trains it unless another is named
    headline: ClassVar[str]  # the metric that stands for it unless another is chosen
    metrics: ClassVar[tuple[str, ...]]  # what is measured at the end
    needs: ClassVar[str]  # which targets it can be trained on, in words

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        if not self.fits(dataset):
            kind = type(self).__name__
            raise BadData(f'task.kind = "{kind}" needs {self.needs}, and {dataset.name} has {dataset.targets}.')

    @abstractmethod
    def fits(self, dataset: Dataset) -> bool:
        """Whether this task can be trained on the targets."""

    @property
    @abstractmethod
    def answer(self) -> tuple[int, ...]:
        """The shape of a model's answer to one example."""

    @abstractmethod
    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """What the outputs mean: a probability for each class, for yes, or the numbers themselves. It asks no data set."""


def _is_classes(dataset: Dataset, *, dim: int) -> bool:
    return not dataset.y.is_floating_point() and dataset.y.dim() == dim and dataset.classes >= 2


@part
class binary(Task):
    """Yes or no: targets are two classes; a model answers one score for the second, yes."""

    loss, headline = "binary-cross-entropy", "auroc"
    metrics = ("auroc", "average-precision", "accuracy", "balanced-accuracy", "f1", "log-loss", "brier")
    needs = "two classes"

    def fits(self, dataset: Dataset) -> bool:
        return _is_classes(dataset, dim=1) and dataset.classes == 2

    @property
    def answer(self) -> tuple[int, ...]:
        return (1,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        yes = outputs.sigmoid()
        return torch.cat([1 - yes, yes], dim=1)


@part
class classification(Task):
    """Targets are classes; a model answers one score for each."""

    loss, headline = "cross-entropy", "accuracy"
    metrics = ("accuracy", "balanced-accuracy", "f1", "log-loss", "brier", "auroc")
    needs = 'one class per row (else set task.kind to "regression", "multilabel" or "tokens")'

    def fits(self, dataset: Dataset) -> bool:
        return _is_classes(dataset, dim=1)

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.classes,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.softmax(1)


@part
class multilabel(Task):
    """Targets are rows of 0 and 1, one column per label; a model answers one score for each."""

    loss, headline = "binary-cross-entropy", "average-precision"
    metrics = ("average-precision", "auroc", "f1", "accuracy", "brier")
    needs = "a row of 0 and 1 for each example"

    def fits(self, dataset: Dataset) -> bool:
        public = dataset.test_y  # of training rows nothing but kind and shape is looked at: at a site they are private
        return public.dim() == 2 and public.is_floating_point() and bool(((public == 0) | (public == 1)).all())

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.y.shape[1],)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.sigmoid()


@part
class regression(Task):
    """Targets are one or several numbers; a model answers as many."""

    loss, headline = "squared", "rmse"
    metrics = ("rmse", "mae", "r2")
    needs = "numbers as targets"

    def fits(self, dataset: Dataset) -> bool:
        return dataset.y.is_floating_point() and dataset.y.dim() <= 2

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.dataset.y.shape[1:]) or (1,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs


@part
class tokens(Task):
    """The next token, at every position of a row; a model answers (time, vocabulary) scores. A target of -100 counts nothing. A
    record is one row. Of a document that was cut into several rows, an epsilon per record says no more than that epsilon times
    their number; one row a document, or `privacy.unit = "client"`, says more."""

    loss, headline = "next-token", "perplexity"
    metrics = ("perplexity", "accuracy")
    needs = "rows of token numbers as targets and the vocabulary as classes"

    def fits(self, dataset: Dataset) -> bool:
        return _is_classes(dataset, dim=2)

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.y.shape[1], self.dataset.classes)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.softmax(-1)


def load(experiment: Experiment, dataset: Dataset) -> Task:
    factory = plugin.find(ROOM, experiment.task.kind, key="task.kind")
    with plugin.guarded(f"task.kind = {experiment.task.kind!r} cannot be made"):
        return factory(dataset)


def unread(kind: str) -> Task:
    """A task without its data set, for whoever has outputs already."""
    factory: Any = plugin.find(ROOM, kind, key="task.kind")
    return object.__new__(factory)


def headline(experiment: Experiment) -> str:
    """The metric that stands for a run, as records name it: the chosen one, or the task's own."""
    return metrics.key(chosen(experiment))


def chosen(experiment: Experiment) -> str:
    factory: Any = plugin.find(ROOM, experiment.task.kind, key="task.kind")
    return experiment.metric.choose or factory.headline


def loss_of(experiment: Experiment, task: Task) -> losses.Losses:
    """The loss that trains a task, tried on made-up rows of the data's shapes. Raises: BadInput."""
    outputs = torch.randn(losses.TRIED, *task.answer, generator=torch.Generator().manual_seed(0))
    y, classes = task.dataset.y, task.answer[-1]
    shape = torch.Size((losses.TRIED, *y.shape[1:]))
    targets = (torch.arange(shape.numel()) % max(2, classes)).reshape(shape).to(y.dtype)
    options, class_names = dict(experiment.task.options()), task.dataset.class_names
    if (weights := options.get("class_weights")) is not None:
        options["class_weights"] = _by_position(weights, class_names)
    return losses.load(experiment.task.loss or task.loss, options, outputs=outputs, targets=targets)


def _by_position(weights: Any, class_names: Sequence[str]) -> list[float]:
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
    return list(weights)
