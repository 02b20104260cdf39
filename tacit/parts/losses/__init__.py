"""Losses: what training makes small, one number per example. One file per loss; its name is `task.loss` in the TOML.

Or anybody's "package.module:name": a function of (outputs, targets) that gives one number for each example. Its other parameters
are its options in `[task]`.

Guarantee: each number depends on its own example alone, so that clipping it bounds what that example can do. For the losses here
that is read off their one or two lines; somebody else's is only ever shown one example at a time (`torch.vmap`), and is tried on
made-up rows before: one that gives a single number for the batch, looks at other examples or remembers them is refused.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tacit import plugin
from tacit.errors import BadInput

ROOM = "tacit.parts.losses"
GIVEN = ("outputs", "targets")
TRIED = 5  # examples that somebody's own loss is tried on
TOLERANCE = 1e-4

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def names() -> list[str]:
    """The losses that ship with Tacit, by file."""
    return plugin.names(ROOM)


def load(name: str, options: Mapping[str, Any], *, outputs: torch.Tensor, targets: torch.Tensor) -> Losses:
    """The loss that a name stands for, with its options; `outputs` and `targets` are made-up ones of the shapes to come.

    Raises BadInput in one sentence for a name or an option that there is not, and for what is no loss per example.

    >>> scores, labels = torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)
    >>> load("cross-entropy", {}, outputs=scores, targets=labels)(scores[:2], labels[:2])
    tensor([1.0986, 1.0986])
    """
    found = plugin.find(ROOM, name, key="task.loss")
    chosen = plugin.typed(found, options, table="task", given=GIVEN, keys=("kind", "loss"))
    loss: Losses = partial(found, **chosen)
    apart = one_by_one(loss) if ":" in name else loss
    _refuse(name, loss, apart, outputs, targets)
    return apart


def one_by_one(loss: Losses) -> Losses:
    """The loss of every example by itself: whatever it does with a batch, there is no other example in it."""

    def alone(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output[None], target[None]).reshape(())

    return torch.vmap(alone, randomness="error")


def _refuse(name: str, loss: Losses, apart: Losses, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Raises BadInput unless the loss gives one number per example, which depends on that example alone."""
    with plugin.guarded(f"task.loss = {name!r} cannot be computed for outputs of shape {_shape(outputs)}"):
        found = loss(outputs, targets)
    if not isinstance(found, torch.Tensor) or found.shape != (len(outputs),) or not found.is_floating_point():
        got = f"shape {_shape(found)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise BadInput(
            f"Expected task.loss = {name!r} to give one number per example, shape {[len(outputs)]} here, got {got}: leave out"
            ' its mean or sum (reduction="none").'
        )
    with plugin.guarded(f"task.loss = {name!r} cannot be computed for single examples by torch.vmap"):
        single, again = apart(outputs, targets), apart(outputs.flip(0), targets.flip(0)).flip(0)
    for other, why in ((single, "looks at other examples of its batch"), (again, "remembers the examples before")):
        if not torch.allclose(found, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise BadInput(f"task.loss = {name!r} {why}, so that clipping one example would not bound what it does.")


def _shape(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)
