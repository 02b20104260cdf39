"""The squared error."""

import torch


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over an example's numbers of (o - t)^2.

    >>> squared(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]))
    tensor([5.])
    """
    return (outputs - targets.reshape(outputs.shape)).square().flatten(1).mean(1)
