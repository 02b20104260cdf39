"""Asking several sites at once: send, wait, ask the silent ones again, keep the first answer of each.

Flower's HTTP grid takes in all answers in one go, so that bytes which one site made up lose the answers of all others. Here they
are taken in one at a time and inside limits: a bad one costs its sender alone, by name."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from tacit.check import printable
from tacit.deploy.server.messages import WHOLE_BYTES, kind_of_refusal, new_nonce, question, read, refuse_odd_part
from tacit.errors import BadInput, Refusal, TacitError

AWAY = "is not connected"
UNFINISHED = "its answer has not arrived whole"
POLL_SECONDS = 0.05  # from one look for answers to the next; the SuperLink keeps a look until something comes
AGAIN_SECONDS = 20.0  # for short questions; one that was lost with a killed node is not missed for long
ASK_SECONDS = 30.0  # for a round's questions, which are long
LOOK_SECONDS = 2.0  # between two looks at who is connected
MOST_BACK = 3  # times that a node is asked at once because it is back: a question may be as long as the model
LINES = 8  # to the SuperLink at once, each for one site's answer
ANSWER_BYTES = 1 << 20  # of an answer in which nothing of the model's length stands

Asks = dict[int, dict[str, Any]]  # by node
Accept = Callable[[int, dict[str, Any], bytes], Any]


@dataclass
class Heard:
    """What came back, by node, in words that are printable and cut short. Who is `lost` is awaited; the rest is final."""

    seconds: float = 0.0  # how long was waited at most
    answers: dict[int, Any] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, Refusal] = field(default_factory=dict)  # of the refusals that sites made
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def unpaid(self) -> set[int]:
        return {node for node, kind in self.kinds.items() if kind is Refusal.UNPAID}

    def open(self, asks: Asks) -> list[int]:
        return [node for node in asks if node not in self.answers and node not in self.refusals]

    def why(self, node: int | None) -> str:
        """Why there is no answer of a site, whose node is None where it is not connected.

        >>> heard = Heard(25.0, refusals={1: "not today"}, lost={2: "Error: Message Unavailable"})
        >>> heard.why(None), heard.why(1), heard.why(2)
        ('is not connected', 'not today', 'did not answer in 25 s (Error: Message Unavailable)')
        """
        if node is None:
            return AWAY
        lost = f" ({self.lost[node]})" if node in self.lost else ""
        return self.refusals.get(node) or f"did not answer in {self.seconds:g} s{lost}"

    def take(self, node: int, message: Message | BadInput | None, accept: Accept | None = None) -> None:
        """Notes one reply, or why there is none. Raises nothing: what `accept` raises TacitError at counts as a refusal."""
        if node in self.answers or node in self.refusals:
            return
        if message is None:
            self.lost[node] = UNFINISHED
        elif isinstance(message, BadInput):
            self.refusals[node] = printable(str(message))
        elif message.has_error():
            kind, reason = kind_of_refusal(message.error), message.error.reason or f"error {message.error.code}"
            (self.lost if kind is None else self.refusals)[node] = printable(reason)
            if kind is not None:
                self.kinds[node] = kind
        else:
            try:
                head, body = read(message)
                self.answers[node] = accept(node, head, body) if accept else (head, body)
            except TacitError as error:
                self.refusals[node] = printable(str(error))


def gather(
    grid: Grid,
    asks: Asks,
    body: bytes,
    *,
    seconds: float,
    most: int = ANSWER_BYTES,
    accept: Accept | None = None,
    enough: int | None = None,
    again: float | None = None,
    tell: Callable[[Heard], None] = lambda heard: None,
) -> Heard:
    """Asks every node its own request and waits until all have answered, or `enough` of them, or the time is over.

    Who is silent is asked again, which costs a site nothing. What is no answer, has more than `most` bytes, or is not accepted
    (`accept` raises TacitError) is a refusal; what cannot be had of one node keeps nobody from the others.
    """
    heard, incoming, ends = Heard(seconds), Incoming(grid, most), time.monotonic() + seconds
    turns = Turns(grid, again or ASK_SECONDS)
    while asks:
        began = time.monotonic()
        due, left = turns.due(heard.open(asks)), ends - began
        if due:
            incoming.asked |= _send(grid, {node: asks[node] for node in due}, body, heard, seconds=max(left, 1.0))
        for node, message in incoming.look():  # at least once, however long the sending took
            heard.take(node, message, accept)
        if not heard.open(asks) or len(heard.answers) >= (enough or len(asks)) or time.monotonic() >= ends:
            break
        tell(heard)
        time.sleep(max(0.0, began + POLL_SECONDS - time.monotonic()))
    return heard


class Turns:
    """When each node is asked: at first, when it was gone and is back (`MOST_BACK` times), and after pauses that double."""

    def __init__(self, grid: Grid, again: float):
        self._grid, self._again, self._look = grid, again, time.monotonic() + LOOK_SECONDS
        self._next: dict[int, tuple[float, float]] = {}  # node: when it is asked next, and the pause after that
        self._away: set[int] = set()
        self._came_back = Counter[int]()

    def due(self, nodes: Sequence[int]) -> list[int]:
        """Which of these nodes are to be asked now; each is then taken for asked."""
        now, back = time.monotonic(), set[int]()
        if now >= self._look:
            here = set(self._grid.get_node_ids())
            back = self._away & here
            self._came_back.update(back)
            self._away, self._look = set(nodes) - here, time.monotonic() + LOOK_SECONDS

        def is_due(node: int) -> bool:
            if node not in self._next or (node in back and self._came_back[node] <= MOST_BACK):
                return True
            return (
                now >= self._next[node][0] and node not in self._away
            )  # what was sent to one that is away waits for it

        due = [node for node in nodes if is_due(node)]
        for node in due:
            _, pause = self._next.get(node, (0.0, self._again))
            self._next[node] = (now + pause, 2 * pause)
        return due


def _send(grid: Grid, asks: Asks, body: bytes, heard: Heard, *, seconds: float) -> dict[str, int]:
    """Asks all nodes at once, or, where the SuperLink fails at that, each alone. Returns the nodes by their request's name."""
    nonce = new_nonce()
    try:
        messages = [question(ask, body, node=node, seconds=seconds, nonce=nonce) for node, ask in asks.items()]
        names = list(grid.push_messages(messages))
        if len(names) < len(messages):
            raise BadInput("the SuperLink does not take so long a question")
        return {name: node for name, node in zip(names, asks, strict=True) if name}
    except (httpx.HTTPStatusError, ObjectPushError, BadInput) as error:
        if len(asks) > 1:
            alone = [_send(grid, {node: ask}, body, heard, seconds=seconds) for node, ask in asks.items()]
            return {name: node for sent in alone for name, node in sent.items()}
        heard.lost |= dict.fromkeys(asks, f"it could not be asked ({printable(str(error))})")
        return {}


