"""Text and values from outside, read with limits: exact types, bounded sizes, bounded depth.

Whatever arrives is crafted until it has passed here. Guarantee: every function returns what it says or raises BadInput in one
sentence; nothing else is raised, imported or opened, and the time taken is linear in the size of the input."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tacit.errors import BadInput, TrainingDiverged
from tacit.types import Message

if TYPE_CHECKING:  # texts are read by commands that never load torch
    import torch

    from tacit.types import State

MOST_TEXT = 1 << 20  # characters of one JSON or TOML text: a roster of 10,000 sites has about half of that
MOST_BRACKETS = (
    2_000  # depth is at most this; deeper still raises RecursionError, which is caught; honest texts have some dozens
)
MOST_NUMBER = 10**12
MOST_NAME = 200
LARGEST = 1e300
MOST_PARTS = 32  # of a dotted key: tomllib takes the square of them in time and memory
ENDS = "\n=,[]{}"
TOML_SIGNS = re.compile(  # every alternative takes all that it has looked at, closed or not: the search is linear
    r'''"""(?:\\.?|[^\\])*?(?:"{3,5}|\Z)'''  # texts of several lines
    r"|'''.*?(?:'{3,5}|\Z)"
    r"""|"(?:\\[^\n]?|[^"\\\n])*+"?|'[^'\n]*+'?"""  # of one line
    r"|#[^\n]*+|[.\n=,\[\]{}]",
    re.DOTALL,
)
SHOWN = 60  # characters of a foreign text that are ever repeated


def json_object(
    text: object,
    *,
    what: str = "A message",
    most: int = MOST_TEXT,
    brackets: int = MOST_BRACKETS,
    finite: bool = False,
) -> dict[str, Any]:
    """The object of a JSON text, one value to a name; `finite` refuses NaN and infinity, which are no JSON. Raises BadInput.

    >>> json_object('{"round": 3}')
    {'round': 3}
    """

    def load(text: str) -> Any:
        return json.loads(text, parse_constant=_refuse if finite else None, object_pairs_hook=_object)

    found = _loaded(_bounded(text, what, most, brackets), load, what, "JSON")
    if not isinstance(found, dict):
        raise BadInput(f"{what} is no JSON object.")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names one thing twice")
    return found


def toml_table(text: object, *, what: str = "A text", most: int = MOST_TEXT) -> dict[str, Any]:
    """The table of a TOML text. Raises BadInput."""
    found = _bounded(text, what, most)
    _refuse_long_keys(found, what)
    return _loaded(found, tomllib.loads, what, "TOML")


def _refuse_long_keys(text: str, what: str) -> None:
    dots = 0
    for sign in TOML_SIGNS.finditer(text):
        dots = dots + 1 if sign[0] == "." else 0 if sign[0] in ENDS else dots
        if dots >= MOST_PARTS:
            raise BadInput(f"{what} has a key of more than {MOST_PARTS} parts.")


def _bounded(text: object, what: str, most: int, brackets: int = MOST_BRACKETS) -> str:
    if type(text) is not str:
        raise BadInput(f"{what} is not a text.")
    if len(text) > most:
        raise BadInput(f"{what} has {len(text)} characters, and at most {most} are read.")
    if text.count("[") + text.count("{") > brackets:
        raise BadInput(f"{what} has more than {brackets} brackets.")
    return text


def _loaded(text: str, load: Any, what: str, form: str) -> Any:
    try:
        return load(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and JSONDecodeError are ValueErrors
        raise BadInput(f"{what} is not valid {form} ({str(error)[:SHOWN]}).") from None


def fields(record: object, *names: str, what: str) -> list[Any]:
    """The values of an object that has these keys and no others. Raises BadInput."""
    if not isinstance(record, Mapping) or set(record) != set(names):
        raise BadInput(f"{what} does not have exactly the parts {', '.join(names)}.")
    return [record[name] for name in names]


def text(value: object, *, what: str, most: int = MOST_NAME) -> str:
    """A text of at most `most` characters, all of them printable. Raises BadInput."""
    if type(value) is not str or len(value) > most or not value.isprintable():
        raise BadInput(f"{what} is not a printable text of at most {most} characters.")
    return value


def whole(value: object, *, what: str, least: int = 0, most: int = MOST_NUMBER) -> int:
    """A whole number within limits; 3.0, true and "3" are none. Raises BadInput."""
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{what} is {shown(value)}, not a whole number from {least} to {most}.")
    return value


def number(value: object, *, what: str, infinite: bool = False) -> float:
    """A number above zero; infinity only where it is allowed. Raises BadInput."""
    if type(value) is int and 0 < value <= MOST_NUMBER:
        return float(value)
    if type(value) is float and 0 < value <= (math.inf if infinite else LARGEST):  # NaN compares with nothing
        return value
    raise BadInput(f"{what} is {shown(value)}, not a number above zero.")


def real(value: object, *, what: str) -> float:
    """A finite number of either sign. Raises BadInput."""
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:  # pyright: ignore[reportOperatorIssue]
        raise BadInput(f"{what} is {shown(value)}, not a finite number.")
    return float(value)  # pyright: ignore[reportArgumentType]


def several(value: object, *, what: str, most: int) -> Sequence[Any]:
    """A list of at most `most` items. Raises BadInput."""
    if not isinstance(value, list) or len(value) > most:
        raise BadInput(f"{what} is not a list of at most {most}.")
    return value


def shown(value: object) -> str:
    """A foreign value for a sentence: short, and without anything that a terminal would act on.

    >>> shown(float("inf")), shown("a" * 100)[-4:]
    ('inf', 'aaa…')
    """
    if type(value) not in (int, float, str, bool, type(None)) or (type(value) is int and value.bit_length() > 256):
        return f"a {type(value).__name__}"
    words = str(value).lower() if type(value) is bool else repr(value)
    return words if len(words) <= SHOWN else f"{words[: SHOWN - 1]}…"


# What crosses the wire: named tensors and a few plain facts, as safetensors bytes. No pickle, so nothing can be
# executed.

LENGTH_BYTES = 8  # the little-endian length of the safetensors header
MOST_HEAD = 1 << 24
MOST_TENSORS = 100_000
MOST_FACTS = 64  # brackets: facts are a flat table
MOST_NAME_WIRE = 1_000  # of a client, which may have any letters in a simulation
MOST_WORDS = 200
CODES = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.int16": "I16",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int32": "I32",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.int64": "I64",
}
TYPES = list(CODES.values())


