"""Kernels for `fused` and `stacked_layers`: each in one pass over memory. Needs Triton."""

import torch
import triton
import triton.language as tl
from torch import nn

# pyright: reportMissingImports=false


BLOCK = 1024
LONG = 1 << 30  # numbers from which a place is counted in 64 bits, which takes longer

Pair = tuple[int, int]


@triton.jit
def _step(part, along, rate, total, BLOCK: tl.constexpr):  # pyright: ignore
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    theta = tl.load(part + place, mask=inside)
    tl.store(part + place, theta - tl.load(rate) * tl.load(along + place, mask=inside), mask=inside)


@triton.jit
def _add_bias(out, bias, rows, size, C: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr):  # pyright: ignore
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    own = tl.load(bias + (row // rows) * C + place // P, mask=inside).to(tl.float32)
    here = out + row * size + place
    tl.store(here, tl.load(here, mask=inside).to(tl.float32) + own, mask=inside)


@triton.jit
def _sum_bias(d, out, rows, C: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr):  # pyright: ignore
    at = tl.program_id(0).to(tl.int64)
    client, channel = at // C, at % C
    place = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for row in range(rows):
        first = ((client * rows + row) * C + channel) * P
        for start in range(0, P, BLOCK):
            sums += tl.load(d + first + start + place, mask=start + place < P, other=0.0).to(tl.float32)
    tl.store(out + at, tl.sum(sums, axis=0))


@triton.jit
def _pool(x, out, where, total, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
          SW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip # pyright: ignore
    first = tl.program_id(0).to(tl.int64) * BLOCK if LONG else tl.program_id(0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < total
    column, rest = place % OW, place // OW
    row, image = rest % OH, rest // OH
    corner = x + (image * H + row * SH) * W + column * SW
    best = tl.load(corner, mask=inside)
    at = tl.zeros([BLOCK], tl.int32)
    for u in tl.static_range(KH):
        for v in tl.static_range(KW):
            value = tl.load(corner + u * W + v, mask=inside)
            larger = (value > best) | (value != value)
            best = tl.where(larger, value, best)
            at = tl.where(larger, u * KW + v, at)
    tl.store(out + place, best, mask=inside)
    tl.store(where + place, at.to(tl.uint8), mask=inside)


@triton.jit
def _unpool(d, where, out, total, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
            SW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip # pyright: ignore
    first = tl.program_id(0).to(tl.int64) * BLOCK if LONG else tl.program_id(0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < total
    j, rest = place % W, place // W
    i, image = rest % H, rest // H
    sums = tl.zeros([BLOCK], tl.float32)
    for u in tl.static_range(KH):
        for v in tl.static_range(KW):
            a, b = i - u, j - v
            there = inside & (a >= 0) & (b >= 0) & (a % SH == 0) & (b % SW == 0) & (a // SH < OH) & (b // SW < OW)
            at = (image * OH + a // SH) * OW + b // SW
            mine = tl.load(where + at, mask=there, other=255).to(tl.int32) == u * KW + v
            sums += tl.load(d + at, mask=there & mine, other=0.0).to(tl.float32)
    tl.store(out + place, sums, mask=inside)


def step(part: torch.Tensor, along: torch.Tensor, rate: torch.Tensor) -> None:
    _step[(triton.cdiv(part.numel(), BLOCK),)](part, along, rate, part.numel(), BLOCK=BLOCK)  # pyright: ignore


def add_bias(out: torch.Tensor, bias: torch.Tensor) -> None:
    size, channels = out[0].numel(), out.shape[1]
    grid = (len(out), triton.cdiv(size, BLOCK))  # rows first: the second direction of a grid ends at 65,535
    shape = {"C": channels, "P": size // channels, "BLOCK": BLOCK}
    _add_bias[grid](out, bias.contiguous(), len(out) // len(bias), size, **shape)  # pyright: ignore


def sum_bias(d: torch.Tensor, clients: int) -> torch.Tensor:
    """The sums (client, channel) of rows (row, channel, ...), in float32 and always in the same order."""
    channels, places = d.shape[1], d[0, 0].numel()
    out = torch.empty(clients, channels, device=d.device)
    block = min(BLOCK, triton.next_power_of_2(places))
    shape = {"C": channels, "P": places, "BLOCK": block}
    _sum_bias[(out.numel(),)](d.contiguous(), out, len(d) // clients, **shape)  # pyright: ignore
    return out


def pool(x: torch.Tensor, size: Pair, stride: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = _sizes(x.shape, size, stride)
    out = x.new_empty(*x.shape[:2], sizes["OH"], sizes["OW"])
    where = torch.empty(out.shape, dtype=torch.uint8, device=x.device)
    how = {**sizes, "LONG": x.numel() >= LONG, "BLOCK": BLOCK}
    _pool[(triton.cdiv(out.numel(), BLOCK),)](x.contiguous(), out, where, out.numel(), **how)  # pyright: ignore
    return out, where


def unpool(d: torch.Tensor, where: torch.Tensor, size: Pair, stride: Pair, shape: torch.Size) -> torch.Tensor:
    out = d.new_empty(shape)
    how = {**_sizes(shape, size, stride), "LONG": out.numel() >= LONG, "BLOCK": BLOCK}
    _unpool[(triton.cdiv(out.numel(), BLOCK),)](d.contiguous(), where, out, out.numel(), **how)  # pyright: ignore
    return out


def _sizes(shape: torch.Size, size: Pair, stride: Pair) -> dict[str, int]:
    (height, width), (kh, kw), (sh, sw) = shape[2:], size, stride
    sizes = {"H": height, "W": width, "KH": kh, "KW": kw, "SH": sh, "SW": sw}
    return sizes | {"OH": (height - kh) // sh + 1, "OW": (width - kw) // sw + 1}


# For `stacked_layers`: the windows of images, and the way back.


@triton.jit
def _windows(x, out, total, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
             OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
             DH: tl.constexpr, DW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip # pyright: ignore
    first = tl.program_id(0).to(tl.int64) * BLOCK if LONG else tl.program_id(0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < total
    column, rest = place % OW, place // OW
    row, rest = rest % OH, rest // OH
    v, rest = rest % KW, rest // KW
    u, image = rest % KH, rest // KH  # image and channel
    i, j = row * SH - PH + u * DH, column * SW - PW + v * DW
    there = inside & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    tl.store(out + place, tl.load(x + (image * H + i) * W + j, mask=there, other=0.0), mask=inside)


@triton.jit
def _unwindowed(found, out, total, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
                OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                DH: tl.constexpr, DW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip # pyright: ignore
    first = tl.program_id(0).to(tl.int64) * BLOCK if LONG else tl.program_id(0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < total
    j, rest = place % W, place // W
    i, image = rest % H, rest // H
    sums = tl.zeros([BLOCK], tl.float32)
    for u in tl.static_range(KH):
        for v in tl.static_range(KW):
            a, b = i + PH - u * DH, j + PW - v * DW
            there = inside & (a >= 0) & (b >= 0) & (a % SH == 0) & (b % SW == 0) & (a // SH < OH) & (b // SW < OW)
            at = (((image * KH + u) * KW + v) * OH + a // SH) * OW + b // SW
            sums += tl.load(found + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, sums, mask=inside)


def windows(layer: nn.Conv2d, x: torch.Tensor, padding: tuple[int, int]) -> torch.Tensor:
    sizes = _window_sizes(layer, x.shape, padding)
    out = x.new_empty(
        len(x), layer.groups, x.shape[1] // layer.groups * sizes["KH"] * sizes["KW"], sizes["OH"] * sizes["OW"]
    )
    how = {**sizes, "LONG": max(x.numel(), out.numel()) >= LONG, "BLOCK": BLOCK}
    _windows[(triton.cdiv(out.numel(), BLOCK),)](x.contiguous(), out, out.numel(), **how)  # pyright: ignore
    return out


def unwindowed(layer: nn.Conv2d, found: torch.Tensor, shape: torch.Size, padding: tuple[int, int]) -> torch.Tensor:
    out = found.new_empty(shape)
    how = {"LONG": max(out.numel(), found.numel()) >= LONG, "BLOCK": BLOCK}
    grid, sizes = (triton.cdiv(out.numel(), BLOCK),), _window_sizes(layer, shape, padding)
    _unwindowed[grid](found.contiguous(), out, out.numel(), **sizes, **how)  # pyright: ignore
    return out


def _window_sizes(layer: nn.Conv2d, shape: torch.Size, padding: tuple[int, int]) -> dict[str, int]:
    (kh, kw), (sh, sw), (dh, dw), (ph, pw) = layer.kernel_size, layer.stride, layer.dilation, padding
    _, channels, height, width = shape
    oh, ow = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    names = ("C", "H", "W", "KH", "KW", "OH", "OW", "SH", "SW", "PH", "PW", "DH", "DW")
    return dict(zip(names, (channels, height, width, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw), strict=True))


# For `fused.add_normals_`: draws and adds in one pass over the rows; a block is of pairs.


@triton.jit(do_not_specialize=["step"])  # pyright: ignore
def _add(rows, stds, keys, stride, count, step, BLOCK: tl.constexpr):  # pyright: ignore
    client = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(keys + 4 * client), tl.load(keys + 4 * client + 1)
    third, fourth = tl.load(keys + 4 * client + 2), tl.load(keys + 4 * client + 3)
    zero = tl.zeros([BLOCK], tl.uint32)
    a, b, c, d = tl.philox(
        first | (second << 32),
        pair.to(tl.uint32),
        zero + step.to(tl.uint32),
        zero + third.to(tl.uint32),
        zero + fourth.to(tl.uint32),
    )
    u = a.to(tl.float32) * 2.3283064365386963e-10 + b.to(tl.float32) * 5.421010862427522e-20
    u = tl.minimum(u + ((d >> 12).to(tl.float32) + 0.5) * 5.169878828456423e-26, 1.0)
    radius = tl.sqrt(-2.0 * tl.log(u)) * tl.load(stds + client).to(tl.float32)
    angle = c.to(tl.float32) * 1.4629180792671596e-09
    place = 2 * pair
    here = rows + client * stride + place
    left = tl.load(here, mask=place < count) + radius * tl.cos(angle)
    right = tl.load(here + 1, mask=place + 1 < count) + radius * tl.sin(angle)
    tl.store(here, left, mask=place < count)
    tl.store(here + 1, right, mask=place + 1 < count)


def add_normals(rows: torch.Tensor, stds: torch.Tensor, keys: torch.Tensor, step: int) -> None:
    clients, count = rows.shape
    grid = (triton.cdiv((count + 1) // 2, BLOCK), clients)
    _add[grid](rows, stds, keys.contiguous(), rows.stride(0), count, step, BLOCK=BLOCK)  # pyright: ignore
