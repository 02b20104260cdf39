"""A question and its answer as Flower messages: a line of JSON, and the bytes of `tacit.engine.wire`.

Flower fetches and sends every record and every part of an array by an HTTP request of its own, with a kilobyte of signed
headers. So a body is a plain value of a record, and an array, which Flower cuts into pieces, only where it is long.
"""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from tacit import parse
from tacit.errors import BadInput

KINDS = {
    "hello": "query.hello",
    "agree": "query.agree",
    "open": "query.open",
    "count": "query.count",
    "keep": "query.keep",
    "train": "train",
}  # Flower's message types
STYPE = "tacit.wire"
HEAD, BODY, BYTES = "tacit", "body", "bytes"
WHOLE_BYTES = 4 << 20  # up to here a body travels in one piece; Flower's pieces of an array have 5 MiB
MOST_WORDS = 200
UNPAID = "[out of budget] "  # in front of a refusal that ends a run as planned


def question(ask: dict[str, Any], body: bytes, *, node: int, seconds: float) -> Message:
    """The question to one node, as Flower sends it; it and its answer are worth something for so many seconds.

    Assumes: `ask` has a `kind` of `KINDS` and is plain JSON. Its round is the message's group, for whoever reads Flower's log.
    """
    group = str(ask.get("round", ""))
    return Message(_content(ask, body), node, KINDS[ask["kind"]], ttl=seconds, group_id=group)


def answer(reply: dict[str, Any], body: bytes, *, to: Message) -> Message:
    """The answer to a question: one record that holds both parts where the body is short, since each record costs a request."""
    content = _content(reply, body) if len(body) > WHOLE_BYTES else RecordDict({HEAD: _record(reply, body)})
    return Message(content, reply_to=to)


def refusal(reason: str, *, to: Message) -> Message:
    """A refusal, in words, as one of Flower's errors: a server tells it from what Flower itself lost by its code."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=to)


def read(message: Message) -> tuple[dict[str, Any], bytes]:
    """What `question` or `answer` wrote: a head and a body.

    Guarantee: the head is a JSON object of bounded length and depth, the body is bytes; neither was looked at any further.

    Raises: BadInput for a message of somebody else, in words that quote at most `MOST_WORDS` characters of what is wrong.
    """
    try:
        content = message.content
        record: Any = content[HEAD]
        head = parse.json_object(record["json"], what="Its head")
        holder: Any = content.get(BODY, record)
        value: Any = holder.get(BYTES, b"")
        body = value.data if isinstance(value, Array) else value
        if not isinstance(body, bytes | memoryview):
            raise TypeError(f"its body is {type(body).__name__}")
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # BadInput is a ValueError
        raise BadInput(f"A Flower message is not one of Tacit's ({str(error)[:MOST_WORDS]}).") from None
    return head, bytes(body)


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