def pack(message: Message) -> bytes:
    """The message as bytes.

    >>> import torch
    >>> sent = Message("a", {"update": torch.ones(3)}, {"examples": 60})
    >>> unpack(pack(sent)).facts
    {'examples': 60}
    """
    from safetensors.torch import save

    facts = json.dumps({"sender": message.sender, "facts": message.facts})
    return save({name: tensor.cpu().contiguous() for name, tensor in message.tensors.items()}, {"tacit": facts})


def size_of(message: Message) -> int:
    """How many bytes `pack` would write, from names, shapes and facts alone: a simulation's tensors stay where they are.

    >>> import torch
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
def _layout(tensors: "tuple[tuple[str, torch.dtype, torch.Size], ...]") -> tuple[int, int]:
    head: dict[str, Any] = {"__metadata__": {"tacit": ""}}
    end = 0
    # as safetensors lays tensors out: by type, the last of this list first, then by name
    for name, dtype, shape in sorted(tensors, key=lambda item: (-TYPES.index(CODES[str(item[1])]), item[0])):
        start, end = end, end + shape.numel() * dtype.itemsize
        head[name] = {"dtype": CODES[str(dtype)], "shape": list(shape), "data_offsets": [start, end]}
    return len(json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()), end


def unpack(raw: bytes) -> Message:
    """The message that `pack` wrote. Raises BadInput for bytes that are not one."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    what = f"A message of {len(raw)} bytes"
    head = int.from_bytes(raw[:LENGTH_BYTES], "little")
    if len(raw) < LENGTH_BYTES or head > min(MOST_HEAD, len(raw)):
        raise BadInput(f"{what} could not be read (its head is cut short or too long).")
    try:
        text = raw[LENGTH_BYTES : LENGTH_BYTES + head].decode("utf-8")
        # a tensor's entry has three brackets
        parts = json_object(text, what="Its head", most=MOST_HEAD, brackets=3 * MOST_TENSORS)
        (own,) = fields(parts.get("__metadata__"), "tacit", what="Its metadata")
        sender, facts = fields(
            json_object(own, what="Its metadata", brackets=MOST_FACTS), "sender", "facts", what="Its metadata"
        )
        if not isinstance(facts, dict) or type(sender) is not str or len(sender) > MOST_NAME_WIRE:
            raise BadInput("its facts are no table, or its sender has no name")
        return Message(sender, load(raw), facts)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:  # BadInput is a ValueError
        raise BadInput(f"{what} could not be read ({str(error)[:MOST_WORDS]}).") from None


def receive_any(raw: bytes) -> Message:
    """Unpacks whatever it can, for a server that judges messages itself; unreadable bytes are a message with nothing in it."""
    try:
        return unpack(raw)
    except BadInput as error:
        return Message("unreadable", {}, {"failed": str(error)})


def all_finite(tensor: "torch.Tensor") -> bool:
    """Whether every number of a tensor is finite, in one pass where it is: a sum is finite only if all its terms are. Finite
    numbers can have an infinite sum; those are looked at one by one. For what others may see, not for a client's secrets: how
    long it takes depends on the numbers.

    >>> import torch
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


# Digests of what a release is a function of: texts, bytes, tensors and the state that a round starts from.

DIGEST_BYTES = 16


def digest_of(*parts: bytes | str) -> str:
    """A hash of texts and bytes, each with its length, so that no two lists of parts are one.

    >>> digest_of("ab", "c") == digest_of("a", "bc"), digest_of("a") == digest_of(b"a")
    (False, True)
    """
    made = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"tacit-release")
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        made.update(len(raw).to_bytes(8, "little"))
        made.update(raw)
    return made.hexdigest()


def state_digest(state: "State", *, turn: int | None = None) -> str:
    """A hash of everything a round starts from; of its number too (`turn`) where what clients send is bound to it.

    >>> import torch
    >>> from tacit.types import State
    >>> state = State(torch.zeros(2))
    >>> state_digest(state) == state_digest(state, turn=0), state_digest(state, turn=0) == state_digest(state, turn=1)
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
    return digest_of(*parts)


def tensor_bytes(tensor: "torch.Tensor") -> bytes:
    """The numbers of a tensor as they lie in memory."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()
