"""The next token, at every position of a row.

A record is one row. A document that was cut into several rows is protected by what an epsilon per record says about each of them:
about the whole document it says no more than that epsilon times their number. One row a document, or `privacy.unit = "client"`,
says more.
"""

import torch

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.parts.tasks import Task


class tokens(Task):
    """Inputs and targets are rows of token numbers; a model answers (time, vocabulary) scores. A target of -100 counts nothing."""

    loss, headline = "next-token", "perplexity"
    metrics = ("perplexity", "accuracy")

    def refuse(self, dataset: Dataset) -> None:
        if dataset.y.is_floating_point() or dataset.y.dim() != 2 or dataset.classes < 2:
            raise BadData(
                f'task.kind = "tokens" needs rows of token numbers as targets and the vocabulary as classes, and {dataset.name}'
                f" has {dataset.targets}."
            )

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.dataset.y.shape[1], self.dataset.classes)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability of each token."""
        return outputs.softmax(-1)
