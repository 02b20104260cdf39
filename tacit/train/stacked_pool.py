"""Max-pooling of stacked clients: where windows do not overlap, its way back puts each gradient in one place."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Pool(nn.Module):
    """Max-pooling whose windows lie side by side: the way back puts every gradient where its largest was, and meets no other."""

    def __init__(self, layer: nn.MaxPool2d):
        super().__init__()
        self.size = _pair(layer.kernel_size)

    @staticmethod
    def fits(layer: nn.MaxPool2d) -> bool:
        """Whether it is such a layer."""
        plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1) and not layer.return_indices
        return plain and not layer.ceil_mode and _pair(layer.stride) == _pair(layer.kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The largest of every window."""
        return Pooled.apply(x, self.size)


class Pooled(torch.autograd.Function):
    """As `F.max_pool2d`, where no two windows share a pixel."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The largest of every window, and where it was."""
        out, at = F.max_pool2d(x, size, return_indices=True)
        ctx.save_for_backward(at)
        ctx.size, ctx.shape = size, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Every gradient where its largest was."""
        (at,) = ctx.saved_tensors
        return F.max_unpool2d(gradients[0], at, ctx.size, output_size=list(ctx.shape)), None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
