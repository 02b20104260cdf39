"""Numbers."""

import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.parts.tasks import Task


class regression(Task):
    """Targets are one or several numbers; a model answers as many."""

    loss, headline = "squared", "rmse"
    metrics = ("rmse", "mae", "r2")

    def refuse(self, dataset: Dataset) -> None:
        if not dataset.y.is_floating_point() or dataset.y.dim() > 2:
            raise BadData(
                f'task.kind = "regression" needs numbers as targets, and {dataset.name} has {dataset.targets}.'
            )

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.dataset.y.shape[1:]) or (1,)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The numbers themselves."""
        return outputs
