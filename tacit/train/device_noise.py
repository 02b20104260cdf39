"""Normals drawn where the rows are: counter-based noise for simulations on an accelerator.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) under a client's own key: number i of step s is a function of (key, s, i) alone,
so a client's noise does not depend on who else is trained beside it, in which order or in how many parts. A key is 128 bits of the
client's stream (tacit/random.py), which is keyed by the whole release. Pairs are Box-Muller in float32; the radius has 84 random
bits, so that the tail ends at 10.8 sigma as in `Stream.normal`.

Philox is no cryptographic generator: whoever guesses its state from its output can subtract the noise. It is for simulations,
whose rows the researcher has anyway. Sites, and whatever is released, draw from AES (tacit/random.py).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tacit.random import Stream

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
    """rows[k] += stds[k] N(0, I), drawn under keys[k] for one step; in place.

    >>> keys = torch.arange(8).view(2, 4)
    >>> both = add_normals_(torch.zeros(2, 5), torch.ones(2), keys, step=0)
    >>> bool((add_normals_(torch.zeros(1, 5), torch.ones(1), keys[1:], step=0)[0] == both[1]).all())
    True
    """
    kernel = _kernel() if rows.is_cuda else None
    if kernel is not None and rows.stride(1) == 1:
        kernel(rows, stds, keys, step)
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
    """Four random words of 32 bits for every counter of four and key of two; all as int64.

    >>> [hex(int(word)) for word in philox([torch.zeros(1, dtype=torch.int64)] * 4, [torch.zeros(1, dtype=torch.int64)] * 2)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    (a, b, c, d), (first, second) = counter, key
    for _ in range(ROUNDS):
        (high_a, low_a), (high_c, low_c) = (_product(*pair) for pair in zip((a, c), MULTIPLIERS, strict=True))
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
        first, second = (first + WEYL[0]) & LOW, (second + WEYL[1]) & LOW
    return [a, b, c, d]


def _product(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low half of a product of 32-bit words, which does not fit a signed integer of 64."""
    high = (word * (by >> 16) + (word * (by & 0xFFFF) >> 16)) >> 16
    return high, (word * by) & LOW


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The fused kernel, or None where Triton is not installed."""
    try:
        from tacit.train.device_noise_triton import add_normals
    except ImportError:
        return None
    return add_normals
