"""Small operations of stacked clients that torch takes several passes over memory for: one pass each where there is Triton, and
here its slow twin, which runs everywhere else."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tacit.random import Stream

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
    return _kernels(like) is not None and size[0] * size[1] <= MOST_IN_WINDOW


def pool(x: torch.Tensor, size: Pair, stride: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of every window of images, windows so far apart, and where it was: for `unpool` alone. Assumes: they lie side by
    side, or `pools_overlapping`."""
    kernels = _kernels(x) if size[0] * size[1] <= MOST_IN_WINDOW else None
    return F.max_pool2d(x, size, stride, return_indices=True) if kernels is None else kernels.pool(x, size, stride)


def unpool(d: torch.Tensor, where: torch.Tensor, size: Pair, stride: Pair, shape: torch.Size) -> torch.Tensor:
    """Every gradient where its largest was, in images of a shape; a pixel that is the largest of several has their sum."""
    if where.dtype != torch.uint8:
        return F.max_unpool2d(d, where, size, output_size=list(shape))
    return kernels().unpool(d, where, size, stride, shape)


def _kernels(tensor: torch.Tensor) -> Any:
    return kernels() if tensor.is_cuda else None


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels; None where Triton is not installed."""
    try:
        from tacit.training import kernels_triton
    except ImportError:
        return None
    return kernels_triton


# Normals drawn where the rows are: counter-based noise for simulations on an accelerator.

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF
KEY_WORDS = 4


class DeviceStream(Stream):
    """A stream whose normals for a tensor on an accelerator are drawn there; everything else is its own."""

    def normal_like(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return super().normal_like(tensor)
        flat = torch.zeros(1, tensor.numel(), device=tensor.device)
        return add_normals_(flat, flat.new_ones(1), keys_of([self], tensor.device), step=0).view_as(tensor)


def keys_of(streams: Sequence[Stream], device: torch.device) -> torch.Tensor:
    """A key for each stream, (stream, 4) words of 32 bits."""
    words = np.stack([stream.words(KEY_WORDS) for stream in streams]).astype(np.int64)
    return torch.from_numpy(words).to(device, non_blocking=True)


def add_normals_(rows: torch.Tensor, stds: torch.Tensor, keys: torch.Tensor, step: int) -> torch.Tensor:
    """rows[k] += stds[k] N(0, I), drawn under keys[k] for one step; in place."""
    kernels = _kernels(rows)
    if kernels is not None and rows.stride(1) == 1:
        kernels.add_normals(rows, stds, keys, step)
        return rows
    return rows.add_(normals(keys, step, rows.shape[1]) * stds[:, None].to(rows.dtype))


def normals(keys: torch.Tensor, step: int, count: int) -> torch.Tensor:
    """The slow twin of what the kernel adds: `count` standard normals for every key, float32."""
    pairs = torch.arange((count + 1) // 2, device=keys.device)
    salt = [keys[:, word, None].expand(-1, len(pairs)) for word in range(KEY_WORDS)]
    counter = [pairs.expand(len(keys), -1), torch.full_like(salt[0], step), salt[2], salt[3]]
    a, b, c, d = philox(counter, salt[:2])
    u = a.float() * 2.0**-32 + b.float() * 2.0**-64 + ((d >> 12).float() + 0.5) * 2.0**-84
    radius, angle = (-2 * u.clamp(max=1.0).log()).sqrt(), c.float() * float(2 * np.pi * 2.0**-32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)[:, :count]


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Four random words of 32 bits for every counter of four and key of two; all as int64."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(ROUNDS):
        (high_a, low_a), (high_c, low_c) = (_product(*pair) for pair in zip((a, c), MULTIPLIERS, strict=True))
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
        first, second = (first + WEYL[0]) & LOW, (second + WEYL[1]) & LOW
    return [a, b, c, d]


def _product(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    # the high and the low half of a product of 32-bit words, which does not fit a signed integer of 64
    high = (word * (by >> 16) + (word * (by & 0xFFFF) >> 16)) >> 16
    return high, (word * by) & LOW
