"""Kernels for `stacked_layers`: the windows of images, and the way back, each in one pass over memory. Needs Triton."""

# pyright: reportMissingImports=false
import torch
import triton
import triton.language as tl
from torch import nn

BLOCK = 1024
LONG = 1 << 30  # numbers from which a place is counted in 64 bits, which takes longer


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
    """The windows (row, group, channel and kernel, place) of images, with zeros around them."""
    sizes = _sizes(layer, x.shape, padding)
    out = x.new_empty(
        len(x), layer.groups, x.shape[1] // layer.groups * sizes["KH"] * sizes["KW"], sizes["OH"] * sizes["OW"]
    )
    how = {**sizes, "LONG": _long(x, out), "BLOCK": BLOCK}
    _windows[(triton.cdiv(out.numel(), BLOCK),)](x.contiguous(), out, out.numel(), **how)  # pyright: ignore
    return out


def unwindowed(layer: nn.Conv2d, found: torch.Tensor, shape: torch.Size, padding: tuple[int, int]) -> torch.Tensor:
    """Adds windows up where they came from."""
    out = found.new_empty(shape)
    grid, how = (triton.cdiv(out.numel(), BLOCK),), {"LONG": _long(out, found), "BLOCK": BLOCK}
    _unwindowed[grid](found.contiguous(), out, out.numel(), **_sizes(layer, shape, padding), **how)  # pyright: ignore
    return out


def _long(images: torch.Tensor, windows: torch.Tensor) -> bool:
    """Whether places in one of them need 64 bits: windows are more numbers than their images, or, far apart, fewer."""
    return max(images.numel(), windows.numel()) >= LONG


def _sizes(layer: nn.Conv2d, shape: torch.Size, padding: tuple[int, int]) -> dict[str, int]:
    (kh, kw), (sh, sw), (dh, dw), (ph, pw) = layer.kernel_size, layer.stride, layer.dilation, padding
    _, channels, height, width = shape
    oh, ow = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    names = ("C", "H", "W", "KH", "KW", "OH", "OW", "SH", "SW", "PH", "PW", "DH", "DW")
    return dict(zip(names, (channels, height, width, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw), strict=True))
