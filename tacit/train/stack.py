"""Which stack a model can be trained in with many clients at once, decided on synthetic rows."""

import torch
from torch import nn

from tacit.errors import ModelRefused
from tacit.losses import Losses
from tacit.train.clipping import clipped_sum_slow
from tacit.train.flat import flatten
from tacit.train.per_example_check import BLOCK_FLOOR, TOLERANCE, Watched, drawn, refuse, settle
from tacit.train.precision import full_precision
from tacit.train.rowwise import LARGE, SMALL, Unsupported
from tacit.train.stacked_model import Stackable, StackedModel
from tacit.train.stacked_vmap import VmappedModel
from tacit.train.synthetic import same_chance, synthetic

TRIED = 3  # examples
NO_CLIP = 1e30


def stack_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> Stackable:
    """The fastest stack that agrees with single examples. Of x and y only shape and type are used.

    Whole numbers (tokens) are left to graphs alone: `torch.func` would look one that is in no table up in another client's.

    Raises: Unsupported with the reason where there is none: the model mixes or remembers examples, or torch.func cannot take it.
    """
    try:
        refuse(model)
        rows, labels = synthetic(model, x, y, count=SMALL + LARGE)
        exact = full_precision(x.device, clipped=False)  # a rounded convolution is not the stack's, which has none
        with exact, same_chance(x.device), drawn(model):
            reason = _difference(model, rows, labels, losses)
        if not reason:
            return StackedModel(model, rows, losses)
        if not x.is_floating_point():
            raise Unsupported(reason)
        name, _, more = settle(model, ("vmap", "loop"), x, y, losses=losses)
        if name == "vmap":
            return VmappedModel(model, losses)
        raise Unsupported(f"{reason}; {more}")
    except ModelRefused as error:
        raise Unsupported(str(error)) from error


def _difference(model: nn.Module, rows: torch.Tensor, labels: torch.Tensor, losses: Losses) -> str:
    """Why a model cannot be stacked as a graph: how two stacked clients differ from the model alone, or nothing."""
    try:
        stack, (x, y) = StackedModel(model, rows, losses), (rows[:TRIED], labels[:TRIED])
        with Watched():  # dropout off
            theta = stack.rows(flatten(model), 2)
            a, b, ones = x.expand(2, *x.shape), y.expand(2, *y.shape), torch.ones(2, len(y), device=x.device)
            whole = clipped_sum_slow(model, x, y, clip=NO_CLIP, losses=losses)
            found = torch.cat(stack.gradients(stack.cut(theta), a, b, ones).blocks, dim=1)
            clip = float(stack.clipped_sums(theta, a, b, ones, clip=NO_CLIP)[1].min()) / 2 or 1.0  # unequal weights
            clipped = clipped_sum_slow(model, x, y, clip=clip, losses=losses)
            sums = stack.clipped_sums(theta, a, b, ones, clip=clip)[0]
    except ModelRefused:
        raise
    except Exception as error:  # noqa: BLE001 - single examples go through: this path cannot take the model
        return str(error).partition("\n")[0] or type(error).__name__
    for some, alone in ((found, whole), (sums, clipped)):
        for block in stack.blocks:
            part, own = some[:, block.start : block.stop], alone[block.start : block.stop]
            near = TOLERANCE * float(own.norm()) + BLOCK_FLOOR * float(alone.norm())
            if not float((part - own).norm(dim=1).max()) <= near:
                return f"its gradients of {block.name!r} are not those of single examples"
    return ""
