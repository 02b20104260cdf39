"""One rule per layer: from its input a and the gradient d of its output to the per-example gradients of its parameters.

A rule takes every use of the layer in one forward pass and answers a form (`per_example.py`) for each parameter by
name, also for a bias that the layer does not have. The leading dimension of a and d is the batch, or the batch times
something (frames, tokens) with the batch outermost. Rules hold for these exact types only: a subclass may have another
forward pass.
"""

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from tacit.train.per_example import Dense, Form, Outer, Product, Table

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Uses = list[tuple[torch.Tensor, torch.Tensor]]
Rule = Callable[[Any, Uses, int], dict[str, Form]]
Function = TypeVar("Function", bound=Callable[..., Any])


def linear(layer: nn.Linear, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: sum_t d_t a_t^T; bias: sum_t d_t."""
    p, q, (a, d) = layer.in_features, layer.out_features, uses[0]
    if len(uses) == 1 and a.numel() == batch * p:
        a, d = a.reshape(batch, p), d.reshape(batch, q)
        return {"weight": Outer(a, d), "bias": Dense(d)}
    a = joined([a.reshape(batch, -1, p) for a, _ in uses])
    d = joined([d.reshape(batch, -1, q) for _, d in uses])
    time = a.shape[1]

    def rows(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return a[part, :, None], d[part, :, None]

    def arranged(total: torch.Tensor) -> torch.Tensor:
        return total.view(q, p)

    return {"weight": Product(rows, arranged, batch=batch, time=time, groups=1, p=p, q=q), "bias": Dense(d.sum(1))}


def conv(layer: Conv, uses: Uses, batch: int) -> dict[str, Form]:
    """A convolution is a linear layer on the windows of its input, one row a place, for every group of channels."""
    groups, q, p = layer.groups, layer.out_channels // layer.groups, prod(layer.weight.shape[1:])
    pairs = [(a.unflatten(0, (batch, -1)), d.unflatten(0, (batch, -1)).flatten(3)) for a, d in uses]

    def rows(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        a = [windows(layer, a[part].flatten(0, 1)).view(len(d[part]), -1, groups, p) for a, d in pairs]
        d = [d[part].unflatten(2, (groups, q)).permute(0, 1, 4, 2, 3).flatten(1, 2) for _, d in pairs]
        return joined(a), joined(d)

    def arranged(total: torch.Tensor) -> torch.Tensor:
        return total.view(layer.out_channels, *layer.kernel_size, -1).movedim(-1, 1)

    time = sum(d.shape[1] * d.shape[3] for _, d in pairs)
    weight = Product(rows, arranged, batch=batch, time=time, groups=groups, p=p, q=q)
    return {"weight": weight, "bias": Dense(added([d.sum((1, 3)) for _, d in pairs]))}


def windows(layer: Conv, x: torch.Tensor) -> torch.Tensor:
    """The windows (batch, *places, groups, *kernel, channels of the group) that a convolution reads, as copies.

    Channels are innermost, so that the copy moves long runs of memory: up to ten times faster than `F.unfold`.
    """
    x = padded(layer, x).movedim(1, -1).contiguous()
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    positions = [
        (s - r * (k - 1) - 1) // t + 1 for s, k, t, r in zip(x.shape[1:], kernel, stride, dilation, strict=False)
    ]
    batch, *space, _ = x.stride()
    channels = layer.in_channels // layer.groups
    moves = [s * t for s, t in zip(space, stride, strict=True)]
    steps = [s * r for s, r in zip(space, dilation, strict=True)]
    shape = (len(x), *positions, layer.groups, *kernel, channels)
    return x.as_strided(shape, (batch, *moves, channels, *steps, 1)).contiguous()


def padded(layer: Conv, x: torch.Tensor) -> torch.Tensor:
    """The input with the layer's padding around it."""
    if layer.padding == "valid":
        return x
    if layer.padding == "same":
        total = [r * (k - 1) for k, r in zip(layer.kernel_size, layer.dilation, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(int(width), int(width)) for width in layer.padding]
    if not any(map(any, sides)):
        return x
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, [width for pair in reversed(sides) for width in pair], mode=mode)


def embedding(layer: nn.Embedding, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: d_t is added to the row of token t."""
    tokens = joined([a.reshape(batch, -1) for a, _ in uses])
    d = joined([d.reshape(batch, -1, layer.embedding_dim) for _, d in uses])
    if layer.padding_idx is not None:
        d = d.masked_fill((tokens == layer.padding_idx)[:, :, None], 0.0)
    return {"weight": Table(tokens, d, rows=layer.num_embeddings)}


def last_norm(layer: nn.LayerNorm | nn.RMSNorm, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: sum d * normalised(a); bias: sum d; over all but the normalised dimensions."""
    shape, eps = layer.normalized_shape, layer.eps
    norm: Callable[..., torch.Tensor] = F.layer_norm if isinstance(layer, nn.LayerNorm) else F.rms_norm

    def total(d: torch.Tensor) -> torch.Tensor:
        return d.reshape(batch, -1, prod(shape)).sum(1)

    return affine([(total(d * norm(a, shape, eps=eps)), total(d)) for a, d in uses])


def group_norm(layer: nn.GroupNorm, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: sum d * normalised(a); bias: sum d; over the places of every channel."""
    return channel_norm(uses, batch, lambda a: F.group_norm(a, layer.num_groups, eps=layer.eps))


def instance_norm(layer: Any, uses: Uses, batch: int) -> dict[str, Form]:
    """As GroupNorm with one channel a group."""
    return channel_norm(uses, batch, lambda a: F.instance_norm(a, eps=layer.eps))


def channel_norm(uses: Uses, batch: int, norm: Callable) -> dict[str, Form]:
    """The rule of layers that scale channels."""

    def total(d: torch.Tensor) -> torch.Tensor:
        return d.reshape(batch, -1, d.shape[1], prod(d.shape[2:])).sum((1, 3))

    return affine([(total(d * norm(a)), total(d)) for a, d in uses])


def affine(parts: Uses) -> dict[str, Form]:
    """Scale and shift, added over the uses."""
    weight, bias = zip(*parts, strict=True)
    return {"weight": Dense(added(list(weight))), "bias": Dense(added(list(bias)))}


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Several uses one after the other in time."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    """Several uses added up."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


LAYERS: dict[str, tuple[type[nn.Module], ...]] = {  # the layers with rules of their own, by what they do
    "linear": (nn.Linear,),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "embedding": (nn.Embedding,),
    "last_norm": (nn.LayerNorm, nn.RMSNorm),
    "group_norm": (nn.GroupNorm,),
    "instance_norm": (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
}


def by_type(**functions: Function) -> dict[type[nn.Module], Function]:
    """The function of every layer of `LAYERS`, by its type. Every kind needs one."""
    return {layer: functions[kind] for kind, layers in LAYERS.items() for layer in layers}


RULES: dict[type[nn.Module], Rule] = by_type(
    linear=linear,
    conv=conv,
    embedding=embedding,
    last_norm=last_norm,
    group_norm=group_norm,
    instance_norm=instance_norm,
)
