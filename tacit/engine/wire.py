"""What crosses the wire: named tensors and a few plain facts, as safetensors bytes. No pickle, so nothing can be
executed.

The simulator sends every message through these bytes too: traffic is counted from what is really serialised.
"""

import json
import math
from functools import lru_cache
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tacit import parse
from tacit.errors import BadInput, TrainingDiverged
from tacit.types import Message

LENGTH_BYTES = 8  # the little-endian length of the safetensors header
MOST_HEAD = 1 << 24
MOST_TENSORS = 100_000
MOST_FACTS = 64  # brackets: facts are a flat table
MOST_NAME = 1_000  # of a client, which may have any letters in a simulation
MOST_WORDS = 200
CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
TYPES = list(CODES)


def pack(message: Message) -> bytes:
    """The message as bytes.

    >>> sent = Message("a", {"update": torch.ones(3)}, {"examples": 60})
    >>> unpack(pack(sent)).facts
    {'examples': 60}
    """
    facts = json.dumps({"sender": message.sender, "facts": message.facts})
    return save_tensors({name: tensor.cpu().contiguous() for name, tensor in message.tensors.items()}, {"tacit": facts})


def size_of(message: Message) -> int:
    """How many bytes `pack` would write, from names, shapes and facts alone: a simulation's tensors stay where they are.

    >>> sent = Message("a", {"update": torch.ones(3)}, {"examples": 60})
    >>> size_of(sent) == len(pack(sent))
    True
    """
    facts = json.dumps({"sender": message.sender, "facts": message.facts})
    head, data = _layout(tuple((name, tensor.dtype, tensor.shape) for name, tensor in message.tensors.items()))
    text = (
        head + len(facts) + facts.count('"') + facts.count("\\")
    )  # `facts` is ASCII; as a text within a text these are two
    return LENGTH_BYTES + -(-text // LENGTH_BYTES) * LENGTH_BYTES + data


@lru_cache(maxsize=256)
def _layout(tensors: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> tuple[int, int]:
    """How many bytes safetensors writes about tensors, with empty facts, and how many of them themselves."""
    head: dict[str, Any] = {"__metadata__": {"tacit": ""}}
    end = 0
    # as safetensors lays tensors out: by type, the last of this list first, then by name
    for name, dtype, shape in sorted(tensors, key=lambda item: (-TYPES.index(item[1]), item[0])):
        start, end = end, end + shape.numel() * dtype.itemsize
        head[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    return len(json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()), end


def unpack(raw: bytes) -> Message:
    """The message that `pack` wrote. Raises BadInput for bytes that are not one."""
    what = f"A message of {len(raw)} bytes"
    head = int.from_bytes(raw[:LENGTH_BYTES], "little")
    if len(raw) < LENGTH_BYTES or head > min(MOST_HEAD, len(raw)):
        raise BadInput(f"{what} could not be read (its head is cut short or too long).")
    try:
        text = raw[LENGTH_BYTES : LENGTH_BYTES + head].decode("utf-8")
        # a tensor's entry has three brackets
        parts = parse.json_object(text, what="Its head", most=MOST_HEAD, brackets=3 * MOST_TENSORS)
        (own,) = parse.fields(parts.get("__metadata__"), "tacit", what="Its metadata")
        sender, facts = parse.fields(
            parse.json_object(own, what="Its metadata", brackets=MOST_FACTS), "sender", "facts", what="Its metadata"
        )
        if not isinstance(facts, dict) or type(sender) is not str or len(sender) > MOST_NAME:
            raise BadInput("its facts are no table, or its sender has no name")
        return Message(sender, load_tensors(raw), facts)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:  # BadInput is a ValueError
        raise BadInput(f"{what} could not be read ({str(error)[:MOST_WORDS]}).") from None


def receive_any(raw: bytes) -> Message:
    """Unpacks whatever it can, for a server that judges messages itself; unreadable bytes are a message with nothing in it."""
    try:
        return unpack(raw)
    except BadInput as error:
        return Message("unreadable", {}, {"failed": str(error)})


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether every number of a tensor is finite, in one pass where it is: a sum is finite only if all its terms are.

    Finite numbers can have an infinite sum; those are looked at one by one. For what others may see, not for a client's secrets:
    how long it takes depends on the numbers.

    >>> all_finite(torch.tensor([3e38, 3e38])), all_finite(torch.tensor([torch.inf, -torch.inf]))
    (True, False)
    """
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def receive(raw: bytes, *, round: int) -> Message:
    """Unpacks a client's message and refuses what must never reach the model. Raises TrainingDiverged by client and round."""
    message = unpack(raw)
    if not message.tensors:
        raise BadInput(
            f"Client {message.sender} sent nothing that can be used in round {round + 1} ({message.facts.get('failed')})."
        )
    for name, tensor in message.tensors.items():
        if not all_finite(tensor):
            text = f"Client {message.sender} sent a {name} that is not finite in round {round + 1}"
            raise TrainingDiverged(f"{text}: lower train.learning_rate; the last good checkpoint is kept.")
    return message
