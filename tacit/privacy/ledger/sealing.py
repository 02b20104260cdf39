"""What a run may release about each client, sealed once: within the transaction of the client's first charge.

The arithmetic is in tacit/privacy/ledger/filter.py; here is what it is applied to, read from the ledger and written there.
"""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy.accounting import events, price
from tacit.privacy.ledger import filter as filters
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, Seal
from tacit.privacy.ledger.tables import ALL, EVERYBODY, now
from tacit.privacy.ledger.view import AT_ONCE, RunView
from tacit.types import Budget

ASKED = "SELECT client, query, text FROM asked JOIN events ON events.id = asked.event"
SEALS = "SELECT client, unit, text, delta, most, epsilon FROM seals JOIN events ON events.id = seals.event"


@dataclass(frozen=True)
class Limits:
    """What a run may spend: `delta` in all (None: the budget's own), in so many planned `rounds`, by which accountant.

    `most_epsilon` is what the run may cost a client by itself, where less was promised than the budget has left. `asked` says,
    of a client's name, which queries it answers beside the rounds, each once.
    """

    delta: float | None = None
    rounds: int = 10**6
    most_epsilon: float = math.inf
    accountant: str = "pld"
    asked: Callable[[str], Asked] = lambda client: NOTHING_ASKED
    spare: bool = True  # whether releases for rounds that must be repeated are sealed, too


class Sealing:
    """The seals of one run; a client's name, or the empty one where all pay together, is whose seal it is.

    Guarantee: a client has at most one seal a run, written before its first release and never changed; its epsilon and what
    other runs have sealed are together within the budget at that moment. So the event and the number of releases are fixed
    before anything is seen, which is what the price of a run rests on.
    """

    def __init__(self, view: RunView, db: sqlite3.Connection, limits: Limits):
        self._view, self._db, self._limits = view, db, limits
        self._seals: dict[str, Seal | None] = {}
        self._relations: dict[str, set[events.Relation]] = {}

    def of(self, name: str) -> Seal | None:
        """What this run has sealed for a client; None before its first charge."""
        self.read([name])
        return self._seals[name]

    def read(self, names: Iterable[str]) -> None:
        """Has the seals of some clients at hand, with one look at the file for all of them."""
        new = [name for name in names if name not in self._seals]
        for first in range(0, len(new), AT_ONCE):
            some, asked = new[first : first + AT_ONCE], defaultdict[str, list[tuple[str, str]]](list)
            which = f"WHERE run = ? AND client IN ({', '.join('?' * len(some))})"
            for name, query, text in self._db.execute(f"{ASKED} {which} ORDER BY query", (self._view.run, *some)):
                asked[name].append((query, text))
            found = self._db.execute(f"{SEALS} {which}", (self._view.run, *some)).fetchall()
            self._seals |= dict.fromkeys(some) | {name: Seal(*row, asked=tuple(asked[name])) for name, *row in found}

    def most(self, name: str, budget: Budget, event: DpEvent, *, hint: int) -> int:
        """How many releases of `event` this run may charge to a client in all, those on disk included.

        As many as were sealed; fewer where the budget was lowered since; before the first charge, as many as would be sealed.

        Raises: LedgerError for another event, unit or delta than was sealed; BadInput for an event whose price is for another
        change than those of other runs, or that has none.
        """
        known = self.of(name)
        if known is None:
            return self._affordable(name, budget, event, hint)
        asked = self._limits.asked(name)
        filters.refuse_other(known, budget, event, who=name or EVERYBODY, path=self._view.path, asked=asked)
        before = self._view.before(name, budget.unit)
        if filters.stands(known, budget, before=before, most_epsilon=self._limits.most_epsilon):
            return known.most
        return min(known.most, self._affordable(name, budget, event, hint))

    def seal(self, name: str, budget: Budget, event: DpEvent, *, hint: int) -> None:
        """Seals what the run may release about a client; nothing where that is done already.

        Assumes: a transaction is open, in which the client's first charge follows, and `most` allowed at least one release.

        Raises: LedgerError where in this run some clients pay together and some by themselves.
        """
        if self.of(name) is not None:
            return
        self._refuse_mixture(name)
        most = self._affordable(name, budget, event, hint)
        limits = self._limits
        sealed = filters.seal(budget, event, most=most, accountant=limits.accountant, asked=limits.asked(name))
        for text in (sealed.event, *(text for _, text in sealed.asked)):
            self._db.execute("INSERT OR IGNORE INTO events (text) VALUES (?)", (text,))
        self._db.executemany(
            "INSERT INTO asked SELECT ?, ?, ?, id FROM events WHERE text = ?",
            [(name, self._view.run, query, text) for query, text in sealed.asked],
        )
        self._db.execute(
            "INSERT INTO seals SELECT ?, ?, ?, id, ?, ?, ?, ? FROM events WHERE text = ?",
            (name, self._view.run, sealed.unit, sealed.delta, sealed.most, sealed.epsilon, now(), sealed.event),
        )
        self._seals[name] = sealed

    def queries(self, name: str) -> Asked:
        """The queries that a client answers in this run."""
        return self._limits.asked(name)

    def forget(self) -> None:
        """Has everything read again: another run has changed the file, or a transaction was taken back."""
        self._seals.clear()
        self._relations.clear()

    def _affordable(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        self._refuse_other_relation(budget.unit, event)
        limits = self._limits
        return filters.most_releases(
            budget,
            event,
            before=self._view.before(name, budget.unit),
            total_delta=budget.delta if limits.delta is None else limits.delta,
            rounds=limits.rounds,
            accountant=limits.accountant,
            most_epsilon=limits.most_epsilon,
            hint=hint,
            asked=limits.asked(name),
            spare=limits.spare,
        )

    def _refuse_other_relation(self, unit: str, event: DpEvent) -> None:
        """Refuses an event whose price is for another change than those of other runs. Raises BadInput."""
        if unit not in self._relations:
            query = "SELECT DISTINCT text FROM events JOIN seals ON events.id = seals.event WHERE unit = ? AND run != ?"
            texts = self._db.execute(query, (unit, self._view.run)).fetchall()
            self._relations[unit] = {events.relation(price.from_text(text)) for (text,) in texts}
        events.refuse_mixed(self._relations[unit] | {events.relation(event)})

    def _refuse_mixture(self, name: str) -> None:
        """In one run either all pay together or each for itself: one share of delta covers one of the two."""
        query = "SELECT 1 FROM seals WHERE run = ? AND client != ?"
        alone = name == ALL and self._db.execute(query, (self._view.run, ALL)).fetchone()
        if alone or (name != ALL and self.of(ALL)):
            raise LedgerError(
                f"In one run of the ledger {self._view.path} either all clients pay together or each for itself."
            )
