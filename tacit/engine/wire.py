"""What crosses the wire: named tensors and a few plain facts, as safetensors bytes. No pickle, so nothing can be
executed.

The simulator sends every message through these bytes too: traffic is counted from what is really serialised.
"""

import json

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tacit.errors import BadInput, TrainingDiverged
from tacit.protect import strict
from tacit.types import Message

LENGTH_BYTES = 8  # the little-endian length of the safetensors header
MOST_FACTS = 1 << 20  # bytes; facts are a few numbers and names


def pack(message: Message) -> bytes:
    """The message as bytes.

    >>> sent = Message("a", {"update": torch.ones(3)}, {"examples": 60})
    >>> unpack(pack(sent)).facts
    {'examples': 60}
    """
    facts = json.dumps({"sender": message.sender, "facts": message.facts})
    return save_tensors({name: tensor.cpu().contiguous() for name, tensor in message.tensors.items()}, {"tacit": facts})


def unpack(raw: bytes) -> Message:
    """The message that `pack` wrote. Raises BadInput for bytes that are not one."""
    try:
        tensors = load_tensors(raw)
        head = int.from_bytes(raw[:LENGTH_BYTES], "little")
        text = json.loads(raw[LENGTH_BYTES : LENGTH_BYTES + head])["__metadata__"]["tacit"]
        record = strict.parsed(text, most_bytes=MOST_FACTS, finite=False)
        sender, facts = record["sender"], record["facts"]
        if type(sender) is not str or type(facts) is not dict:
            raise TypeError("its sender or its facts are of another kind")
        return Message(sender, tensors, facts)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadInput(f"A message of {len(raw)} bytes could not be read ({error}).") from error


def receive_any(raw: bytes) -> Message:
    """Unpacks whatever it can, for a server that judges messages itself; unreadable bytes are a message with nothing in it."""
    try:
        return unpack(raw)
    except BadInput as error:
        return Message("unreadable", {}, {"failed": str(error)})


def receive(raw: bytes, *, round: int) -> Message:
    """Unpacks a client's message and refuses what must never reach the model. Raises TrainingDiverged by client and round."""
    message = unpack(raw)
    if not message.tensors:
        raise BadInput(
            f"Client {message.sender} sent nothing that can be used in round {round} ({message.facts.get('failed')})."
        )
    for name, tensor in message.tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            text = f"Client {message.sender} sent a {name} that is not finite in round {round}"
            raise TrainingDiverged(f"{text}: lower train.learning_rate; the last good checkpoint is kept.")
    return message
