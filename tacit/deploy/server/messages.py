"""A question and its answer as Flower messages: a head of JSON, and a body in the bytes of `tacit.wire`."""

import json
import secrets
from collections.abc import Iterator
from itertools import count, takewhile
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_type_from_object_content

from tacit import wire
from tacit.errors import BadInput, Refusal

QUERIES = ("hello", "agree", "prepare", "open", "sign", "unmask", "count", "keep")
KINDS = {kind: f"query.{kind}" for kind in QUERIES} | {"train": "train"}  # Flower's message types
HEAD, BODY, BYTES, NONCE = "tacit", "body", "bytes", "nonce"
WHOLE_BYTES = 4 << 20  # a longer body travels in pieces of this length, each a record of its own
SHORT_BYTES = 64 << 10  # of a request's body: a longer one is stored once for all sites
NONCE_BYTES = 16
MOST_WORDS = 200
# a refusal's kind is the code of Flower's error; Flower's own codes are below 100
CODES = {Refusal.NEVER: ErrorCode.MOD_FAILED_PRECONDITION, Refusal.LATER: 1002, Refusal.UNPAID: 1003}


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def question(ask: dict[str, Any], body: bytes, *, node: int, seconds: float, nonce: bytes) -> Message:
    """The request to one node; it and its answer are worth something for so many seconds.

    Requests that are sent in one go share one fresh `nonce`, so that Flower stores a long body once. Nobody can guess it.
    """
    group = str(ask.get("round", ""))
    content = _content(ask, body, nonce, most=SHORT_BYTES)
    return Message(content, node, KINDS[ask["kind"]], ttl=seconds, group_id=group)


def answer(reply: dict[str, Any], body: bytes, *, to: Message) -> Message:
    """The answer to a request."""
    return Message(_content(reply, body, new_nonce()), reply_to=to)


def refusal(reason: str, *, to: Message, kind: Refusal = Refusal.NEVER) -> Message:
    """A refusal, in words, as one of Flower's errors, whose code says of which kind it is."""
    return Message(Error(CODES[kind], reason), reply_to=to)


def kind_of_refusal(error: Error) -> Refusal | None:
    """The kind of a site's refusal; None for an error of Flower's own, as of a message that was lost."""
    return next((kind for kind, code in CODES.items() if code == error.code), None)


def read(message: Message) -> tuple[dict[str, Any], bytes]:
    """What `question` or `answer` wrote: a head, a JSON object of bounded length and depth, and a body. Raises: BadInput."""
    try:
        content = message.content
        record: Any = content[HEAD]
        head = wire.json_object(record["json"], what="Its head")
        names = takewhile(lambda name: name in content, map(_name, count()))
        further: list[Any] = [content[name] for name in names]
        if len({id(each) for each in (record, *further)}) <= len(further):  # few bytes would become gigabytes
            raise ValueError("its table names one record twice")
        pieces: list[Any] = [record.get(BYTES, b""), *(each[BYTES] for each in further)]
        if not all(isinstance(piece, bytes) for piece in pieces):
            raise TypeError("its body is not bytes")
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # BadInput is a ValueError
        raise BadInput(f"A Flower message is not one of Tacit's ({str(error)[:MOST_WORDS]}).") from None
    return head, b"".join(pieces)


def _content(head: dict[str, Any], body: bytes, nonce: bytes, *, most: int = WHOLE_BYTES) -> RecordDict:
    if len(body) <= most:  # both in one record, since each record costs a call
        return RecordDict({HEAD: _record(head, nonce, body)})
    content = RecordDict({HEAD: _record(head, nonce)})
    for place, start in enumerate(range(0, len(body), WHOLE_BYTES)):  # each unlike the others, whatever is in it
        own = nonce + place.to_bytes(4, "big")
        content[_name(place)] = ConfigRecord({BYTES: body[start : start + WHOLE_BYTES], NONCE: own})
    return content


def _record(head: dict[str, Any], nonce: bytes, body: bytes = b"") -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(head), NONCE: nonce} | ({BYTES: body} if body else {}))


def _name(place: int) -> str:
    return f"{BODY}-{place}" if place else BODY


# What Flower opens of somebody's bytes: parts whose memory is in proportion to their length, and no others.

SMALL_BYTES = 64 << 10  # of a message or a table, which Flower opens into some fifty times their bytes
MOST_VALUES = 4  # of a record, which has a head, a body and a nonce
ITEMS, KEY, VALUE, TEXT, RAW = 1, 1, 2, 5, 6  # fields of flwr's ConfigRecord, of its items and of their values


def refuse_odd_part(content: bytes) -> None:
    """Refuses a part that no request and no answer has, before Flower opens it. Raises: BadInput, ValueError.

    Guarantee: what passes is a message or a table of records of up to `SMALL_BYTES`, or a record of at most `MOST_VALUES` texts
    and bytes. Of lists and numbers protobuf opens an empty one of two bytes into a hundred.
    """
    kind = get_object_type_from_object_content(content)
    if kind == ConfigRecord.__qualname__:
        for _, item in _fields(memoryview(get_object_body(content, ConfigRecord)), {ITEMS}, most=MOST_VALUES):
            for number, value in _fields(item, {KEY, VALUE}, most=2):
                if number == VALUE:
                    list(_fields(value, {TEXT, RAW}, most=1))
    elif kind not in ("Message", "RecordDict") or len(content) > SMALL_BYTES:
        raise BadInput("it has a part that no message has")


def _fields(raw: memoryview, known: set[int], *, most: int) -> Iterator[tuple[int, memoryview]]:
    """At most so many fields of a protobuf message, by number. Raises: BadInput for more, others, or what has no length."""
    at, count = 0, 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        length, at = _varint(raw, at)
        count += 1
        if tag & 7 != 2 or tag >> 3 not in known or count > most or at + length > len(raw):
            raise BadInput("a record holds more than texts and bytes")
        yield tag >> 3, raw[at : at + length]
        at += length


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(raw) and shift < 64:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at
    raise BadInput("a record is cut short")
