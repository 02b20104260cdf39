"""Per-example gradients in the forms that make them cheap: as factors, as a few table rows, or as they are. Source: Li et al.
2022 (ghost norms, arXiv:2110.05679v6, sec. 4.1) and Bu et al. 2023 (book-keeping, arXiv:2210.00038v3). An example without a
finite norm has weight 0; since 0 times infinity is no number, what is not finite is replaced (`nan_to_num`) before it meets its
weight, in place: forms own their factors, and the norms are taken before the sums. How float32 rounds a sum depends on who is
in it: one example among 8,192 moved the sum by twice its clip. Sums are therefore double but for FEW examples (`sum_type`),
sums over the rows of one example always are, and `clip_weights` gives a part of the clip away that covers what is left.
docs/derivations.md has the bounds."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nan_to_num, nn
from torch.linalg import vector_norm

FLOAT_COST = 16  # products that one core does while it writes a float to memory and reads it back
KEEP_FLOATS = 1 << 20  # 4 MiB: gradients this small are kept whatever the activations take
KEEP_RATIO = 2  # otherwise kept gradients take at most twice the memory of their factors
PART_FLOATS = 1 << 23  # 32 MiB: more than this is never unfolded at once
# of the squared reach: far more than a sum of products loses in double, and no weight lets reach^2 be 2^21 C^2
ROUNDING = 2.0**-21
PIECE, LONGEST = 512, 4096  # entries whose squares are added up at once
FEW = 64  # examples whose float32 sum is wrong by 66 * 64 units of 2^-24 of a clip at most
LOST = 2.0**-63  # the square of a smaller entry is flushed to zero, and is missing from its norm

Rows = Callable[[slice], tuple[torch.Tensor, torch.Tensor]]
Arranged = Callable[[torch.Tensor], torch.Tensor]


# A form has the gradients of one parameter, one per example i, and three functions: `squared_norms` gives every |g_i|^2, once;
# `add_weighted` adds sum_i weights_i g_i to `out`, which has the parameter's shape, where weight 0 takes out whatever g_i is;
# `add_stacked` does so for several clients, with weights (client, example), examples client by client, and one `out` for each.


class Dense:
    """Gradients (batch, size) as they are: biases and the scales of normalisation layers."""

    def __init__(self, gradients: torch.Tensor):
        self.gradients = gradients

    def squared_norms(self) -> torch.Tensor:
        return row_norms(self.gradients).square()

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        add_rows(out.view(-1), cleaned(self.gradients), weights)

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(summed(self.gradients, weights, out.dtype).view_as(out))


class Outer:
    """Gradients d_i a_i^T of a matrix that every example uses once."""

    def __init__(self, a: torch.Tensor, d: torch.Tensor):
        self.a, self.d = a, d

    def squared_norms(self) -> torch.Tensor:
        return (factor_norms(self.a) * factor_norms(self.d)).square_()

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        d, a = (cleaned(rows).to(out.dtype) for rows in (self.d, self.a))
        out.addmm_((d * weights[:, None]).t(), a)

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        d, a = (cleaned(rows).to(out.dtype).unflatten(0, weights.shape) for rows in (self.d, self.a))
        out.baddbmm_((d * weights[:, :, None]).mT, a)


class Table:
    """Gradients of an embedding: (batch, time) places in a table, and what is added there. Equal places add up first."""

    def __init__(self, indices: torch.Tensor, gradients: torch.Tensor, *, rows: int):
        batch, time, width = gradients.shape
        first = torch.arange(0, batch * rows, rows, device=indices.device)
        kept = indices.clamp(0, rows - 1)  # a place outside would be another example's
        pairs, where = torch.unique(kept + first[:, None], return_inverse=True)
        self.batch, self.owner, self.row = batch, pairs // rows, pairs % rows
        merged = gradients.new_zeros(len(pairs), width)
        self.merged = merged.index_add_(0, where.view(-1), gradients.reshape(batch * time, width))

    def squared_norms(self) -> torch.Tensor:
        norms = row_norms(self.merged).square()
        return norms.new_zeros(self.batch).index_add_(0, self.owner, norms)

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.index_add_(0, self.row, cleaned(self.merged).to(out.dtype) * weights[self.owner][:, None])

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        client = self.owner // weights.shape[1]
        added = cleaned(self.merged).to(out.dtype) * weights.flatten()[self.owner][:, None]
        out.index_put_((client, self.row), added, accumulate=True)


class Product:
    """Gradients sum_t d_t a_t^T, kept as factors: `rows(part)` gives a (examples, time, groups, p) and d (..., q), `gradients` is a
    shorter way to all of them, (batch, groups * q * p), and `arranged` gives a sum (groups, q, p) its shape. The cheaper way to the
    norm is taken: the Gram matrices of a and d for few rows of many columns, otherwise the gradients."""

    def __init__(
        self,
        rows: Rows,
        arranged: Arranged,
        *,
        batch: int,
        time: int,
        groups: int,
        p: int,
        q: int,
        gradients: Callable[[], torch.Tensor] | None = None,
    ):
        self.rows, self.arranged, self.batch, self.time = rows, arranged, batch, time
        self.groups, self.p, self.q, self.gradients = groups, p, q, gradients
        self.kept: torch.Tensor | None = None

    def squared_norms(self) -> torch.Tensor:
        size, factors = self.p * self.q, self.time * (self.p + self.q)
        keeps = self.batch * self.groups * size <= KEEP_FLOATS or size <= KEEP_RATIO * factors
        gram_cost = 2 * self.time**2 * (self.p + self.q + FLOAT_COST)
        if keeps and gram_cost >= FLOAT_COST * size:
            self.kept = self.gradients() if self.gradients else multiplied(*self.rows(slice(None)))
            return row_norms(self.kept).square()
        norms = gram_norms if gram_cost < (FLOAT_COST + 2 * self.time) * size else multiplied_norms
        return torch.cat([norms(*self.rows(part)) for part in self._parts()])

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        if self.kept is not None:
            total = out.new_zeros(self.kept.shape[1])
            out.add_(self.arranged(add_rows(total, cleaned(self.kept), weights)))
            return
        for part in self._parts():
            a, d = (wide(cleaned(rows)) for rows in self.rows(part))
            out.add_(self.arranged(weighted(a, d * weights[part, None, None, None])))

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        if self.kept is not None:
            out.add_(torch.stack([self.arranged(total) for total in summed(self.kept, weights, out.dtype)]))
            return
        examples = weights.shape[1]
        each = examples * self.groups * self.time * (self.p + self.q)
        step = max(1, PART_FLOATS // each)  # clients
        for first in range(0, len(weights), step):
            own, into = weights[first : first + step], out[first : first + step]
            part = slice(first * examples, (first + len(own)) * examples)
            a, d = (wide(cleaned(rows)) for rows in self.rows(part))
            factors = (d * own.reshape(-1, 1, 1, 1), a)
            d, a = (rows.unflatten(0, (len(own), -1)).flatten(1, 2).transpose(1, 2) for rows in factors)
            into.add_(torch.stack([self.arranged(total) for total in d.mT @ a]))  # (client, groups, q, p)

    def _parts(self) -> list[slice]:
        each = self.groups * (self.time * (self.p + self.q) + min(2 * self.time**2, self.p * self.q))
        step = max(1, PART_FLOATS // each)
        return [slice(start, start + step) for start in range(0, self.batch, step)]


Form = Dense | Outer | Table | Product


def add_rows(out: torch.Tensor, gradients: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """out += the weighted sum of gradients (example, size), some examples at a time: they are copied into the type of `out`."""
    step = max(1, PART_FLOATS // max(1, gradients.shape[1]))
    for rows, own in zip(gradients.split(step), weights.to(out.dtype).split(step), strict=True):
        out.addmv_(rows.to(out.dtype).t(), own)
    return out


def summed(gradients: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weighted sums (client, size) of gradients (client x example, size), some clients at a time."""
    rows = cleaned(gradients).unflatten(0, weights.shape)
    step = max(1, PART_FLOATS // max(1, rows[0].numel()))
    parts = zip(rows.split(step), weights.to(dtype).split(step), strict=True)
    return torch.cat([torch.bmm(own[:, None], some.to(dtype))[:, 0] for some, own in parts])


def sum_type(device: torch.device, examples: int) -> torch.dtype:
    """What so many clipped gradients are added up in: double where the device has it, but for few examples."""
    return torch.float32 if examples <= FEW or device.type == "mps" else torch.float64


def wide(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.device.type == "mps" else rows.double()


def cleaned(rows: torch.Tensor) -> torch.Tensor:
    return rows.nan_to_num_() if rows.is_contiguous() else nan_to_num(rows)


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Norms along the last dimension, of long rows piece by piece: of 10^7 entries a float32 sum lost 2 % of the norm. A piece and
    every level above it lose at most 512 units in the last place."""
    size = rows.shape[-1]
    if size <= LONGEST:
        return vector_norm(rows, dim=-1)
    whole = size // PIECE * PIECE
    parts = vector_norm(rows[..., :whole].unflatten(-1, (-1, PIECE)), dim=-1)
    return row_norms(torch.cat([parts, rows[..., whole:]], dim=-1))


def factor_norms(rows: torch.Tensor) -> torch.Tensor:
    """Norms along the last dimension, rounded up by what squares below float32 may have lost: the other factor may be huge."""
    return row_norms(rows).add_(LOST * rows.shape[-1] ** 0.5)


def multiplied(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    if a.shape[2] == 1:
        return torch.bmm(d[:, :, 0].mT, a[:, :, 0]).flatten(1)
    return (d.permute(0, 2, 3, 1) @ a.transpose(1, 2)).flatten(1)


def weighted(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    if a.shape[2] == 1:
        return torch.mm(d.reshape(-1, d.shape[3]).t(), a.reshape(-1, a.shape[3]))
    return torch.bmm(d.permute(2, 3, 0, 1).flatten(2), a.permute(2, 0, 1, 3).flatten(1, 2))


def multiplied_norms(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return _rounded_up(row_norms(multiplied(wide(a), wide(d))).square(), a.transpose(1, 2), d.transpose(1, 2))


def gram_norms(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Squared norms sum_tu (a_t.a_u)(d_t.d_u), rounded up: where the sum cancels, rounding may only clip more, never less."""
    a, d = a.transpose(1, 2), d.transpose(1, 2)
    each = wide(a), wide(d)
    return _rounded_up(((each[0] @ each[0].mT) * (each[1] @ each[1].mT)).sum((1, 2, 3)), a, d)


def _rounded_up(squares: torch.Tensor, a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    a_norms, d_norms = factor_norms(a), factor_norms(d)
    reach = (a_norms * d_norms).sum(-1)  # sum_t |a_t||d_t| >= |g|
    # products of what a square loses
    lost = LOST * (a.shape[-1] ** 0.5 * d_norms + d.shape[-1] ** 0.5 * a_norms).sum(-1)
    return squares.to(a.dtype) + (ROUNDING * reach.square() + lost.square()).sum(-1)


# One rule per layer: from its input a and the gradient d of its output to the per-example gradients of its parameters.

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Uses = list[tuple[torch.Tensor, torch.Tensor]]
Rule = Callable[[Any, Uses, int], dict[str, Form]]


def linear(layer: nn.Linear, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: sum_t d_t a_t^T; bias: sum_t d_t."""
    p, q, (a, d) = layer.in_features, layer.out_features, uses[0]
    if len(uses) == 1 and a.numel() == batch * p:
        a, d = a.reshape(batch, p), d.reshape(batch, q)
        return {"weight": Outer(a, d), "bias": Dense(d)}
    a = joined([a.reshape(batch, -1, p) for a, _ in uses])
    d = joined([d.reshape(batch, -1, q) for _, d in uses])
    shape: Any = {"batch": batch, "time": a.shape[1], "groups": 1, "p": p, "q": q}
    weight = Product(lambda part: (a[part, :, None], d[part, :, None]), lambda total: total.view(q, p), **shape)
    return {"weight": weight, "bias": Dense(d.sum(1))}


def conv(layer: Conv, uses: Uses, batch: int) -> dict[str, Form]:
    """A convolution is a linear layer on the windows of its input, one row a place, for every group of channels."""
    p = prod(layer.weight.shape[1:])

    def read(a: torch.Tensor) -> torch.Tensor:
        return windows(layer, a.flatten(0, 1)).view(len(a), -1, layer.groups, p)

    def arranged(total: torch.Tensor) -> torch.Tensor:
        return total.view(layer.out_channels, *layer.kernel_size, -1).movedim(-1, 1)

    return of_windows(layer, by_example(uses, batch), read, arranged)


def by_example(uses: Uses, batch: int) -> Uses:
    return [(a.unflatten(0, (batch, -1)), d.unflatten(0, (batch, -1)).flatten(3)) for a, d in uses]


def of_windows(
    layer: Conv, pairs: Uses, read: Arranged, arranged: Arranged, gradients: Callable[[], torch.Tensor] | None = None
) -> dict[str, Form]:
    """The forms of a convolution; `read` gives the windows (example, place, group, p) of some examples' inputs."""
    groups, q, p = layer.groups, layer.out_channels // layer.groups, prod(layer.weight.shape[1:])

    def rows(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        d = [d[part].unflatten(2, (groups, q)).permute(0, 1, 4, 2, 3).flatten(1, 2) for _, d in pairs]
        return joined([read(a[part]) for a, _ in pairs]), joined(d)

    shape: Any = {"batch": len(pairs[0][1]), "time": sum(d.shape[1] * d.shape[3] for _, d in pairs)}
    weight = Product(rows, arranged, **shape, groups=groups, p=p, q=q, gradients=gradients)
    return {"weight": weight, "bias": Dense(added([d.sum((1, 3)) for _, d in pairs]))}


def windows(layer: Conv, x: torch.Tensor) -> torch.Tensor:
    """The windows (batch, *places, groups, *kernel, channels of the group) that a convolution reads, as copies. Channels are
    innermost, so that the copy moves long runs of memory: up to ten times faster than `F.unfold`."""
    x = padded(layer, x).movedim(1, -1).contiguous()
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    sizes = zip(x.shape[1:], kernel, stride, dilation, strict=False)
    positions = [(s - r * (k - 1) - 1) // t + 1 for s, k, t, r in sizes]
    batch, *space, _ = x.stride()
    channels = layer.in_channels // layer.groups
    moves = [s * t for s, t in zip(space, stride, strict=True)]
    steps = [s * r for s, r in zip(space, dilation, strict=True)]
    shape = (len(x), *positions, layer.groups, *kernel, channels)
    return x.as_strided(shape, (batch, *moves, channels, *steps, 1)).contiguous()


def padded(layer: Conv, x: torch.Tensor) -> torch.Tensor:
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


def normalised(layer: Any, a: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        norm: Callable[..., torch.Tensor] = F.layer_norm if isinstance(layer, nn.LayerNorm) else F.rms_norm
        return norm(a, layer.normalized_shape, eps=layer.eps)
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(a, layer.num_groups, eps=layer.eps)
    return F.instance_norm(a, eps=layer.eps)


def norm(layer: Any, uses: Uses, batch: int) -> dict[str, Form]:
    """weight: sum d * normalised(a); bias: sum d; over all but the normalised dimensions, or the places of every channel."""

    def total(d: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            return d.reshape(batch, -1, prod(layer.normalized_shape)).sum(1)
        return d.reshape(batch, -1, d.shape[1], prod(d.shape[2:])).sum((1, 3))

    weight, bias = zip(*((total(d * normalised(layer, a)), total(d)) for a, d in uses), strict=True)
    return {"weight": Dense(added(list(weight))), "bias": Dense(added(list(bias)))}


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    **dict.fromkeys(CONVS, conv),
    **dict.fromkeys(NORMS, norm),
}
