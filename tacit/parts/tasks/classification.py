"""One class out of several."""

import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.parts.tasks import Task


class classification(Task):
    """Targets are classes; a model answers one score for each."""

    loss, headline = "cross-entropy", "accuracy"
    metrics = ("accuracy", "balanced-accuracy", "f1", "log-loss", "brier", "auroc")

    def refuse(self, dataset: Dataset) -> None:
        if dataset.y.is_floating_point() or dataset.y.dim() != 1 or dataset.classes < 2:
            raise BadData(
                f'task.kind = "classification" needs one class per row, and {dataset.name} has {dataset.targets}: set task.kind'
                ' to "regression", "multilabel" or "tokens".'
            )

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.classes,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability of each class."""
        return outputs.softmax(1)
