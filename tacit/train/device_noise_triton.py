"""The kernel behind `device_noise.add_normals_`: draws and adds in one pass over the rows. Needs Triton."""

# pyright: reportMissingImports=false
import torch
import triton
import triton.language as tl

BLOCK = 1024  # pairs


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
    """rows[k] += stds[k] N(0, I), drawn under keys[k] for one step."""
    clients, count = rows.shape
    grid = (triton.cdiv((count + 1) // 2, BLOCK), clients)
    _add[grid](rows, stds, keys.contiguous(), rows.stride(0), count, step, BLOCK=BLOCK)  # pyright: ignore
