"""Layers with one set of parameters for every client, on one batch that holds the examples of all of them.

The client is outermost: rows are [clients x examples (x frames or tokens), ...]. A function takes the layer for its settings, the
rows, and the clients' parameters (client, ...) by name. No client's rows meet another's parameters: products are batched."""

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tacit.training import layers
from tacit.training.fused import add_bias_, kernels, pool, pools_overlapping, sum_bias, unpool
from tacit.training.layers import RULES as ALONE

Own = Mapping[str, torch.Tensor]  # (client, *shape of the parameter)
Stacked = Callable[[Any, torch.Tensor, Own], tuple[torch.Tensor, torch.Tensor]]  # what the rule reads, and the output


def linear(layer: nn.Linear, a: torch.Tensor, own: Own) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = _of(layer, "weight", own), _of(layer, "bias", own)
    rows = a.reshape(len(weight), -1, layer.in_features)
    out = Multiplied.apply(rows, weight)
    out = out if bias is None else out + bias[:, None]
    return a, out.view(*a.shape[:-1], layer.out_features)


class Multiplied(torch.autograd.Function):
    """Rows by each client's weights, whose gradient comes as they lie in memory: as a product's own it would be turned."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.types = rows.dtype, weight.dtype
        rows, weight = _rounded(rows), _rounded(weight)  # once for both ways
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (rows, weight), d = ctx.saved_tensors, gradients[0]
        before = torch.bmm(d, weight).to(ctx.types[0]) if ctx.needs_input_grad[0] else None
        own = torch.bmm(d.mT, rows).to(ctx.types[1]) if ctx.needs_input_grad[1] else None
        return before, own


def conv(layer: layers.Conv, a: torch.Tensor, own: Own) -> tuple[torch.Tensor, torch.Tensor]:
    """A product of each client's kernel with the windows of its rows; what the rule reads are the windows."""
    weight, bias, margin = _of(layer, "weight", own), _of(layer, "bias", own), _margin(layer)
    x = layers.padded(layer, a) if margin is None else a  # zeros are put around rows on the way, anything else before
    x, margin = _rounded(x), margin or tuple(0 for _ in layer.kernel_size)
    columns = windows(layer, x.detach(), margin)
    return columns, Convolved.apply(x, weight, bias, columns, layer, margin)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    asked = tensor.is_cuda and torch.is_autocast_enabled("cuda")
    return tensor.to(torch.get_autocast_dtype("cuda")) if asked else tensor


def _margin(layer: layers.Conv) -> tuple[int, ...] | None:
    # zeros before and behind rows, in every direction; None where they are no zeros, or not as many
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        return None if layer.padding != "valid" else tuple(0 for _ in layer.kernel_size)
    return tuple(int(width) for width in layer.padding)


