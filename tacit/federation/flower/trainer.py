"""The loop's trainer over Flower: the cohort's questions go out, its answers come back in the cohort's order.

A site that is silent or refuses is left out of the round, and one that was away is let in before the next; the run
stops, by name and reason, where fewer than `train.min_clients` are left. What a site had charged for an answer that never
came is spent. One that did not answer and whose node is gone has left: it is asked nothing, and charged nothing, until it is
back or cannot be done without.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from flwr.serverapp import Grid

from tacit.engine.folder import Folder
from tacit.engine.trainers.processes import Reply
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput, BudgetExhausted, TacitError
from tacit.federation.flower import open_question
from tacit.federation.flower.door import Door
from tacit.federation.flower.gather import AWAY, Heard, gather, unanswered
from tacit.federation.flower.standing import Status
from tacit.federation.site.agreement import Terms
from tacit.types import Message

ASKED = "asked.bin"
NOBODY = -1  # no node has this number
MOST_EPSILON = 1e9  # more is no budget; and a whole number of a thousand digits is no float


@dataclass
class OverGrid:
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
    spent: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # of the last round, with the reason
    unpaid: set[int] = field(default_factory=set)  # whose own ledger does not pay any more
    left: set[int] = field(default_factory=set)  # who is not connected, and was not there in the last round
    status: Status | None = None  # is told who has answered, where that is no secret

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        body = open_question.find(self.folder, ASKED, round) or open_question.keep(self.folder, ASKED, round, received)
        asks = {self.nodes[index]: self._ask(round, index) for index in cohort if index in self.nodes}
        tell = partial(self._tell, round, cohort)
        heard = gather(self.grid, asks, body, seconds=self.seconds, tell=tell)
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
