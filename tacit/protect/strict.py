"""JSON from outside, with limits: so long, so deep, no NaN, and one value to a name. Whatever is wrong raises ValueError."""

import json
from typing import Any

MOST_DEPTH = 8  # of lists and objects; what Tacit writes has four at most


def parsed(raw: bytes | str, *, most_bytes: int, finite: bool = True) -> Any:
    """The value of a JSON text; NaN and the infinities, which are no JSON, pass only where `finite` is False.

    >>> parsed('{"a": [1]}', most_bytes=100)
    {'a': [1]}
    """
    if len(raw) > most_bytes:
        raise ValueError(f"it has {len(raw)} bytes, and {most_bytes} are read")
    text = raw if isinstance(raw, str) else raw.decode("utf-8")  # UnicodeDecodeError is a ValueError
    if _depth(text) > MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    return json.loads(text, parse_constant=_refuse if finite else None, object_pairs_hook=_object)


def _depth(text: str) -> int:
    """How deep lists and objects are nested, brackets within texts not counted; 0 where it cannot be too deep."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return 0  # not deep, however they are nested
    depth = deepest = 0
    quoted = escaped = False
    for letter in text:
        if quoted:
            quoted, escaped = escaped or letter != '"', not escaped and letter == "\\"
        elif letter == '"':
            quoted = True
        elif letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names one thing twice")
    return found
