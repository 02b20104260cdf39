"""Which messages of a round a server can use, and why it cannot use the others. For servers that refuse by name and go on."""

from collections.abc import Callable, Collection, Iterable, Iterator

import torch

from tacit.errors import BadInput
from tacit.types import Bounded, Message


def usable(
    messages: Iterable[Message],
    *,
    like: torch.Tensor,
    known: Collection[str],
    bound: Callable[[torch.Tensor], Bounded],
    refused: dict[str, str],
) -> Iterator[tuple[Message, Bounded]]:
    """Each known client's first update, clipped; who sent what cannot be used is named in `refused`, with the reason."""
    seen: set[str] = set()
    for message in messages:
        try:
            bounded = bound(_update(message, like, known, seen))
        except BadInput as error:
            refused[message.sender] = str(error)
        else:
            yield message, bounded
        seen.add(message.sender)


def _update(message: Message, like: torch.Tensor, known: Collection[str], seen: set[str]) -> torch.Tensor:
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
