"""Whole updates scaled to a norm of at most C: what client-level DP, local or central, is made for."""

import math

import numpy as np
import torch

from tacit.errors import BadInput
from tacit.types import Bounded

HUGE = 1e30  # beyond this ratio C/norm nears float32's smallest numbers, where rounding could leave more than C
NORMAL = 1e-37  # a smaller factor loses digits in float32
FAST_FROM = 1 << 14  # coordinates from which the rows' way to the norm is faster
ROW = 512
ROUNDING = 2.0**-15  # twice the relative error of a row's norm: (512 / 2 + 1) units of 2^-24, doubled
MARGIN = 2.0**-14  # scaled a little shorter, so that a second look finds it within C
SMALLEST = 1e-12  # below, squares leave float32
LEAST_CLIP, MOST_CLIP = 1e-9, 1e9  # how far a clip adapts: beyond, the noise that goes with it leaves float32


def bound(vector: torch.Tensor, *, clip: float) -> Bounded:
    """Scales a whole update to norm at most C; what is within C comes back as it is, the very tensor.

    Guarantee: the Euclidean norm of what is returned is at most C, and its `sensitivity` is C. From FAST_FROM coordinates on
    that holds exactly, so that a vector scaled once is left alone the next time; a shorter one is scaled to C itself, which
    float32 may round up by 6e-8 of it.

    Raises: BadInput for an update that is not finite: it has no norm.

    >>> bound(torch.tensor([3.0, 4.0]), clip=1.0).vector
    tensor([0.6000, 0.8000])
    """
    norm = norm_bound(vector)
    if norm <= clip:
        return Bounded(vector, clip)
    if vector.numel() >= FAST_FROM and norm < clip * HUGE:
        return Bounded(vector * (clip / norm * (1 - MARGIN)), clip)
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if not math.isfinite(norm):
        raise BadInput("the update is not finite")
    if norm <= clip:
        return Bounded(vector, clip)
    if norm > clip * HUGE:
        return Bounded((vector.double() * (clip / norm)).to(vector.dtype), clip)
    return Bounded(vector * (clip / norm), clip)


def row_scales(rows: torch.Tensor, *, clip: float) -> torch.Tensor:
    """What each of several updates (client, parameter) is multiplied by to have norm at most C, without a look at the device.

    Guarantee: as `bound`, for every row by itself. 0 stands for a row that is not finite, or too long to be scaled in float32.

    >>> row_scales(torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]]), clip=1.0).round(decimals=3)
    tensor([0.2000, 1.0000, 0.0000])
    """
    norms = row_norm_bounds(rows)
    scales = torch.where(norms <= clip, 1.0, clip / norms * (1 - MARGIN))
    return torch.where(scales > NORMAL, scales, 0.0).nan_to_num(0.0).to(rows.dtype)


def row_norm_bounds(rows: torch.Tensor) -> torch.Tensor:
    """Of each of several vectors an upper bound on its norm, in double precision and where they lie: `norm_bound` without a look.

    What leaves float32 by its squares counts as infinite; what is so small that they vanish, as SMALLEST.

    >>> row_norm_bounds(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([5., 1.], dtype=torch.float64)
    """
    size = rows.shape[1] // ROW * ROW
    if rows.shape[1] < FAST_FROM or rows.dtype != torch.float32:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    parts = torch.linalg.vector_norm(rows[:, :size].unflatten(1, (-1, ROW)), dim=2)
    both = torch.cat([parts, rows[:, size:]], dim=1)
    return torch.linalg.vector_norm(both, dim=1, dtype=torch.float64) * (1 + ROUNDING) + SMALLEST


def norm_bound(vector: torch.Tensor) -> float:
    """An upper bound on the Euclidean norm, at most 5e-5 of it too large; it makes no copy in double precision.

    Squares are added in float32 in rows of 512, whose error is below 512 units of the last place, and the rows in float64.
    Short vectors, and what leaves float32, are measured in double precision. NaN or infinity is the answer for what is not
    finite.

    >>> norm_bound(torch.tensor([3.0, 4.0]))
    5.0
    """
    in_rows = vector.numel() // ROW * ROW
    if vector.numel() >= FAST_FROM and vector.dtype == torch.float32:
        flat = vector.reshape(-1)
        rows = torch.linalg.vector_norm(flat[:in_rows].view(-1, ROW), dim=1)
        parts = [part.detach().cpu().numpy().astype(np.float64) for part in (rows, flat[in_rows:])]
        norm = math.sqrt(sum(float(part @ part) for part in parts)) * (1 + ROUNDING)
        if SMALLEST < norm < math.inf:
            return norm
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
