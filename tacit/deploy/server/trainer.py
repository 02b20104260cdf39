"""The loop's trainer over Flower: the cohort's questions go out, its answers come back in the cohort's order.

A site that is silent or refuses is left out of the round, and one that was away is let in before the next; the run
stops, by name and reason, where fewer than `train.min_clients` are left. What a site had charged for an answer that never
came is spent. One that did not answer and whose node is gone has left: it is asked nothing, and charged nothing, until it is
back or cannot be done without."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from flwr.serverapp import Grid

from tacit import store
from tacit.deploy.server.gather import ANSWER_BYTES, AWAY, Heard, gather, unanswered
from tacit.deploy.server.registration import Door
from tacit.deploy.site.agreement import Terms
from tacit.engine.pool import Reply, Trainer
from tacit.engine.run_files import STATUS
from tacit.engine.run_folder import Folder
from tacit.errors import BadInput, BudgetExhausted, TacitError
from tacit.types import Message
from tacit.wire import pack, unpack

# The server's open question, kept on disk before it is asked, so that a restarted server asks the very same one.


def find(folder: Folder, name: str, round: int) -> bytes | None:
    """The question that was kept under a name for this round, or None where another round's is there, or none.

    Raises: BadInput where the file is damaged: another question would be refused by every site that was asked this one.
    """
    path = folder.path / name
    if not path.exists():
        return None
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        kept = json.loads(head)["round"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(
            f"{path} is damaged, and sites that were asked what it held answer nothing else in its round: put it back as it was,"
            " or start anew with --force."
        ) from None
    return body if kept == round else None


def keep(folder: Folder, name: str, round: int, body: bytes) -> bytes:
    """Puts a round's question on disk, in the place of the round's before, and returns it.

    Guarantee: a crash leaves the old question or the new one. Assumes: it is called before anybody is asked.
    """
    folder.write(name, json.dumps({"round": round}).encode() + b"\n" + body)
    return body


# `status.json`: how far a server has come and who has answered it, for the people who operate it (`tacit report
# --live`).

EVERY_SECONDS = 1.0  # between two words about one round


@dataclass
class Status:
    """What a server says of itself: `began` tells its word from that of one before it, on its way out."""

    began: float
    sites: Sequence[str] = ()
    missing: Sequence[str] = ()  # who has not joined yet
    asked: dict[str, Any] | None = None  # the last round that was asked, and who has answered
    spent: Mapping[str, float] = field(default_factory=dict)  # what the sites' own ledgers say
    _said: float = 0.0

    def write(self, folder: Folder, state: str, text: str) -> None:
        """Replaces status.json: the state (waiting, running, finished, failed), words about it, the process, and the sites."""
        record = {"state": state, "text": text, "pid": os.getpid(), "began": self.began, "time": time.time()}
        record |= {
            "sites": list(self.sites),
            "missing": list(self.missing),
            "asked": self.asked,
            "spent": dict(self.spent),
        }
        store.write(folder.path / STATUS, json.dumps(record).encode())
        self._said = time.monotonic()

    def wait(self, folder: Folder, missing: Sequence[str]) -> None:
        """Writes who is waited for."""
        self.missing = missing
        self.write(folder, "waiting", f"for {', '.join(missing)}" if missing else "for everybody to agree")

    def hear(
        self, folder: Folder, round: int, nodes: Mapping[str, int | None], heard: Heard, *, seconds: float | None
    ) -> None:
        """Writes who of a round's sites (their nodes by name) has answered or refused so far; `seconds` is how long they were
        waited for, once the round is over.

        Until then it speaks once a second at most: a round of many sites has better things to do. A disk that takes no word more
        stops nothing here: the ledger will.
        """
        over = seconds is not None
        if not over and time.monotonic() - self._said < EVERY_SECONDS:
            return
        self.asked = {"round": round, "over": over} | heard_of(nodes, heard, seconds=seconds)
        with contextlib.suppress(OSError):
            self.write(folder, "running", f"round {round + 1}")


def heard_of(nodes: Mapping[str, int | None], heard: Heard, *, seconds: float | None) -> dict[str, Any]:
    """Who answered, who refused and who is silent, by name; why, where that is known.

    >>> heard_of({"north": 1, "coast": None, "hill": 2}, Heard(answers={1: ({}, b"")}), seconds=9.0)
    {'answered': ['north'], 'refused': {}, 'silent': {'coast': 'is not connected', 'hill': 'did not answer in 9 s'}}
    """
    answered = [name for name, node in nodes.items() if node in heard.answers]
    refused = {name: heard.refusals[node] for name, node in nodes.items() if node in heard.refusals}
    silent = {
        name: AWAY if node is None else "" if seconds is None else unanswered(heard.lost.get(node, ""), seconds)
        for name, node in nodes.items()
        if name not in answered and name not in refused
    }
    return {"answered": answered, "refused": refused, "silent": silent}


ASKED = "asked.bin"
NOBODY = -1  # no node has this number
MOST_EPSILON = 1e9  # more is no budget; and a whole number of a thousand digits is no float


@dataclass
class OverGrid(Trainer):
    """A trainer whose clients are sites: called with a broadcast, a round and a cohort, it yields their messages.

    Guarantee: the question is on disk before anybody is asked, so a restarted server asks the very same one and sites answer it
    from their own disks. Messages come in the cohort's order, each in the name of the site whose node sent it; one that no
    honest site could have sent (`odd`) counts as a refusal. `spent` holds the epsilon that each site's own ledger reported
    last, which nobody checks.

    Assumes: the server's own ledger was charged for the round. Raises: BudgetExhausted where a round fails because the absent
    cannot pay, and TacitError, by name and reason, where fewer than `min_clients` of a cohort answer in `seconds` for other
    reasons.
    """

    grid: Grid
    folder: Folder
    nodes: dict[int, int]  # client index -> Flower node
    names: Sequence[str]
    terms: dict[int, Terms]
    seconds: float
    min_clients: int
    door: Door | None = None  # lets in who was away when the run began
    odd: Callable[[Message, int, bytes, int], str] = lambda received, index, raw, round: (
        ""
    )  # what is wrong with an answer
    most: int = ANSWER_BYTES  # bytes of one answer
    spent: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # of the last round, with the reason
    unpaid: set[int] = field(default_factory=set)  # whose own ledger does not pay any more
    left: set[int] = field(default_factory=set)  # who is not connected, and was not there in the last round
    status: Status | None = None  # is told who has answered, where that is no secret

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        body = find(self.folder, ASKED, round) or keep(self.folder, ASKED, round, received)
        asks = {self.nodes[index]: self._ask(round, index) for index in cohort if index in self.nodes}
        tell = partial(self._tell, round, cohort)
        heard = gather(self.grid, asks, body, seconds=self.seconds, most=self.most, tell=tell)
        self._refuse_odd(heard, unpack(body), cohort, round)
        tell(heard, over=True)
        missing = {self.names[index]: self._why(index, heard) for index in cohort if not self._came(index, heard)}
        self.unpaid |= {index for index in cohort if self.nodes.get(index) in heard.unpaid}
        self.absent = {self.names[index]: AWAY for index in sorted(self.left)} | missing
        self._refuse_too_few(round, cohort, heard, missing)
        for index in cohort:
            if self._came(index, heard):
                facts, raw = heard.answers[self.nodes[index]]
                spent = spent_of(facts)
                if spent is not None:
                    self.spent[self.names[index]] = spent
                yield attributed(raw, self.names[index]), {}

    def away(self) -> set[int]:
        """Lets in who has come, and returns the clients that have left, who are not asked and so not charged.

        A client has left when its node is not connected and it was absent from the last round, or has never been there.
        """
        if self.door is not None:
            self.nodes |= self.door.newcomers(self.nodes)
        missing = {index for index, name in enumerate(self.names) if name in self.absent}
        here = set(self.grid.get_node_ids()) if missing else set(self.nodes.values())
        gone = {index for index in missing if self.nodes.get(index) not in here}
        self.left = gone | (set(range(len(self.names))) - set(self.nodes))
        return self.left

    def _tell(self, round: int, cohort: Sequence[int], heard: Heard, *, over: bool = False) -> None:
        if self.status is not None:
            self.status.spent = self.spent
            nodes = {self.names[index]: self.nodes.get(index) for index in sorted({*cohort, *self.left})}
            self.status.hear(self.folder, round, nodes, heard, seconds=self.seconds if over else None)

    def _refuse_odd(self, heard: Heard, received: Message, cohort: Sequence[int], round: int) -> None:
        """Who answers what no honest site could is left out, by name, like one that refused."""
        for index in cohort:
            node = self.nodes.get(index, NOBODY)
            why = self.odd(received, index, heard.answers[node][1], round) if node in heard.answers else ""
            if why:
                del heard.answers[node]
                heard.refusals[node] = why

    def _ask(self, round: int, index: int) -> dict:
        return {"kind": "train", "run": self.folder.run, "round": round, "terms": asdict(self.terms[index])}

    def _came(self, index: int, heard: Heard) -> bool:
        return self.nodes.get(index) in heard.answers

    def _why(self, index: int, heard: Heard) -> str:
        node = self.nodes.get(index)
        if node is None:
            return AWAY
        return heard.refusals.get(node) or unanswered(heard.lost.get(node, ""), self.seconds)

    def _refuse_too_few(self, round: int, cohort: Sequence[int], heard: Heard, missing: dict[str, str]) -> None:
        came, needed = len(cohort) - len(missing), min(self.min_clients, len(cohort))
        if came >= needed:
            return
        why = "; ".join(f"{name}: {text}" for name, text in missing.items())
        if len(heard.unpaid) == len(missing):
            raise BudgetExhausted(f"Round {round + 1} cannot be paid for: {why}")
        raise TacitError(
            f"Round {round + 1} got {came} answers and needs {needed} ({why}): bring the sites back, "
            "then go on with --resume."
        )


def attributed(raw: bytes, site: str) -> bytes:
    """A site's message as it came; one that cannot be read or bears another's name, as an empty message of this site.

    So a message is refused in the name of who sent it, and nobody can have another one blamed. Nothing is raised.

    >>> unpack(attributed(b"no message", "north")).sender
    'north'
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
    """The epsilon that a site says its ledger holds, if it says a number from 0 to `MOST_EPSILON`; anything else is None.

    >>> spent_of({"epsilon": 2}), spent_of({"epsilon": "2"})
    (2.0, None)
    """
    epsilon: Any = facts.get("epsilon") if isinstance(facts, dict) else None
    known = type(epsilon) in (int, float) and 0 <= epsilon < MOST_EPSILON
    return float(epsilon) if known else None
