"""Max-pooling of stacked clients: its way back looks up for every pixel of which windows it was the largest."""

from typing import Any

import torch
from torch import nn

from tacit.train.fused import pool, pools_overlapping, unpool


class Pool(nn.Module):
    """Max-pooling whose windows lie within the image: side by side everywhere, and overlapping where there is a kernel for it."""

    def __init__(self, layer: nn.MaxPool2d):
        super().__init__()
        self.size, self.stride = _pair(layer.kernel_size), _pair(layer.stride)

    @staticmethod
    def fits(layer: nn.MaxPool2d, like: torch.Tensor) -> bool:
        """Whether it is such a layer, for rows that lie where `like` does."""
        plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1) and not layer.return_indices
        size, stride = _pair(layer.kernel_size), _pair(layer.stride)
        return plain and not layer.ceil_mode and (size == stride or pools_overlapping(like, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The largest of every window."""
        return Pooled.apply(x, self.size, self.stride)


class Pooled(torch.autograd.Function):
    """As `F.max_pool2d` of windows that begin so many pixels apart."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: tuple[int, int], stride: tuple[int, int]) -> torch.Tensor:
        """The largest of every window, and where it was."""
        out, at = pool(x, size, stride)
        ctx.save_for_backward(at)
        ctx.size, ctx.stride, ctx.shape = size, stride, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Every gradient where its largest was."""
        (at,) = ctx.saved_tensors
        return unpool(gradients[0], at, ctx.size, ctx.stride, ctx.shape), None, None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
