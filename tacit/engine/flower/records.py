"""A question and its answer as Flower messages: a line of JSON, and the bytes of `tacit.engine.wire`.

Flower fetches and sends every record and every part of an array by an HTTP request of its own, with a kilobyte of signed
headers. So a body is a plain value of a record, and an array, which Flower cuts into pieces, only where it is long.
"""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from tacit.errors import BadInput
from tacit.protect import strict

KINDS = {
    "hello": "query.hello",
    "agree": "query.agree",
    "open": "query.open",
    "train": "train",
}  # Flower's message types
STYPE = "tacit.wire"
HEAD, BODY, BYTES = "tacit", "body", "bytes"
WHOLE_BYTES = 4 << 20  # up to here a body travels in one piece; Flower's pieces of an array have 5 MiB
MOST_HEAD = 4 << 20  # bytes: an experiment's text and a roster of thousands fit
UNPAID = "[out of budget] "  # in front of a refusal that ends a run as planned


def question(ask: dict[str, Any], body: bytes, *, node: int, seconds: float) -> Message:
    """The question to one node; its answer is awaited for so many seconds."""
    group = str(ask.get("round", ""))
    return Message(_content(ask, body), node, KINDS[ask["kind"]], ttl=seconds, group_id=group)


def answer(reply: dict[str, Any], body: bytes, *, to: Message) -> Message:
    """The answer to a question."""
    content = _content(reply, body) if len(body) > WHOLE_BYTES else RecordDict({HEAD: _record(reply, body)})
    return Message(content, reply_to=to)


def refusal(reason: str, *, to: Message) -> Message:
    """A refusal, in words."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=to)


def read(message: Message) -> tuple[dict[str, Any], bytes]:
    """What `question` or `answer` wrote. Raises BadInput for a message of somebody else."""
    try:
        content = message.content
        head: dict[str, Any] = strict.parsed(str(content[HEAD]["json"]), most_bytes=MOST_HEAD, finite=False)
        if not isinstance(head, dict):
            raise TypeError(f"its head is {type(head).__name__}")
        found: Any = content[BODY if BODY in content else HEAD].get(BYTES, b"")
        body = found.data if isinstance(found, Array) else found
        if not isinstance(body, bytes):
            raise TypeError(f"its body is {type(body).__name__}")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadInput(f"A Flower message is not one of Tacit's ({error}).") from error
    return head, body


def _content(head: dict[str, Any], body: bytes) -> RecordDict:
    """The body in a record of its own: it is the same for all sites of a round, and Flower stores equal records once."""
    records: dict[str, Any] = {HEAD: _record(head)}
    if len(body) > WHOLE_BYTES:
        records[BODY] = ArrayRecord({BYTES: Array("uint8", (len(body),), STYPE, body)})
    elif body:
        records[BODY] = ConfigRecord({BYTES: body})
    return RecordDict(records)


def _record(head: dict[str, Any], body: bytes = b"") -> ConfigRecord:
    record = ConfigRecord({"json": json.dumps(head)})
    if body:
        record[BYTES] = body
    return record
