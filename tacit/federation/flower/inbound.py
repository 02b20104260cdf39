"""What a site answers, as the server takes it: in the name of the node it came from, whatever it says of itself."""

from typing import Any

from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput
from tacit.types import Message

MOST_EPSILON = 1e9  # more is no budget; and a whole number of a thousand digits is no float


def named(raw: bytes, site: str) -> bytes:
    """A site's message as it came; one that cannot be read or bears another's name, as an empty message of this site.

    So a message is refused in the name of who sent it, and nobody can have another one blamed.
    """
    try:
        sender = unpack(raw).sender
        if sender == site:
            return raw
        why = f"its message is written in the name of {sender[:80]!r}"
    except BadInput as error:
        why = str(error)
    return pack(Message(site, {}, {"failed": why}))


def spent_of(facts: Any) -> float | None:
    """The epsilon that a site says its ledger holds, if it says a number."""
    said: Any = facts.get("epsilon") if isinstance(facts, dict) else None
    known = type(said) in (int, float) and 0 <= said < MOST_EPSILON
    return float(said) if known else None
