"""Several labels, each of which holds or does not."""

import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.parts.tasks import Task


class multilabel(Task):
    """Targets are rows of 0 and 1, one column per label; a model answers one score for each."""

    loss, headline = "binary-cross-entropy", "average-precision"
    metrics = ("average-precision", "auroc", "f1", "accuracy", "brier")

    def refuse(self, dataset: Dataset) -> None:
        public = dataset.test_y  # of training rows nothing but kind and shape is looked at: at a site they are private
        if public.dim() != 2 or not public.is_floating_point() or not bool(((public == 0) | (public == 1)).all()):
            raise BadData(
                f'task.kind = "multilabel" needs a row of 0 and 1 for each example, and {dataset.name} has {dataset.targets}.'
            )

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.y.shape[1],)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability of each label."""
        return outputs.sigmoid()
