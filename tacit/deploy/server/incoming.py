"""What nodes send to a server, taken in one message at a time and inside limits, so that a bad one costs its sender alone.

Flower's HTTP grid takes in all answers in one go: bytes that one site made up raised in the middle, and took the answers of all
others with them."""

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from tacit import wire
from tacit.errors import BadInput, Refusal

# A question and its answer as Flower messages: a line of JSON, and the bytes of `tacit.engine.wire`.

KINDS = {
    "hello": "query.hello",
    "agree": "query.agree",
    "open": "query.open",
    "count": "query.count",
    "keep": "query.keep",
    "train": "train",
}  # Flower's message types
HEAD, BODY, BYTES, NONCE = "tacit", "body", "bytes", "nonce"
WHOLE_BYTES = 4 << 20  # a longer body travels in pieces of this length, each a record of its own
NONCE_BYTES = 16
MOST_WORDS = 200
# a refusal's kind is the code of Flower's error; Flower's own codes are below 100
CODES = {Refusal.NEVER: ErrorCode.MOD_FAILED_PRECONDITION, Refusal.LATER: 1002, Refusal.UNPAID: 1003}


def new_nonce() -> bytes:
    """What makes the records of one sending unlike any that somebody could guess."""
    return secrets.token_bytes(NONCE_BYTES)


def question(ask: dict[str, Any], body: bytes, *, node: int, seconds: float, nonce: bytes) -> Message:
    """The question to one node, as Flower sends it; it and its answer are worth something for so many seconds.

    Assumes: `ask` has a `kind` of `KINDS` and is plain JSON. Questions that are sent together share one fresh `nonce`, so that
    Flower stores their body once. The round is the message's group, for whoever reads Flower's log.
    """
    group = str(ask.get("round", ""))
    return Message(_content(ask, body, nonce), node, KINDS[ask["kind"]], ttl=seconds, group_id=group)


def answer(reply: dict[str, Any], body: bytes, *, to: Message) -> Message:
    """The answer to a question: one record that holds both parts where the body is short, since each record costs a request."""
    nonce = new_nonce()
    short = len(body) <= WHOLE_BYTES
    content = RecordDict({HEAD: _record(reply, nonce, body)}) if short else _content(reply, body, nonce)
    return Message(content, reply_to=to)


def refusal(reason: str, *, to: Message, kind: Refusal = Refusal.NEVER) -> Message:
    """A refusal, in words, as one of Flower's errors, whose code says of which kind it is (`kind_of_refusal`)."""
    return Message(Error(CODES[kind], reason), reply_to=to)


def kind_of_refusal(error: Error) -> Refusal | None:
    """The kind of a site's refusal; None for an error of Flower's own, as of a message that was lost."""
    return next((kind for kind, code in CODES.items() if code == error.code), None)


def read(message: Message) -> tuple[dict[str, Any], bytes]:
    """What `question` or `answer` wrote: a head and a body.

    Guarantee: the head is a JSON object of bounded length and depth, the body is bytes; neither was looked at any further.

    Raises: BadInput for a message of somebody else, in words that quote at most `MOST_WORDS` characters of what is wrong.
    """
    try:
        content = message.content
        record: Any = content[HEAD]
        head = wire.json_object(record["json"], what="Its head")
        pieces: list[Any] = [record.get(BYTES, b"")]
        for place in count():
            if _name(place) not in content:
                break
            pieces.append(content[_name(place)][BYTES])
        if not all(isinstance(piece, bytes) for piece in pieces):
            raise TypeError("its body is not bytes")
    except (KeyError, ValueError, TypeError, AttributeError) as error:  # BadInput is a ValueError
        raise BadInput(f"A Flower message is not one of Tacit's ({str(error)[:MOST_WORDS]}).") from None
    return head, b"".join(pieces)


def _content(head: dict[str, Any], body: bytes, nonce: bytes) -> RecordDict:
    """The body in records of its own: it is the same for all sites of a round, and Flower stores equal records once."""
    content = RecordDict({HEAD: _record(head, nonce)})
    for place, start in enumerate(range(0, len(body), WHOLE_BYTES)):
        content[_name(place)] = ConfigRecord({BYTES: body[start : start + WHOLE_BYTES], NONCE: nonce})
    return content


def _record(head: dict[str, Any], nonce: bytes, body: bytes = b"") -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(head), NONCE: nonce} | ({BYTES: body} if body else {}))


def _name(place: int) -> str:
    return f"{BODY}-{place}" if place else BODY


OTHER_PARTS = (
    4  # of an answer beside its body's full pieces: message, table of records, head, and a piece that is not full
)
SMALL_BYTES = 64 << 10  # of a message or a table, which Flower opens into some fifty times their bytes
MOST_VALUES = 4  # of a record, which has a head, a body and a nonce
ITEMS, KEY, VALUE, TEXT, BYTES_INCOMING = (
    1,
    1,
    2,
    5,
    6,
)  # fields of flwr's ConfigRecord, of its items and of their values