class Convolved(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        columns: torch.Tensor,
        layer: layers.Conv,
        margin: tuple[int, ...],
    ) -> torch.Tensor:
        kernels = weight.reshape(len(weight), 1, layer.groups, -1, columns.shape[2])
        ctx.save_for_backward(kernels, columns)
        ctx.layer, ctx.shape, ctx.weight_shape, ctx.margin = layer, x.shape, weight.shape, margin
        out = _times(kernels, columns).reshape(len(x), layer.out_channels, *places(layer, x.shape, margin))
        return out if bias is None else add_bias_(out, bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kernels, columns = ctx.saved_tensors
        d = gradients[0].reshape(len(columns), ctx.layer.groups, -1, columns.shape[-1])
        rows = weight = bias = None
        if ctx.needs_input_grad[2]:
            bias = sum_bias(gradients[0], len(kernels)).to(kernels.dtype)
        if ctx.needs_input_grad[1]:
            each = torch.matmul(d, columns.mT).unflatten(0, (len(kernels), -1)).sum(1)
            weight = each.reshape(ctx.weight_shape).to(kernels.dtype)
        if ctx.needs_input_grad[0]:
            rows = unwindowed(ctx.layer, _times(kernels.mT, d), ctx.shape, ctx.margin)
        return rows, weight, bias, None, None, None


def places(layer: layers.Conv, shape: torch.Size, margin: tuple[int, ...]) -> list[int]:
    settings = zip(shape[2:], margin, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return [(size + 2 * zeros - r * (k - 1) - 1) // s + 1 for size, zeros, k, s, r in settings]


def _of(layer: nn.Module, name: str, own: Own) -> Any:
    fixed, clients = getattr(layer, name, None), len(next(iter(own.values())))
    return own.get(name) if name in own or fixed is None else fixed.expand(clients, *fixed.shape)


def _times(kernels: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    clients, rows = len(kernels), len(columns)
    return torch.matmul(kernels, columns.unflatten(0, (clients, rows // clients))).flatten(0, 1)


def windows(layer: layers.Conv, x: torch.Tensor, margin: tuple[int, ...]) -> torch.Tensor:
    """The windows (row, group, channel and kernel, place) that a convolution reads of rows with zeros around them, as copies."""
    if (fused := _kernels(layer, x)) is not None:
        return fused.windows(layer, x, margin)
    x, dims = F.pad(x, [width for zeros in reversed(margin) for width in (zeros, zeros)]), len(margin)
    steps = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for axis, (size, stride, dilation) in enumerate(steps, 2):
        x = x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    kernel_first = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return x.permute(kernel_first).reshape(len(x), layer.groups, -1, prod(x.shape[2 : 2 + dims]))


def unwindowed(layer: layers.Conv, found: torch.Tensor, shape: torch.Size, margin: tuple[int, ...]) -> torch.Tensor:
    """Adds windows up where they came from: the way back from `windows`, one shift of the kernel at a time."""
    if (fused := _kernels(layer, found)) is not None:
        return fused.unwindowed(layer, found, shape, margin)
    steps, count = list(zip(layer.stride, layer.dilation, strict=True)), places(layer, shape, margin)
    found = found.reshape(*shape[:2], *layer.kernel_size, *count)
    out = found.new_zeros(*shape[:2], *(size + 2 * zeros for size, zeros in zip(shape[2:], margin, strict=True)))
    for shift in product(*(range(k) for k in layer.kernel_size)):
        place = [slice(r * i, r * i + s * n, s) for i, n, (s, r) in zip(shift, count, steps, strict=True)]
        out[(slice(None), slice(None), *place)] += found[(slice(None), slice(None), *shift)]
    inner = [slice(zeros, zeros + size) for size, zeros in zip(shape[2:], margin, strict=True)]
    return out[(slice(None), slice(None), *inner)]


def _kernels(layer: layers.Conv, rows: torch.Tensor) -> Any:
    return kernels() if rows.is_cuda and isinstance(layer, nn.Conv2d) else None


def embedding(layer: nn.Embedding, a: torch.Tensor, own: Own) -> tuple[torch.Tensor, torch.Tensor]:
    """Each client looks its tokens up in its own part of one long table. Guarantee: a token that is in no table gives NaN and reads
    nobody's, so that its example counts as zero."""
    table = own["weight"]  # its only parameter
    clients, rows = table.shape[:2]
    inside, kept = (a >= 0) & (a < rows), a.clamp(0, rows - 1)
    first = torch.arange(0, clients * rows, rows, device=a.device).view(-1, *(1 for _ in a.shape))
    out = F.embedding((kept.unflatten(0, (clients, -1)) + first).flatten(0, 1), table.reshape(clients * rows, -1))
    out = beginning(out)  # before the last operation: torch lets nobody overwrite a beginning in place
    if layer.padding_idx is not None:
        out = torch.where((a == layer.padding_idx)[..., None], out.detach(), out)
    return kept, torch.where(inside[..., None], out, torch.nan)


def beginning(out: torch.Tensor) -> torch.Tensor:
    """The same, with gradients that begin here where nobody asks for those of parameters: a product's way back would make both."""
    return out if out.requires_grad or not torch.is_grad_enabled() else out.requires_grad_()


def norm(layer: Any, a: torch.Tensor, own: Own) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalises every row, then scales and shifts it, or each of its channels, by the client's own."""
    last, out = isinstance(layer, nn.LayerNorm | nn.RMSNorm), layers.normalised(layer, a)
    shape = (-1, *layer.normalized_shape) if last else (-1, a.shape[1], prod(a.shape[2:]))
    for name, combine in (("weight", torch.mul), ("bias", torch.add)):
        value = _of(layer, name, own)
        if value is not None:
            spread = (*value.shape[1:], *(1 for _ in shape[value.dim() :]))
            out = combine(out.reshape(len(value), *shape), value.reshape(len(value), 1, *spread))
    return a, out.reshape(a.shape)


def conv_forms(layer: layers.Conv, uses: layers.Uses, batch: int) -> dict[str, layers.Form]:
    """As the rule of one client, from windows (row, group, p, place) that are there already."""
    pairs, groups = layers.by_example(uses, batch), layer.groups

    def gradients() -> torch.Tensor:
        """Products of windows as they lie: put in rows they would be copied, where an example has several views."""
        each = [torch.matmul(d.unflatten(2, (groups, -1)), a.mT) for a, d in pairs]
        views = layers.joined([one.flatten(2) for one in each])
        return views[:, 0] if views.shape[1] == 1 else views.sum(1)

    there = pairs[0][0].is_cuda  # where memory is wide enough for the products of every view
    return layers.of_windows(
        layer,
        pairs,
        lambda a: a.permute(0, 1, 4, 2, 3).flatten(1, 2),
        lambda total: total.reshape(layer.weight.shape),
        gradients if there else None,
    )


STACKED: dict[type[nn.Module], Stacked] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    **dict.fromkeys(layers.CONVS, conv),
    **dict.fromkeys(layers.NORMS, norm),
}
RULES: dict[type[nn.Module], layers.Rule] = ALONE | dict.fromkeys(layers.CONVS, conv_forms)


# Max-pooling of stacked clients: its way back looks up for every pixel of which windows it was the largest.


class Pool(nn.Module):
    """Max-pooling whose windows lie within the image: side by side everywhere, and overlapping where there is a kernel for it."""

    def __init__(self, layer: nn.MaxPool2d):
        super().__init__()
        self.size, self.stride = _pair(layer.kernel_size), _pair(layer.stride)

    @staticmethod
    def fits(layer: nn.MaxPool2d, like: torch.Tensor) -> bool:
        plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1) and not layer.return_indices
        size, stride = _pair(layer.kernel_size), _pair(layer.stride)
        return plain and not layer.ceil_mode and (size == stride or pools_overlapping(like, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Pooled.apply(x, self.size, self.stride)


class Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: tuple[int, int], stride: tuple[int, int]) -> torch.Tensor:
        out, at = pool(x, size, stride)
        ctx.save_for_backward(at)
        ctx.size, ctx.stride, ctx.shape = size, stride, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (at,) = ctx.saved_tensors
        return unpool(gradients[0], at, ctx.size, ctx.stride, ctx.shape), None, None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
