"""Huber's loss: squared for small errors, straight for large ones, so that an outlier's gradient has a bound of its own."""

import torch
import torch.nn.functional as F


def huber(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    beyond: float = 1.0,  # the error from which the loss goes on straight
) -> torch.Tensor:
    """The mean over an example's numbers of e^2 / 2 where |e| <= beyond, else beyond (|e| - beyond / 2).

    >>> huber(torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
    tensor([0.5000, 2.5000])
    """
    found = F.huber_loss(outputs, targets.reshape(outputs.shape), reduction="none", delta=beyond)
    return found.flatten(1).mean(1)
