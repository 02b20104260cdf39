"""Kernels for `fused`: each in one pass over memory. Needs Triton."""

# pyright: reportMissingImports=false
import torch
import triton
import triton.language as tl

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
    """part -= rate * along."""
    _step[(triton.cdiv(part.numel(), BLOCK),)](part, along, rate, part.numel(), BLOCK=BLOCK)  # pyright: ignore


def add_bias(out: torch.Tensor, bias: torch.Tensor) -> None:
    """Adds each client's own (client, channel) to its rows (row, channel, ...)."""
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
    """The largest of every window, and which it was."""
    sizes = _sizes(x.shape, size, stride)
    out = x.new_empty(*x.shape[:2], sizes["OH"], sizes["OW"])
    where = torch.empty(out.shape, dtype=torch.uint8, device=x.device)
    how = {**sizes, "LONG": x.numel() >= LONG, "BLOCK": BLOCK}
    _pool[(triton.cdiv(out.numel(), BLOCK),)](x.contiguous(), out, where, out.numel(), **how)  # pyright: ignore
    return out, where


def unpool(d: torch.Tensor, where: torch.Tensor, size: Pair, stride: Pair, shape: torch.Size) -> torch.Tensor:
    """Every gradient where its largest was; a pixel that is the largest of several windows has their sum."""
    out = d.new_empty(shape)
    how = {**_sizes(shape, size, stride), "LONG": out.numel() >= LONG, "BLOCK": BLOCK}
    _unpool[(triton.cdiv(out.numel(), BLOCK),)](d.contiguous(), where, out, out.numel(), **how)  # pyright: ignore
    return out


def _sizes(shape: torch.Size, size: Pair, stride: Pair) -> dict[str, int]:
    (height, width), (kh, kw), (sh, sw) = shape[2:], size, stride
    sizes = {"H": height, "W": width, "KH": kh, "KW": kw, "SH": sh, "SW": sw}
    return sizes | {"OH": (height - kh) // sh + 1, "OW": (width - kw) // sw + 1}
