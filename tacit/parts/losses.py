"""Losses: what training makes small, one number per example. `task.loss` names one of these, or anybody's
"package.module:name": a function of (outputs, targets) whose other parameters are its options in `[task]`. Guarantee: each
number depends on its own example alone, so that clipping bounds what an example can do: somebody else's loss sees one example
at a time (`torch.vmap`), after a trial on made-up rows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tacit import plugin
from tacit.errors import BadInput
from tacit.plugin import part

ROOM = "tacit.parts.losses"
GIVEN = ("outputs", "targets")
TRIED = 5  # examples that somebody's own loss is tried on
TOLERANCE = 1e-4
IGNORED = -100  # a target that counts nothing: what a row of tokens is filled up with

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@part
def binary_cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    class_weights: tuple[float, ...] | None = None,  # public numbers, one for each class; default: all weigh the same
) -> torch.Tensor:
    """The mean over labels of -log sigmoid(o) where the label holds, else -log sigmoid(-o). `class_weights` are (no, yes) for
    one label, and the weight of yes for each of several.

    >>> binary_cross_entropy(torch.zeros(2, 1), torch.tensor([0, 1]), class_weights=(1.0, 3.0))
    tensor([0.6931, 2.0794])
    """
    targets = targets.reshape(outputs.shape).to(outputs.dtype)
    losses = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    if class_weights is not None:
        weights = torch.tensor(class_weights, dtype=outputs.dtype, device=outputs.device)
        no, yes = weights if outputs.shape[1:].numel() == 1 else (torch.ones_like(weights), weights)
        losses = losses * (no + (yes - no) * targets)
    return losses.flatten(1).mean(1)


@part
def cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    class_weights: tuple[float, ...] | None = None,  # public numbers, one for each class; default: all weigh the same
) -> torch.Tensor:
    """-w_y log softmax(outputs)_y. An example with several targets counts their mean."""
    weight = None if class_weights is None else torch.tensor(class_weights, dtype=outputs.dtype, device=outputs.device)
    losses = F.cross_entropy(outputs, targets, weight, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


@part
def huber(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    beyond: float = 1.0,  # the error from which the loss goes on straight
) -> torch.Tensor:
    """The mean over an example's numbers of e^2 / 2 where |e| <= beyond, else beyond (|e| - beyond / 2)."""
    losses = F.huber_loss(outputs, targets.reshape(outputs.shape), reduction="none", delta=beyond)
    return losses.flatten(1).mean(1)


@part
def next_token(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over a row's targets of -log softmax(outputs)_target; `outputs` are (batch, time, vocabulary).

    >>> next_token(torch.zeros(1, 3, 4), torch.tensor([[2, 1, -100]]))
    tensor([1.3863])
    """
    losses = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)
    return losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)


@part
def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over an example's numbers of (o - t)^2."""
    return (outputs - targets.reshape(outputs.shape)).square().flatten(1).mean(1)


def load(name: str, options: Mapping[str, Any], *, outputs: torch.Tensor, targets: torch.Tensor) -> Losses:
    """The loss that a name stands for, with its options; `outputs` and `targets` are made-up ones of the shapes to come.
    Raises: BadInput for an unknown name or option, and for what is no loss per example."""
    factory = plugin.find(ROOM, name, key="task.loss")
    loss: Losses = partial(factory, **plugin.typed(factory, options, table="task", given=GIVEN, keys=("kind", "loss")))

    def alone(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output[None], target[None]).reshape(())

    apart = torch.vmap(alone, randomness="error") if ":" in name else loss
    with plugin.guarded(f"task.loss = {name!r} cannot be computed for outputs of shape {list(outputs.shape)}"):
        found = loss(outputs, targets)
    if not isinstance(found, torch.Tensor) or found.shape != (len(outputs),) or not found.is_floating_point():
        got = f"shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise BadInput(
            f"Expected task.loss = {name!r} to give one number per example, shape {[len(outputs)]} here, got {got}: leave out"
            ' its mean or sum (reduction="none").'
        )
    with plugin.guarded(f"task.loss = {name!r} cannot be computed for single examples by torch.vmap"):
        single, again = apart(outputs, targets), apart(outputs.flip(0), targets.flip(0)).flip(0)
    for other, why in ((single, "looks at other examples of its batch"), (again, "remembers the examples before")):
        if not torch.allclose(found, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise BadInput(f"task.loss = {name!r} {why}, so that clipping one example would not bound what it does.")
    return apart
