"""Which stack a model can be trained in with many clients at once, decided on synthetic rows."""

import torch
from torch import nn

from tacit.errors import ModelRefused
from tacit.losses import Losses
from tacit.train.clipping import clipped_sum_slow
from tacit.train.flat import flatten
from tacit.train.per_example_check import BLOCK_FLOOR, TOLERANCE, Watched, drawn, refuse, settle
from tacit.train.rowwise import LARGE, SMALL, Unsupported
from tacit.train.stacked_model import Stackable, StackedModel
from tacit.train.stacked_vmap import VmappedModel
from tacit.train.synthetic import same_chance, synthetic

TRIED = 3  # examples
NO_CLIP = 1e30


def stack_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> Stackable:
    """The fastest stack that agrees with single examples. Of x and y only shape and type are used.

    Raises: Unsupported with the reason where there is none: the model mixes or remembers examples, or torch.func cannot take it.
    """
    try:
        refuse(model)
        rows, labels = synthetic(model, x, y, count=SMALL + LARGE)
        try:
            with same_chance(x.device), drawn(model):
                stack = StackedModel(model, rows, losses)
                _refuse_difference(stack, model, rows[:TRIED], labels[:TRIED], losses)
                return stack
        except Unsupported as error:
            reason = str(error)
        name, _, more = settle(model, ("vmap", "loop"), x, y, losses=losses)
        if name == "vmap":
            return VmappedModel(model, losses)
        raise Unsupported(f"{reason}; {more}")
    except ModelRefused as error:
        raise Unsupported(str(error)) from error


def _refuse_difference(stack: StackedModel, model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> None:
    """Raises: Unsupported where two stacked clients have another gradient than the model alone."""
    with Watched():  # dropout off
        alone = clipped_sum_slow(model, x, y, clip=NO_CLIP, losses=losses)
        parts = stack.cut(stack.rows(flatten(model), 2))
        a, b = x.expand(2, *x.shape), y.expand(2, *y.shape)
        found = stack.gradients(parts, a, b, torch.ones(2, len(y), device=x.device)).blocks
    rows = torch.cat(found, dim=1)
    if not float((rows - alone).norm()) <= (TOLERANCE + BLOCK_FLOOR) * float(alone.norm()) * 2:
        raise Unsupported("its gradients are not those of single examples")
