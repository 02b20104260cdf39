"""The writing half of a ledger: the round that is open, and one transaction for all that is charged at once.

A charge is written with its place in the chain, and the marks follow it (tacit/privacy/ledger/witness.py). Who is charged, and
whether a budget pays for it, is decided in tacit/privacy/ledger/ledger.py.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy.ledger import witness
from tacit.privacy.ledger.conditions import Condition
from tacit.privacy.ledger.filter import text_of
from tacit.privacy.ledger.tables import ALL, EVERYBODY, QUERY, now
from tacit.privacy.ledger.view import BATCHES, RunView
from tacit.types import Budget, Client


class Charging(RunView):
    """A ledger file that one start of one run writes to: `open_round` says for what, `_charging` is the transaction.

    Guarantee: what was written within `_charging` is on disk when it is left, with the marks after it, or nothing is; and what was
    kept in memory of a charge that failed is forgotten.

    Raises: LedgerError where the file cannot be opened, has an older format, belongs to another population, is not as far as a
    mark says, or contradicts a condition.
    """

    def __init__(
        self, path: Path, *, population: str, run: str, marks: Sequence[Path] = (), conditions: Sequence[Condition] = ()
    ):
        self._marks = tuple(marks)
        for mark in self._marks:
            witness.refuse_lost(path, mark)
        super().__init__(path, population=population, run=run)
        for mark in self._marks:
            witness.refuse_older(self, mark)
        self._conditions = list(conditions)
        for condition in self._conditions:
            condition.refuse(self._db, self.path)
        self._used: dict[str, int] = {}
        self._event_ids: dict[str, int] = {}
        self._round, self._attempt = 0, ""
        self._ahead = False  # whether rounds after the open one are on disk: those of a run that lost its checkpoint
        self._again = False  # whether the open round is on disk

    def open_round(self, round: int, attempt: str) -> None:
        """Says which release of which round is paid for next. What is on disk for the very same one was left by a crash.

        Assumes: it is called before every `admit`. It writes nothing; until the round is paid, `rounds_left` counts it as
        still to come even where it is on disk.

        Raises: LedgerError for a round below zero: there queries are charged, and what is sealed does not count it.
        """
        if round < 0:
            raise LedgerError(f"The ledger {self.path} opens no round of the number {round}: they are counted from 0.")
        self._round, self._attempt = round, attempt
        self._again = attempt in self._attempts(round)
        self._ahead = self._db.execute(BATCHES.format("1", ">"), (self.run, round)).fetchone() is not None
        self._forget_if_changed()

    @property
    def ahead(self) -> bool:
        """Whether rounds after the open one were charged: those of a run that lost its checkpoint."""
        return self._ahead

    @property
    def again(self) -> bool:
        """Whether the open round was charged under this very attempt."""
        return self._again

    def _used_by(self, name: str) -> int:
        """How many releases of this run are on disk for a client, over all attempts."""
        if name not in self._used:
            self._used[name] = self._on_disk(name)
        return self._used[name]

    def _repeated(self, name: str) -> int:
        """How many of the releases on disk are those still to come: the open one, left by a crash, or later ones.

        Of later rounds nobody knows yet whether they repeat; when such a round is opened, its attempt decides.
        """
        if not (self._again or (self._attempt == "" and self._ahead)):
            return 0
        return self._on_disk(
            name, "AND round = :round AND attempt = :attempt" if self._attempt else "AND round > :round"
        )

    def _on_disk(self, name: str, which: str = "") -> int:
        which = which or "AND round >= 0"  # queries are counted apart
        table, mine = ("everybody", "") if name == ALL else ("charges", "client = :client AND")
        query = f"SELECT COUNT(*) FROM {table} WHERE {mine} run = :run {which}"
        values = {"client": name, "run": self.run, "round": self._round, "attempt": self._attempt}
        return self._db.execute(query, values).fetchone()[0]

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing; then the marks say how far the ledger has come."""
        done = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_if_changed()
            yield
            self._note_conditions()
            last = self._db.execute("SELECT number, chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
            self._db.execute("COMMIT")
            self._conditions.clear()
            for mark in self._marks if last else ():
                witness.write(mark, *last)
            done = True
        except (sqlite3.Error, OSError) as error:
            what = "a query" if self._round == QUERY else f"round {self._round + 1}"
            text = f"The ledger {self.path} could not be charged for {what} ({error})"
            raise LedgerError(f"{text}; nothing was released.") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not done:  # SQLite may have taken the transaction back by itself, or only a mark could not be written
                self._forget()

    def _write(self, paying: Sequence[tuple[Client, DpEvent]]) -> list[str]:
        """Charges whoever is not charged yet for this very release, and returns their names."""
        new = [(c, event) for c, event in paying if not (self._again and self._repeated(c.id))]
        ids, time = {event: self._event(event) for event in {event for _, event in new}}, now()
        self._db.executemany(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(c.id, self.run, self._round, self._attempt, c.budget.unit, ids[e], time) for c, e in new],
        )
        names = [client.id for client, _ in new]
        self._batch(names)
        return names

    def _event(self, event: DpEvent) -> int:
        text = text_of(event)
        if text not in self._event_ids:
            row = self._db.execute("SELECT id FROM events WHERE text = ?", (text,)).fetchone()
            self._event_ids[text] = row[0]
        return self._event_ids[text]

    def _write_everybody(self, budget: Budget, event: DpEvent) -> list[str]:
        if self._again and self._repeated(ALL):
            return []
        self._db.execute(
            "INSERT INTO everybody VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, self._round, self._attempt, budget.unit, self._event(event), now()),
        )
        self._batch([EVERYBODY])
        return [ALL]

    def _count(self, written: Sequence[str]) -> None:
        """Counts what was charged, where it is not read from the disk anyway."""
        for name in written:
            if name in self._used:
                self._used[name] += 1

    def _batch(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._link(self._round, self._attempt, *names)

    def _link(self, round: int, attempt: str, *names: str) -> None:
        """Adds a link to the chain by which a mark knows how far the ledger has come."""
        row = self._db.execute("SELECT chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        link = witness.chain(row[0] if row else "", self.run, round, attempt, *names)
        self._db.execute(
            "INSERT INTO batches (run, round, attempt, charges, chain, time) VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, round, attempt, len(names), link, now()),
        )

    def _note_conditions(self) -> None:
        for condition in self._conditions:
            condition.refuse(self._db, self.path)  # another run may have noted others meanwhile
            condition.note(self._db)

    def _close_round(self) -> None:
        """From now on `rounds_left` is about the next round, whose attempt is not known yet."""
        self._again, self._attempt = False, ""

    def _forget(self) -> None:
        super()._forget()
        self._used.clear()
        self._event_ids.clear()
