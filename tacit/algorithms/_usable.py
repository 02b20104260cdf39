"""Whether a server that refuses by name and goes on can use a message."""

from collections.abc import Collection

import torch

from tacit.errors import BadInput
from tacit.types import Message


def update_of(message: Message, *, like: torch.Tensor, known: Collection[str], seen: Collection[str]) -> torch.Tensor:
    """The update of a known client's first message, of the type and shape of `like`. Raises BadInput with the reason."""
    update = message.tensors.get("update")
    if message.sender not in known:
        raise BadInput("it is no client of this run")
    if message.sender in seen:
        raise BadInput("it answered twice: its first answer counts")
    if update is None:
        raise BadInput(f"it sent no update: {message.facts.get('failed', 'there was none in its message')}")
    if (update.dtype, update.shape) != (like.dtype, like.shape):
        expected = f"{like.dtype} of shape {tuple(like.shape)}"
        raise BadInput(f"it sent {update.dtype} of shape {tuple(update.shape)} instead of {expected}")
    return update
