"""Digests of what a release is a function of: texts, bytes, tensors and the state that a round starts from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # texts are digested by commands that never load torch
    import torch

    from tacit.types import State

MARK_BYTES = 16


def mark(*parts: bytes | str) -> str:
    """A hash of texts and bytes, each with its length, so that no two lists of parts are one.

    >>> mark("ab", "c") == mark("a", "bc"), mark("a") == mark(b"a")
    (False, True)
    """
    made = hashlib.blake2b(digest_size=MARK_BYTES, person=b"tacit-release")
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        made.update(len(raw).to_bytes(8, "little"))
        made.update(raw)
    return made.hexdigest()


def question_mark(received: bytes) -> str:
    """A hash of the bytes that a client was asked with."""
    return mark("question", received)


def state_mark(state: State, *, turn: int | None = None) -> str:
    """A hash of everything a round starts from; of its number too (`turn`) where what clients send is bound to it.

    >>> import torch
    >>> from tacit.types import State
    >>> state = State(torch.zeros(2))
    >>> state_mark(state) == state_mark(state, turn=0), state_mark(state, turn=0) == state_mark(state, turn=1)
    (False, False)
    """
    import torch

    tensors = [("params", state.params), *((f"memory {name}", tensor) for name, tensor in state.memory.items())]
    tensors += [(f"memory optimizer.{name}", tensor) for name, tensor in state.optimizer.items()]
    tensors += [(f"memory control.{name}", tensor) for name, tensor in state.control.items()]
    tensors += [] if turn is None else [("memory turn", torch.tensor(turn))]
    tensors += [] if state.average is None else [("average", state.average)]
    parts: list[bytes | str] = ["state"]
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}", tensor_bytes(tensor)]
    return mark(*parts)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()
