"""The kernel behind `clip.ExactSum.add_rows`: weighs, cuts and adds in one pass over the rows. Needs Triton."""

# pyright: reportMissingImports=false
import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _add(rows, factors, total, count, stride, size, BLOCK: tl.constexpr):  # pyright: ignore
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    sums, here = tl.load(total + place, mask=inside), rows + place
    for row in range(count):
        steps = tl.load(here, mask=inside, other=0.0) * tl.load(factors + row)
        steps = tl.where(steps < 0, tl.ceil(steps), tl.floor(steps))
        sums += tl.where(tl.abs(steps) < float("inf"), steps, 0.0).to(tl.float64)
        here += stride
    tl.store(total + place, sums, mask=inside)


def add_steps(total: torch.Tensor, rows: torch.Tensor, factors: torch.Tensor) -> None:
    """total += the rows times their factors, cut to whole numbers; what is not finite counts as zero."""
    count, size = rows.shape
    _add[(triton.cdiv(size, BLOCK),)](rows, factors, total, count, rows.stride(0), size, BLOCK=BLOCK)  # pyright: ignore
