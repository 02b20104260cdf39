"""The loop's trainer over Flower: the cohort's requests go out, its answers come back in the cohort's order.

A site that is silent or refuses is left out of the round, and one that was away is let in before the next; the run stops, by name
and reason, where fewer than `train.min_clients` are left. A charge for an answer that never came is spent."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.serverapp import Grid

from tacit import store
from tacit.deploy.server.gather import ANSWER_BYTES, AWAY, Heard, gather
from tacit.deploy.server.registration import Registration
from tacit.engine.run_files import STATUS
from tacit.engine.run_folder import Folder
from tacit.engine.trainers import Reply, Trainer
from tacit.errors import BadInput, BudgetExhausted, Refusal, TacitError
from tacit.types import Message
from tacit.wire import pack, unpack

ASKED = "asked.bin"
MOST_EPSILON = 1e9  # more is no budget; and a whole number of a thousand digits is no float
LATE = "is not on the list of the round's sum, which was fixed before the server was started again"
EVERY_SECONDS = 1.0  # between two words about one round


def find(folder: Folder, name: str, round: int) -> bytes | None:
    """The request that was kept under a name for this round; None where another round's is there, or none. Raises: BadInput."""
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
    """Puts a round's request on disk before anybody is asked, so that a restarted server asks the very same one; returns it."""
    folder.write(name, json.dumps({"round": round}).encode() + b"\n" + body)
    return body


@dataclass
class Status:
    """`status.json`: how far a server has come and who has answered it, for the people who operate it."""

    began: float  # tells this server's file from that of one before it, on its way out
    sites: Sequence[str] = ()
    missing: Sequence[str] = ()  # who has not joined yet
    asked: dict[str, Any] | None = None  # the last round that was asked, and who has answered
    spent: Mapping[str, float] = field(default_factory=dict)  # what the sites' own ledgers say
    _said: float = 0.0

    def write(self, folder: Folder, state: str, text: str) -> None:
        record = {"state": state, "text": text, "pid": os.getpid(), "began": self.began, "time": time.time()}
        record |= {"sites": list(self.sites), "missing": list(self.missing)}
        record |= {"asked": self.asked, "spent": dict(self.spent)}
        store.write(folder.path / STATUS, json.dumps(record).encode())
        self._said = time.monotonic()

    def wait(self, folder: Folder, missing: Sequence[str]) -> None:
        self.missing = missing
        self.write(folder, "waiting", f"for {', '.join(missing)}" if missing else "for everybody to agree")

    def hear(self, folder: Folder, round: int, nodes: Mapping[str, int | None], heard: Heard, *, over: bool) -> None:
        """Writes who of a round's sites (their nodes by name) has answered or refused so far, once a second at most."""
        if not over and time.monotonic() - self._said < EVERY_SECONDS:
            return
        answered = [name for name, node in nodes.items() if node in heard.answers]
        refused = {name: heard.why(node) for name, node in nodes.items() if node in heard.refusals}
        waited = {name: node for name, node in nodes.items() if name not in answered and name not in refused}
        silent = {name: heard.why(node) if over or node is None else "" for name, node in waited.items()}
        self.asked = {"round": round, "over": over, "answered": answered, "refused": refused, "silent": silent}
        with contextlib.suppress(OSError):  # a disk that takes no word more stops nothing: the ledger will
            self.write(folder, "running", f"round {round + 1}")


class Framing(Protocol):
    """What goes around a round's question, and who can take part with that."""

    def question(self, received: bytes, round: int, nodes: Mapping[str, int]) -> bytes: ...
    def begin(self, round: int, body: bytes) -> set[str] | None: ...
    def hopeless(self, round: int, refused: set[str]) -> bool: ...


