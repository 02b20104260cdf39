"""Yes or no: two classes, of which the second is yes."""

import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.parts.tasks import Task


class binary(Task):
    """Targets are two classes; a model answers one score for the second."""

    loss, headline = "binary-cross-entropy", "auroc"
    metrics = ("auroc", "average-precision", "accuracy", "balanced-accuracy", "f1", "log-loss", "brier")

    def refuse(self, dataset: Dataset) -> None:
        if dataset.y.is_floating_point() or dataset.y.dim() != 1 or dataset.classes != 2:
            raise BadData(f'task.kind = "binary" needs two classes, and {dataset.name} has {dataset.targets}.')

    @property
    def answer(self) -> tuple[int, ...]:
        return (1,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability of no and of yes."""
        yes = outputs.sigmoid()
        return torch.cat([1 - yes, yes], dim=1)
