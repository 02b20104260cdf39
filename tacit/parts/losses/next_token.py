"""Cross-entropy of the next token, at every position of a row."""

import torch
import torch.nn.functional as F

IGNORED = -100  # a target that counts nothing: what a row is filled up with


def next_token(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over a row's targets of -log softmax(outputs)_target; `outputs` are (batch, time, vocabulary).

    >>> next_token(torch.zeros(1, 3, 4), torch.tensor([[2, 1, -100]]))
    tensor([1.3863])
    """
    losses = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)
    return losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)
