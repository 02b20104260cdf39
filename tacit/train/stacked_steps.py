"""The steps of a whole cohort, all clients in step: plain SGD and DP-SGD on rows (client, parameter) of one matrix.

The twins of `sgd.sgd` and `dp_sgd.dp_sgd`: the same batches, so that the two differ by float32 rounding, and by how they are noised
where noise is drawn on the device. Every argument that changes from round to round is a tensor, so that the whole of it can be
recorded once and played again (`captured.py`).
"""

from collections.abc import Callable

import torch

from tacit.train.descent import Descent, Motion
from tacit.train.fused import step_
from tacit.train.stacked_model import Stackable

# a step's rows (client, example, ...) and its number -> their views; sums (client, parameter) and it -> the same with their noise
Shown = Callable[[torch.Tensor, int], torch.Tensor]
Noise = Callable[[torch.Tensor, int], torch.Tensor]


def sgd_steps(
    stack: Stackable,
    start: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    rate: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    descent: Descent,
    uneven: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients' differences after their own numbers of steps, and the losses of their last batches.

    `uneven` says that some take fewer steps than others; else an empty batch is that of nobody, whose row nobody reads.
    """
    clients = places.shape[1]
    first = stack.cut(start)
    parts = [
        part.expand(clients, -1).clone() for part in first
    ]  # each block by itself, so that it is one piece of memory
    moves = motions(stack, descent, first, correction)
    last = start.new_zeros(clients)
    for rows, own in zip(places, mask, strict=True):
        count = own.sum(1)
        found = stack.gradients(parts, x[rows], y[rows], own / count.clamp(min=1.0)[:, None])
        for part, gradient, move in zip(parts, found.blocks, moves, strict=True):
            along = move(gradient, part)
            step_(part, torch.where(count[:, None] > 0, along, 0.0) if uneven else along, rate)
        last = torch.where(count > 0, found.losses, last)
    moved = start.new_empty(clients, len(start))
    for into, part, own in zip(stack.cut(moved), parts, first, strict=True):
        torch.sub(part, own, out=into)
    return moved, last


def dp_sgd_steps(
    stack: Stackable,
    start: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    rates: torch.Tensor,
    summed: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    descent: Descent,
    clip: float,
    noise: Noise,
    shown: Shown | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients' noised differences, and what the researcher may see of each: its loss, its examples, how many were clipped."""
    theta, seen = stack.rows(start, places.shape[1]), start.new_zeros(3, places.shape[1])
    move = Motion(descent, start, correction)
    for step, (rows, own) in enumerate(zip(places, mask, strict=True)):
        seen_as = x[rows] if shown is None else shown(x[rows], step)
        at = (stack, theta, seen, seen_as, y[rows], own, rates, summed, move)
        dp_sgd_step(*at, clip=clip, noise=lambda sums, s=step: noise(sums, s))
    return theta - start, seen


def dp_sgd_step(
    stack: Stackable,
    theta: torch.Tensor,
    seen: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    mask: torch.Tensor,
    rates: torch.Tensor,
    summed: torch.Tensor,
    move: Motion,
    *,
    clip: float,
    noise: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """One step of all clients, in place: the clipped sums, their noise, and the step along them (lines 11 to 14)."""
    sums, norms, losses = stack.clipped_sums(theta, x, y, mask, clip=clip)
    seen += torch.stack([losses.nan_to_num(0.0, 0.0, 0.0) * mask, mask, (norms > clip) * mask]).sum(2)
    theta.addcmul_(move(noise(sums), theta, summed=summed[:, None]), rates[:, None], value=-1)


def motions(
    stack: Stackable, descent: Descent, first: list[torch.Tensor], correction: torch.Tensor | None
) -> list[Motion]:
    """The motions of all clients, block by block, each from where all begin."""
    corrections = [None] * len(first) if correction is None else stack.cut(correction)
    return [Motion(descent, part, own) for part, own in zip(first, corrections, strict=True)]
