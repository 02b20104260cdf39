"""Asking several sites at once: send, wait, ask the silent ones again, keep the first answer of each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from tacit.algorithms import printable
from tacit.deploy.server.incoming import Incoming, kind_of_refusal, new_nonce, question, read
from tacit.errors import BadInput, Refusal

AWAY = "is not connected"
UNFINISHED = "its answer has not arrived whole"
POLL_SECONDS = 0.2
AGAIN_SECONDS = 20.0  # for short questions; one that was lost with a killed node is not missed for long
ASK_SECONDS = 30.0  # for a round's questions, which are long
LOOK_SECONDS = 2.0  # between two looks at who is connected
ANSWER_BYTES = 1 << 20  # of an answer in which nothing of the model's length stands

Asks = dict[int, dict[str, Any]]  # by node


@dataclass
class Heard:
    """What came back, by node: answers, refusals in the site's words, and what Flower says of those it lost.

    Words are printable and cut short: they stand in the server's log. Who is `lost` is still awaited, since its node may come
    back; an answer and a refusal are final.
    """

    answers: dict[int, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, Refusal] = field(default_factory=dict)  # of the refusals that sites made

    @property
    def unpaid(self) -> set[int]:
        """Who refused because its budget is used up."""
        return {node for node, kind in self.kinds.items() if kind is Refusal.UNPAID}

    def open(self, asks: Asks) -> list[int]:
        """The nodes of `asks` whose word is still awaited: they have neither answered nor refused."""
        return [node for node in asks if node not in self.answers and node not in self.refusals]

    def take(self, node: int, message: Message | BadInput | None) -> None:
        """Notes one reply, or why there is none; after an answer or a refusal, a further one of the same node is dropped.

        Guarantee: nothing is raised, whatever the message holds: what is none of Tacit's counts as a refusal.
        """
        if node in self.answers or node in self.refusals:
            return
        if message is None:
            self.lost[node] = UNFINISHED
            return
        if isinstance(message, BadInput):
            self.refusals[node] = printable(str(message))
            return
        if message.has_error():
            kind = kind_of_refusal(message.error)
            reason = printable(message.error.reason or f"error {message.error.code}")
            (self.lost if kind is None else self.refusals)[node] = reason
            if kind is not None:
                self.kinds[node] = kind
            return
        try:
            self.answers[node] = read(message)
        except BadInput as error:
            self.refusals[node] = printable(str(error))


def gather(
    grid: Grid,
    asks: Asks,
    body: bytes,
    *,
    seconds: float,
    most: int = ANSWER_BYTES,
    enough: int | None = None,
    again: float | None = None,
    tell: Callable[[Heard], None] = lambda heard: None,
) -> Heard:
    """Asks every node its own question and waits until all have answered, or `enough` of them, or the time is over.

    Who is silent is asked again, which costs a site nothing, as it gives one answer to one question: at once when its node
    was gone and is back, else after `again` seconds, and then after twice as long every time.

    Guarantee: it returns soon after `seconds` at the latest, and has looked for answers at least once. The first answer or
    refusal of a node counts; what is no answer, or has more than `most` bytes, is a refusal, and what cannot be asked or had of
    one node keeps nobody from the others. `tell` is shown what has come after every look that leaves somebody to wait for.

    Assumes: asking a node twice gets the same answer. Who trains anew for each question is asked with `again` not below
    `seconds`.
    """
    heard, incoming, ends = Heard(), Incoming(grid, most), time.monotonic() + seconds
    turns = Turns(grid, again or ASK_SECONDS)
    while True:
        due, left = turns.due(heard.open(asks)), ends - time.monotonic()
        if due:
            incoming.asked |= _send(grid, {node: asks[node] for node in due}, body, heard, seconds=max(left, 1.0))
        for node, message in incoming.look():  # at least once, however long the sending took
            heard.take(node, message)
        if not heard.open(asks) or len(heard.answers) >= (enough or len(asks)) or time.monotonic() >= ends:
            return heard
        tell(heard)
        time.sleep(POLL_SECONDS)


def unanswered(lost: str, seconds: float) -> str:
    """Why a site is missing that was waited for to the end: first that, then what Flower says of its message.

    >>> unanswered("", 25.0), unanswered("Error: Message Unavailable", 25.0)
    ('did not answer in 25 s', 'did not answer in 25 s (Error: Message Unavailable)')
    """
    return f"did not answer in {seconds:g} s" + (f" ({lost})" if lost else "")


class Turns:
    """When each node is to be asked, and asked again: at first, when it was gone and is back, and after pauses that double."""

    def __init__(self, grid: Grid, again: float):
        self._grid, self._again, self._look = grid, again, time.monotonic() + LOOK_SECONDS
        self._next: dict[int, tuple[float, float]] = {}  # node: when it is asked next, and the pause after that
        self._away: set[int] = set()

    def due(self, nodes: Sequence[int]) -> list[int]:
        """Which of these nodes are to be asked now; each is then taken for asked."""
        now, back = time.monotonic(), self._back(nodes)
        due = [node for node in nodes if node not in self._next or node in back or self._late(node, now)]
        for node in due:
            _, pause = self._next.get(node, (0.0, self._again))
            self._next[node] = (now + pause, 2 * pause)
        return due

    def _late(self, node: int, now: float) -> bool:
        return (
            now >= self._next[node][0] and node not in self._away
        )  # what was sent to a node that is away waits for it

    def _back(self, nodes: Sequence[int]) -> set[int]:
        """The nodes that were gone at the last look and are here now."""
        if time.monotonic() < self._look:
            return set()
        here = set(self._grid.get_node_ids())
        back = self._away & here
        self._away = set(nodes) - here
        self._look = time.monotonic() + LOOK_SECONDS
        return back


def _send(grid: Grid, asks: Asks, body: bytes, heard: Heard, *, seconds: float) -> dict[str, int]:
    """Asks all nodes at once, or, where the SuperLink fails at that, each alone. Returns the nodes by their question's name."""
    try:
        return _push(grid, asks, body, seconds)
    except (httpx.HTTPStatusError, ObjectPushError, BadInput) as error:
        if len(asks) > 1:
            alone = [_send(grid, {node: ask}, body, heard, seconds=seconds) for node, ask in asks.items()]
            return {name: node for sent in alone for name, node in sent.items()}
        heard.lost |= dict.fromkeys(asks, f"it could not be asked ({printable(str(error))})")
        return {}


def _push(grid: Grid, asks: Asks, body: bytes, seconds: float) -> dict[str, int]:
    nonce = new_nonce()
    messages = [question(ask, body, node=node, seconds=seconds, nonce=nonce) for node, ask in asks.items()]
    names = list(grid.push_messages(messages))
    if len(names) < len(messages):
        raise BadInput("the SuperLink does not take so long a question")
    return {name: node for name, node in zip(names, asks, strict=True) if name}