@dataclass
class _Announced:
    """An answer on its way: who sends it, the names of its parts, and those that are here."""

    node: int
    parts: list[str]
    held: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Incoming:
    """The answers to one gathering's questions, each of at most `most` bytes.

    Guarantee: nobody is waited for: an answer that has not arrived whole is looked for again the next time, and the others are
    taken in meanwhile. What was taken in or refused is deleted at the SuperLink.

    Assumes: the SuperLink is the server's own. Over another grid than Flower's HTTP grid messages do not become bytes, and
    nothing is limited.
    """

    grid: Grid
    most: int
    asked: dict[str, int] = field(default_factory=dict)  # by the question's name: its node
    _announced: dict[str, _Announced] = field(default_factory=dict)  # by the answer's name

    def look(self) -> Iterator[tuple[int, Message | BadInput | None]]:
        """What has come since the last look, by node: a message, a refusal of what is none, or None for what cannot be had yet."""
        grid, asked = self.grid, list(self.asked)
        if not isinstance(grid, HttpGrid):
            for message in grid.pull_messages(asked) if asked else ():
                node = self.asked.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, message
            return
        if asked:
            yield from self._note(grid, asked)
        for name, coming in list(self._announced.items()):
            found = _whole(grid, name, coming, self.most)
            yield coming.node, found
            if found is not None:
                del self._announced[name]
                with contextlib.suppress(httpx.HTTPStatusError):  # it is deleted when the run ends
                    _confirm(grid, name)

    def _note(self, grid: HttpGrid, asked: list[str]) -> Iterator[tuple[int, None]]:
        """Notes what is announced; where the SuperLink fails at one, as at one without a time, each is looked for alone."""
        try:
            reply = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
        except httpx.HTTPStatusError:
            if len(asked) == 1:
                yield self.asked.pop(asked[0]), None
            for name in asked if len(asked) > 1 else ():
                yield from self._note(grid, [name])
            return
        for envelope, tree in zip(reply.messages_list, reply.message_object_trees, strict=True):
            node = self.asked.pop(envelope.metadata.reply_to_message_id, None)
            if node is not None:
                parts = islice(iterate_object_tree(tree), most_parts(self.most) + 1)
                self._announced[envelope.metadata.message_id] = _Announced(node, [part.object_id for part in parts])


def most_parts(most: int) -> int:
    """Of how many parts an answer of so many bytes has."""
    return OTHER_PARTS + most // WHOLE_BYTES


def _whole(grid: HttpGrid, name: str, coming: _Announced, most: int) -> Message | BadInput | None:
    """The announced message, if all of its parts are here; a refusal of what is none. Raises nothing, whatever a site sent."""
    try:
        return opened(name, coming.held) if _pull(grid, coming, most) else None
    except (
        ObjectPullError,
        httpx.HTTPStatusError,
    ):  # given up half-way, or the SuperLink is busy: it is asked for again
        return None
    except BadInput as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever Flower makes of a site's bytes is the site's doing
        return BadInput(f"its answer cannot be read ({type(error).__name__})")


def _pull(grid: HttpGrid, coming: _Announced, most: int) -> bool:
    """Fetches what is there; whether that is all. Raises: BadInput for more parts or bytes than an honest answer has."""
    if len(coming.parts) > most_parts(most):
        raise BadInput(f"its answer has more than the {most_parts(most)} parts of an honest one")
    pull = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, grid.run.run_id)
    for part in coming.parts:
        if part not in coming.held:
            try:
                coming.held[part] = pull(part)
            except ObjectUnavailableError:
                return False
            if sum(map(len, coming.held.values())) > most:
                raise BadInput(f"its answer has more than the {most} bytes of an honest one")
    return True


def _confirm(grid: HttpGrid, name: str) -> None:
    grid._runtime_client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=name)
    )


def opened(name: str, held: dict[str, bytes]) -> Message:
    """The message of this name, from its parts.

    Guarantee: its memory is in proportion to the parts' length. Only messages, tables of records (both up to `SMALL_BYTES`) and
    records of at most `MOST_VALUES` texts and bytes are opened.

    Raises: BadInput, or whatever Flower raises, for anything else.
    """
    for content in held.values():
        kind = get_object_type_from_object_content(content)
        if kind == ConfigRecord.__qualname__:
            _refuse_heavy(memoryview(get_object_body(content, ConfigRecord)))
        elif kind not in ("Message", "RecordDict") or len(content) > SMALL_BYTES:
            raise BadInput("its answer cannot be read (it has a part that no answer has)")
    message = inflate_object_from_contents(name, dict(held))
    if not isinstance(message, Message):
        raise BadInput("its answer cannot be read (it is no message)")
    return message


def _refuse_heavy(record: memoryview) -> None:
    """Refuses a record of lists, numbers or many values: protobuf opens an empty one of two bytes into a hundred."""
    for _, item in _fields(record, {ITEMS}, most=MOST_VALUES):
        for number, value in _fields(item, {KEY, VALUE}, most=2):
            if number == VALUE:
                list(_fields(value, {TEXT, BYTES_INCOMING}, most=1))


def _fields(raw: memoryview, known: set[int], *, most: int) -> Iterator[tuple[int, memoryview]]:
    """At most so many fields of a protobuf message, by number. Raises: BadInput for more, others, or what has no length."""
    at, count = 0, 0
    while at < len(raw):
        tag, at = _number(raw, at)
        length, at = _number(raw, at)
        count += 1
        if tag & 7 != 2 or tag >> 3 not in known or count > most or at + length > len(raw):
            raise BadInput("its answer cannot be read (a record holds more than texts and bytes)")
        yield tag >> 3, raw[at : at + length]
        at += length


def _number(raw: memoryview, at: int) -> tuple[int, int]:
    """A varint of protobuf, and where it ends."""
    value, shift = 0, 0
    while at < len(raw) and shift < 64:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at
    raise BadInput("its answer cannot be read (a record is cut short)")
