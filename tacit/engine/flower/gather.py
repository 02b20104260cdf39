"""Asking several sites at once: send, wait, ask the silent ones again, keep the first answer of each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from tacit.engine.flower.records import UNPAID, question, read
from tacit.errors import BadInput

POLL_SECONDS = 0.2
AGAIN_SECONDS = 20.0  # for short questions; one that was lost with a killed node is not missed for long
ASKS = 2  # within the patience of a round: a site that was restarted has lost the first question

Asks = dict[int, dict[str, Any]]  # by node


@dataclass
class Heard:
    """What came back, by node: answers, refusals in the site's words, and what Flower says of those it lost."""

    answers: dict[int, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    unpaid: set[int] = field(default_factory=set)  # who refused because its budget is used up

    def open(self, asks: Asks) -> list[int]:
        """The nodes whose word is still awaited."""
        return [node for node in asks if node not in self.answers and node not in self.refusals]

    def take(self, node: int, message: Message) -> None:
        """Notes one reply; a second one of the same node is dropped."""
        if node in self.answers or node in self.refusals:
            return
        if message.has_error():
            ours = message.error.code == ErrorCode.MOD_FAILED_PRECONDITION
            reason = message.error.reason or f"error {message.error.code}"
            (self.refusals if ours else self.lost)[node] = reason.removeprefix(UNPAID)
            if ours and reason.startswith(UNPAID):
                self.unpaid.add(node)
            return
        try:
            self.answers[node] = read(message)
        except BadInput as error:
            self.refusals[node] = str(error)


def gather(
    grid: Grid, asks: Asks, body: bytes, *, seconds: float, enough: int | None = None, again: float | None = None
) -> Heard:
    """Asks every node its own question and waits until all have answered, or `enough` of them, or the time is over.

    After `again` seconds (half the time) the silent ones are asked again, which costs them nothing: a site gives one answer
    to one question.
    """
    heard, ids, ends = Heard(), dict[str, int](), time.monotonic() + seconds
    while True:
        ids |= _send(grid, asks, heard.open(asks), body, seconds=seconds)
        pause = time.monotonic() + (again or seconds / ASKS)
        while True:  # at least one look, however long the sending took
            _collect(grid, ids, heard)
            if not heard.open(asks) or len(heard.answers) >= (enough or len(asks)) or time.monotonic() >= ends:
                return heard
            if time.monotonic() >= pause:
                break
            time.sleep(POLL_SECONDS)


def _send(grid: Grid, asks: Asks, nodes: Sequence[int], body: bytes, *, seconds: float) -> dict[str, int]:
    messages = [question(asks[node], body, node=node, seconds=seconds) for node in nodes]
    sent = list(grid.push_messages(messages)) if messages else []
    return {name: node for name, node in zip(sent, nodes, strict=True) if name}


def _collect(grid: Grid, ids: dict[str, int], heard: Heard) -> None:
    for message in grid.pull_messages(list(ids)) if ids else ():
        node = ids.pop(message.metadata.reply_to_message_id, None)
        if node is not None:
            heard.take(node, message)