@dataclass
class OverGrid(Trainer):
    """A trainer whose clients are sites: called with a broadcast, a round and a cohort, it yields their messages in that order.

    Guarantee: the request is on disk before anybody is asked. A message is in the name of the site whose node sent it; one that no
    honest site could have sent (`odd`) counts as a refusal. Raises: BudgetExhausted, TacitError, by name and reason.
    """

    grid: Grid
    folder: Folder
    nodes: dict[int, int]  # client index -> Flower node
    names: Sequence[str]
    seconds: float
    min_clients: int
    registration: Registration | None = None  # lets in who was away when the run began
    odd: Callable[[Message, int, bytes, int], str] = lambda received, index, raw, round: (
        ""
    )  # what is wrong with an answer
    most: int = ANSWER_BYTES  # bytes of one answer
    spent: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # of the last round, with the reason
    counts: dict[str, int] = field(
        default_factory=dict
    )  # of the last round, where its sum's list is of an earlier start
    came: set[str] = field(default_factory=set)  # whose answers the last round has
    took_part: set[str] = field(default_factory=set)  # in the last round, by the question that is on disk too
    unpaid: set[int] = field(default_factory=set)  # whose own ledger does not pay any more
    left: set[int] = field(default_factory=set)  # who is not connected, and was not there in the last round
    status: Status | None = None  # is told who has answered, where that is no secret
    framing: Framing | None = None  # of sums under masks

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        body, part = find(self.folder, ASKED, round), [index for index in cohort if index in self.nodes]
        if body is None:
            here = {self.names[index]: self.nodes[index] for index in part}
            question = self.framing.question(received, round, here) if self.framing else received
            body = keep(self.folder, ASKED, round, question)
        joined = self.framing.begin(round, body) if self.framing else None
        part = [index for index in part if joined is None or self.names[index] in joined]
        asked, sent = {self.nodes[index]: index for index in part}, unpack(body)
        ask: dict[str, Any] = {"kind": "train", "run": self.folder.run, "round": round}
        asks = dict.fromkeys(asked, ask)  # one message, which the SuperLink stores once

        def accept(node: int, facts: dict[str, Any], raw: bytes) -> tuple[Any, bytes]:
            if why := self.odd(sent, asked[node], raw, round):
                raise BadInput(why)
            return facts, raw

        def tell(heard: Heard, *, over: bool = False) -> None:
            if self.status is not None:
                self.status.spent = self.spent
                nodes = {self.names[index]: self.nodes.get(index) for index in sorted({*cohort, *self.left})}
                self.status.hear(self.folder, round, nodes, heard, over=over)

        heard = gather(self.grid, asks, body, seconds=self.seconds, most=self.most, accept=accept, tell=tell)
        tell(heard, over=True)
        came = [index for index in cohort if self.nodes.get(index) in heard.answers]
        missing = {self.names[index]: heard.why(self.nodes.get(index)) for index in cohort if index not in came}
        self.unpaid |= {asked[node] for node in heard.unpaid}
        self.absent = {self.names[index]: AWAY for index in sorted(self.left)} | missing
        self.counts, self.came = {}, {self.names[index] for index in came}
        self.took_part = {self.names[index] for index in cohort} | (joined or set())
        needed = min(self.min_clients, len(cohort))
        if len(came) < needed and len(heard.unpaid) == len(missing):
            raise BudgetExhausted(f"Round {round + 1} cannot be paid for: {listed(missing)}")
        if len(came) < needed:
            never = {self.names[asked[node]] for node, kind in heard.kinds.items() if kind is Refusal.NEVER}
            if self.framing and self.framing.hopeless(round, never):
                (self.folder.path / ASKED).unlink()  # after --resume another one is asked
            raise TacitError(
                f"Round {round + 1} got {len(came)} answers and needs {needed} ({listed(missing)}): bring the sites back, "
                "then go on with --resume."
            )
        for index in came:
            facts, raw = heard.answers[self.nodes[index]]
            if (spent := spent_of(facts)) is not None:
                self.spent[self.names[index]] = spent
            yield attributed(raw, self.names[index]), {}

    def fixed(self, members: Collection[str], survivors: Sequence[str]) -> None:
        """Takes who is in the sum of these members from its list, which an earlier start of the server has fixed: a site of it
        may be gone since, and one that is not on it may have answered since."""
        self.came = self.came - set(members) | set(survivors)
        late = dict.fromkeys(sorted(self.took_part & set(members) - set(survivors)), LATE)
        self.absent = late | {name: why for name, why in self.absent.items() if name not in survivors}
        self.counts = {"cohort": len(self.took_part), "answered": len(self.came)}
        if self.status is not None and self.status.asked is not None:
            self.status.asked |= {"answered": sorted(self.came), "refused": {}, "silent": self.absent}
            self.status.write(self.folder, "running", f"round {self.status.asked['round'] + 1}")

    def away(self) -> set[int]:
        """Lets in who has come, and returns the clients that have left, who are not asked and so not charged: whose node is not
        connected and who were absent from the last round, or have never been there.
        """
        if self.registration is not None:
            self.nodes |= self.registration.newcomers(self.nodes)
        missing = {index for index, name in enumerate(self.names) if name in self.absent}
        here = set(self.grid.get_node_ids()) if missing else set(self.nodes.values())
        gone = {index for index in missing if self.nodes.get(index) not in here}
        self.left = gone | (set(range(len(self.names))) - set(self.nodes))
        return self.left


def listed(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in missing.items())


def attributed(raw: bytes, site: str) -> bytes:
    """A site's message as it came; one that cannot be read or bears another's name, as an empty message of this site."""
    try:
        sender = unpack(raw).sender
        if sender == site:
            return raw
        why = f"its message is written in the name of {sender[:80]!r}"
    except BadInput as error:
        why = str(error)
    return pack(Message(site, {}, {"failed": why}))


def spent_of(facts: Any) -> float | None:
    """The epsilon that a site says its ledger holds, if it says a number from 0 to `MOST_EPSILON`; anything else is None."""
    epsilon: Any = facts.get("epsilon") if isinstance(facts, dict) else None
    known = type(epsilon) in (int, float) and 0 <= epsilon < MOST_EPSILON
    return float(epsilon) if known else None