# Taking in what nodes send.

OTHER_PARTS = 4  # of an answer beside its body's full pieces: message, table, head, and a piece that is not full


@dataclass
class _Announced:
    node: int
    parts: list[str]
    held: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Incoming:
    """The answers to one gathering's requests, each of at most `most` bytes; nobody is waited for.

    What was taken in or refused is deleted at the SuperLink. Over another grid than Flower's HTTP grid nothing is limited.
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
        announced = list(self._announced.items())
        with ThreadPoolExecutor(LINES) as lines:
            whole = lines.map(lambda each: _whole(grid, each[0], each[1], self.most), announced)
            for (name, coming), found in zip(announced, whole, strict=True):
                if found is not None:
                    del self._announced[name]
                yield coming.node, found

    def _note(self, grid: HttpGrid, asked: list[str]) -> Iterator[tuple[int, None]]:
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
                parts = islice(iterate_object_tree(tree), _most_parts(self.most) + 1)
                self._announced[envelope.metadata.message_id] = _Announced(node, [part.object_id for part in parts])


def _most_parts(most: int) -> int:
    return OTHER_PARTS + most // WHOLE_BYTES


def _whole(grid: HttpGrid, name: str, coming: _Announced, most: int) -> Message | BadInput | None:
    """The announced message, if all of its parts are here; what is none as BadInput. Either is deleted at the SuperLink.

    Raises nothing, whatever a site sent.
    """
    try:
        if not _pull(grid, coming, most):
            return None
        found = opened(name, coming.held)
    except (ObjectPullError, httpx.HTTPStatusError):  # given up half-way, or the SuperLink is busy: asked for again
        return None
    except BadInput as error:
        found = error
    except Exception as error:  # noqa: BLE001 - whatever Flower makes of a site's bytes is the site's doing
        found = BadInput(f"its answer cannot be read ({type(error).__name__})")
    done = ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=name)
    with contextlib.suppress(httpx.HTTPStatusError):  # it is deleted when the run ends
        grid._runtime_client.ConfirmMessageReceived(done)
    return found


def _pull(grid: HttpGrid, coming: _Announced, most: int) -> bool:
    if len(coming.parts) > _most_parts(most):
        raise BadInput(f"its answer has more than the {_most_parts(most)} parts of an honest one")
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


def opened(name: str, held: dict[str, bytes]) -> Message:
    """The message of this name, in memory in proportion to its parts' length. Raises: BadInput, or whatever Flower raises."""
    for content in held.values():
        try:
            refuse_odd_part(content)
        except BadInput as error:
            raise BadInput(f"its answer cannot be read ({error})") from None
    message = inflate_object_from_contents(name, dict(held))
    if not isinstance(message, Message):
        raise BadInput("its answer cannot be read (it is no message)")
    return message
