"""Small operations of stacked clients that torch takes several passes over memory for: one pass each where there is Triton.

What stands here beside each kernel is its slow twin, which runs everywhere else.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

MOST_IN_WINDOW = 255  # places that a byte tells apart from none


def step_(part: torch.Tensor, along: torch.Tensor, rate: torch.Tensor) -> None:
    """part <- part - rate * along; the rate is a tensor, so that what is recorded knows no number."""
    kernels = _kernels(part) if part.is_contiguous() and along.is_contiguous() else None
    if kernels is None:
        part.addcmul_(along, rate, value=-1)
    else:
        kernels.step(part, along, rate)


def add_bias_(out: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Adds each client's own (client, channel) to its rows (row, channel, ...), in place and in their type."""
    kernels = _kernels(out) if out.is_contiguous() else None
    if kernels is not None:
        kernels.add_bias(out, bias)
        return out
    each = bias.view(len(bias), 1, -1, *(1 for _ in out.shape[2:]))
    return out.unflatten(0, (len(bias), -1)).add_(each).flatten(0, 1)


def sum_bias(d: torch.Tensor, clients: int) -> torch.Tensor:
    """The way back of `add_bias_`: the sums (client, channel) of rows (row, channel, ...)."""
    kernels = _kernels(d)
    if kernels is not None:
        return kernels.sum_bias(d, clients)
    return d.flatten(2).sum(2).unflatten(0, (clients, -1)).sum(1)


Pair = tuple[int, int]


def pools_overlapping(like: torch.Tensor, size: Pair) -> bool:
    """Whether windows that share pixels can be pooled where such rows lie."""
    return _kernels(like) is not None and size[0] * size[1] <= MOST_IN_WINDOW


def pool(x: torch.Tensor, size: Pair, stride: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of every window of images, windows so far apart, and where it was: for `unpool` alone.

    Assumes: they lie side by side, or `pools_overlapping`.
    """
    kernels = _kernels(x) if size[0] * size[1] <= MOST_IN_WINDOW else None
    return F.max_pool2d(x, size, stride, return_indices=True) if kernels is None else kernels.pool(x, size, stride)


def unpool(d: torch.Tensor, where: torch.Tensor, size: Pair, stride: Pair, shape: torch.Size) -> torch.Tensor:
    """Every gradient where its largest was, in images of a shape; a pixel that is the largest of several has their sum."""
    if where.dtype != torch.uint8:
        return F.max_unpool2d(d, where, size, output_size=list(shape))
    return _fused().unpool(d, where, size, stride, shape)


def _kernels(tensor: torch.Tensor) -> Any:
    return _fused() if tensor.is_cuda else None


@lru_cache(maxsize=1)
def _fused() -> Any:
    """The kernels; None where Triton is not installed."""
    try:
        from tacit.train import fused_triton
    except ImportError:
        return None
    return fused_triton
