"""A question and its answer as Flower messages: a line of JSON, and the bytes of `tacit.engine.wire`."""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from tacit.errors import BadInput

KINDS = {
    "hello": "query.hello",
    "agree": "query.agree",
    "open": "query.open",
    "train": "train",
}  # Flower's message types
STYPE = "tacit.wire"
HEAD, BODY = "tacit", "body"
UNPAID = "[out of budget] "  # in front of a refusal that ends a run as planned


def question(ask: dict[str, Any], body: bytes, *, node: int, seconds: float) -> Message:
    """The question to one node; its answer is awaited for so many seconds."""
    group = str(ask.get("round", ""))
    return Message(_content(ask, body), node, KINDS[ask["kind"]], ttl=seconds, group_id=group)


def answer(reply: dict[str, Any], body: bytes, *, to: Message) -> Message:
    """The answer to a question."""
    return Message(_content(reply, body), reply_to=to)


def refusal(reason: str, *, to: Message) -> Message:
    """A refusal, in words."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=to)


def read(message: Message) -> tuple[dict[str, Any], bytes]:
    """What `question` or `answer` wrote. Raises BadInput for a message of somebody else."""
    try:
        head = json.loads(str(message.content[HEAD]["json"]))
        body = message.content.array_records[BODY]["bytes"].data if BODY in message.content else b""
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(f"A Flower message is not one of Tacit's ({error}).") from error
    return head, body


def _content(head: dict[str, Any], body: bytes) -> RecordDict:
    records: dict[str, Any] = {HEAD: ConfigRecord({"json": json.dumps(head)})}
    if body:  # a record of its own: it is the same for all sites of a round, and Flower stores equal records once
        records[BODY] = ArrayRecord({"bytes": Array("uint8", (len(body),), STYPE, body)})
    return RecordDict(records)
