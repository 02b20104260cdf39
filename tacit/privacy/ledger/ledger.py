"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is
released.

SQLite with `synchronous=FULL`: when `admit` returns, the charge has reached the disk. Entries are never changed or
removed. Record-level and client-level charges are kept apart and never added.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of
(tacit/build/release.py): a resumed round that repeats the very same release is paid once; anything else, however small the change,
is another attempt and is paid again. Within a run a client's event never changes: another one is refused, not ignored.

Before a client's first charge in a run, the price of all it may release there is sealed (tacit/privacy/ledger/filter.py), and what
other runs have sealed counts as spent. Where the secret choice of a cohort is part of the price, every client pays for
every round, drawn or not: one row in the table `everybody`, and one seal whose client is the empty name.
"""

import datetime
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import BadInput, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import filter as seals
from tacit.privacy.ledger import witness
from tacit.privacy.ledger.conditions import Condition
from tacit.privacy.ledger.filter import Seal, Spent
from tacit.privacy.ledger.tables import FORMAT, connect
from tacit.types import Budget, Client, Unit

__all__ = ["EVERYBODY", "FORMAT", "Ledger"]

EVERYBODY = "every client"  # how `entries` names whom a charge to all is for
ALL = ""  # whose seal that is
BATCHES = "SELECT {} FROM batches WHERE run = ? AND round {} ?"

Cost = Callable[[Client], DpEvent]


class Ledger:
    """A ledger file, opened for one start of one run, which may spend `delta` in all and plans so many `rounds`.

    A client's budget holds the run's own share of delta; without `delta` the run has all of it. `most_epsilon` is what the run
    may cost a client by itself, where less was promised than the budget has left. Guarantee: after `admit`
    returns, what it charged is on disk; `spent` never reports less than what was charged. `marks` are files that say how
    far the ledger has come; `conditions` are what the ledger must not contradict, noted there with the first charge.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        population: str,
        run: str,
        delta: float | None = None,
        rounds: int = 10**6,
        most_epsilon: float = math.inf,
        accountant: str = "pld",
        marks: Sequence[Path] = (),
        conditions: Sequence[Condition] = (),
    ):
        self.path, self.run, self.accountant = Path(path), run, accountant
        self._delta, self._rounds, self._marks = delta, rounds, tuple(marks)
        self._most_epsilon = most_epsilon
        self._round, self._attempt = 0, ""
        self._ahead = False  # whether rounds after the open one are on disk: those of a run that lost its checkpoint
        self._again = False  # whether the open round is on disk
        self._seals: dict[str, Seal | None] = {}
        self._used: dict[str, int] = {}
        self._before: dict[tuple[str, str], Spent] = {}
        self._events: dict[str, int] = {}
        self._relations: dict[str, set[bool]] = {}
        self._others: dict[tuple[str, bool], int] = {}
        for mark in self._marks:
            witness.refuse_lost(self.path, mark)
        self._db = connect(self.path, population=population)
        for mark in self._marks:
            witness.refuse_older(self, mark)
        self._conditions = list(conditions)
        for condition in self._conditions:
            condition.refuse(self._db, self.path)
        self._version = self._data_version()

    def open_round(self, round: int, attempt: str) -> None:
        """Says which release of which round is paid for. What is on disk for the very same one was left by a crash."""
        self._round, self._attempt = round, attempt
        found = {name for (name,) in self._db.execute(BATCHES.format("attempt", "="), (self.run, round))}
        self._again = attempt in found
        self._ahead = self._db.execute(BATCHES.format("1", ">"), (self.run, round)).fetchone() is not None
        self._forget_if_changed()

    def admit(self, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for the open round and returns them; the charge is on disk on return.

        Raises LedgerError if the charge could not be written, or is another than was sealed: then nothing may be released.
        """
        with self._charging():
            priced = [(client, cost(client)) for client in clients]
            paying = [(c, event) for c, event in priced if self.rounds_left(c, event, hint=hint) >= 1]
            for client, event in paying:
                self._seal(client.id, client.budget, event, hint)
            written = self._write(paying)
        self._count(written)
        self._close_round()
        return [client for client, _ in paying]

    def admit_everybody(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> bool:
        """Charges every client of the population for the open round, if each can pay within `budget`; else nobody.

        The charge is one row, whatever the size of the population, and on disk on return. Raises LedgerError if it could not
        be written: then nothing may be released.
        """
        written: list[str] = []
        with self._charging():
            left = self.rounds_left_to_all(budget, event, hint=hint)
            if left >= 1:
                self._seal(ALL, budget, event, hint)
                written = self._write_everybody(budget, event)
        self._count(written)
        if left >= 1:
            self._close_round()
        return left >= 1

    def rounds_left_to_all(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, every client can pay for."""
        return self._left(ALL, budget, event, hint)

    def rounds_left(self, client: Client, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, the client can pay for in this run."""
        return self._left(client.id, client.budget, event, hint)

    def spent(self, client: Client) -> float:
        """The epsilon of all that other runs have sealed and of all that this one has charged, in the budget's unit."""
        return self.before(client.id, client.budget.unit).epsilon + self.alone(client)

    def alone(self, client: Client) -> float:
        """The epsilon, at the run's delta, of what this run has charged to the client."""
        composition = self.composition(client.id, client.budget.unit)
        return price.epsilon(composition, delta=client.budget.delta, accountant=self.accountant)

    def composition(self, client: str | None, unit: str) -> price.Composition:
        """What this run has charged to the client in one unit; of None, to every client."""
        own = self._rows("charges", "client = :client AND", client, unit) if client is not None else []
        return price.compose([*own, *self._rows("everybody", "", None, unit)])

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that this run charged by itself, read at once."""
        rows = self._db.execute(
            "SELECT client, events.text, COUNT(*) FROM charges JOIN events ON events.id = charges.event"
            " WHERE run = ? AND unit = ? GROUP BY client, events.text",
            (self.run, unit),
        )
        shared = self._rows("everybody", "", None, unit)
        charges: dict[str, list[tuple[DpEvent, int]]] = {}
        for client, text, count in rows:
            charges.setdefault(client, [*shared]).append((price.from_text(text), count))
        return {client: price.compose(events) for client, events in charges.items()}

    def before(self, client: str, unit: str) -> Spent:
        """What other runs have sealed for a client in one unit; of the empty name, for whoever has sealed most."""
        if (client, unit) not in self._before:
            query = "SELECT TOTAL(epsilon), TOTAL(delta) FROM seals WHERE client = ? AND run != ? AND unit = ?"
            epsilon, delta = self._db.execute(query, (ALL, self.run, unit)).fetchone()
            if client == ALL:
                query = f"{query.replace('client = ?', 'client != ?')} GROUP BY client"
                alone = self._db.execute(query, (ALL, self.run, unit)).fetchall()
                own = max((e for e, _ in alone), default=0.0), max((d for _, d in alone), default=0.0)
            else:
                own = self._db.execute(query, (client, self.run, unit)).fetchone()
            self._before[client, unit] = Spent(epsilon + own[0], delta + own[1])
        return self._before[client, unit]

    def sealed_elsewhere(self, unit: str) -> Iterator[tuple[str, DpEvent, int, float, float]]:
        """(client, event, most, delta, epsilon) of every seal of other runs in one unit; the empty name is everybody."""
        rows = self._db.execute(
            "SELECT client, events.text, most, delta, epsilon FROM seals JOIN events ON events.id = seals.event"
            " WHERE run != ? AND unit = ?",
            (self.run, unit),
        )
        for client, text, most, delta, epsilon in rows:
            yield client, price.from_text(text), most, delta, epsilon

    def entries(self) -> Iterator[dict]:
        """Every charge, oldest round first, as plain values."""
        names = ("run", "round", "attempt", "client", "unit", "event", "time")
        rows = self._db.execute(
            "SELECT run, round, attempt, client, unit, text, time FROM"
            f" (SELECT * FROM charges UNION ALL SELECT '{EVERYBODY}', * FROM everybody) AS paid"
            " JOIN events ON events.id = paid.event ORDER BY time, run, round, client"
        )
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def charged(self) -> set[str]:
        """The clients that were ever charged, in whatever run."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM seals") if client != ALL}

    def charged_before(self, round: int, attempt: str) -> bool:
        """Whether another attempt at a round of this run was charged."""
        found = {name for (name,) in self._db.execute(BATCHES.format("attempt", "="), (self.run, round))}
        return bool(found - {attempt})

    def knows(self, round: int, *, run: str | None = None) -> bool:
        """Whether any attempt at a round of this run, or of another one, was charged."""
        return self._db.execute(BATCHES.format("1", "="), (run or self.run, round)).fetchone() is not None

    def charged_rounds(self) -> int:
        """How many releases of this run are on disk, over all attempts."""
        rows = "SELECT run, round, attempt FROM charges UNION SELECT run, round, attempt FROM everybody"
        return self._db.execute(f"SELECT COUNT(*) FROM ({rows}) WHERE run = ?", (self.run,)).fetchone()[0]

    def other_runs(self, unit: Unit, *, apart: bool = False) -> int:
        """How many other runs have sealed a price in this unit; with `apart`, in the other one."""
        self._forget_if_changed()
        if (unit, apart) not in self._others:
            query = f"SELECT COUNT(DISTINCT run) FROM seals WHERE run != ? AND unit {'!=' if apart else '='} ?"
            self._others[unit, apart] = self._db.execute(query, (self.run, unit)).fetchone()[0]
        return self._others[unit, apart]

    def link(self, number: int) -> str | None:
        """The chained hash of one batch of charges, or None where there is none of that number."""
        row = self._db.execute("SELECT chain FROM batches WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def __repr__(self) -> str:
        count = sum(self._db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("charges", "everybody"))
        return f"Ledger({str(self.path)!r}: {count} charges; entries() lists them)"

    def close(self) -> None:
        """Closes the file. Nothing is pending: every charge was written when it was made."""
        self._db.close()

    def _left(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        known, before = self._seal_of(name), self.before(name, budget.unit)
        if known is None:
            return self._affordable(budget, event, before, hint)
        seals.refuse_other(known, budget, event, who=name or EVERYBODY, path=self.path)
        most = known.most
        if not seals.stands(known, budget, before=before, most_epsilon=self._most_epsilon):
            most = min(most, self._affordable(budget, event, before, hint))
        return most - self._used_by(name) + self._repeated(name)

    def _affordable(self, budget: Budget, event: DpEvent, before: Spent, hint: int) -> int:
        self._refuse_other_relation(budget.unit, event)
        total = budget.delta if self._delta is None else self._delta
        limits = {"before": before, "total_delta": total, "rounds": self._rounds, "accountant": self.accountant}
        limits["most_epsilon"] = self._most_epsilon
        return seals.most_releases(budget, event, **limits, hint=hint)

    def _refuse_other_relation(self, unit: str, event: DpEvent) -> None:
        """Replacing one unit and adding or removing one are different promises, and their epsilons do not add up."""
        if unit not in self._relations:
            query = "SELECT DISTINCT text FROM events JOIN seals ON events.id = seals.event WHERE unit = ? AND run != ?"
            texts = self._db.execute(query, (unit, self.run)).fetchall()
            self._relations[unit] = {price.replaces_one(_inner(price.from_text(text))) for (text,) in texts}
        if self._relations[unit] - {price.replaces_one(_inner(event))}:
            raise BadInput(
                "Fixed-size cohorts (replace one) and other releases (add or remove one) have no common price:"
                " use another privacy.ledger."
            )

    def _seal_of(self, name: str) -> Seal | None:
        if name not in self._seals:
            row = self._db.execute(
                "SELECT unit, text, delta, most, epsilon FROM seals JOIN events ON events.id = seals.event"
                " WHERE client = ? AND run = ?",
                (name, self.run),
            ).fetchone()
            self._seals[name] = Seal(*row) if row else None
        return self._seals[name]

    def _seal(self, name: str, budget: Budget, event: DpEvent, hint: int) -> None:
        """Seals what the run may release about a client, once, within the transaction of its first charge."""
        if self._seal_of(name) is not None:
            return
        self._refuse_mixture(name)
        most = self._affordable(budget, event, self.before(name, budget.unit), hint)
        made = seals.seal(budget, event, most=most, accountant=self.accountant)
        self._db.execute("INSERT OR IGNORE INTO events (text) VALUES (?)", (made.event,))
        self._db.execute(
            "INSERT INTO seals SELECT ?, ?, ?, id, ?, ?, ?, ? FROM events WHERE text = ?",
            (name, self.run, made.unit, made.delta, made.most, made.epsilon, _now(), made.event),
        )
        self._seals[name] = made

    def _refuse_mixture(self, name: str) -> None:
        """In one run either all pay together or each for itself: one share of delta covers one of the two."""
        other = "!=" if name == ALL else "="
        if self._db.execute(f"SELECT 1 FROM seals WHERE run = ? AND client {other} ?", (self.run, ALL)).fetchone():
            raise LedgerError(
                f"In one run of the ledger {self.path} either all clients pay together or each for itself."
            )

    def _used_by(self, name: str) -> int:
        """How many releases of this run are on disk for a client, over all attempts."""
        if name not in self._used:
            table, mine = ("everybody", "") if name == ALL else ("charges", "client = :client AND")
            query = f"SELECT COUNT(*) FROM {table} WHERE {mine} run = :run"
            self._used[name] = self._db.execute(query, {"client": name, "run": self.run}).fetchone()[0]
        return self._used[name]

    def _repeated(self, name: str) -> int:
        """How many of the releases on disk are those still to come: the open one, left by a crash, or later ones.

        Of later rounds nobody knows yet whether they repeat; when such a round is opened, its attempt decides.
        """
        if not (self._again or (self._attempt == "" and self._ahead)):
            return 0
        table, mine = ("everybody", "") if name == ALL else ("charges", "client = :client AND")
        where = "round = :round AND attempt = :attempt" if self._attempt else "round > :round"
        query = f"SELECT COUNT(*) FROM {table} WHERE {mine} run = :run AND {where}"
        values = {"client": name, "run": self.run, "round": self._round, "attempt": self._attempt}
        return self._db.execute(query, values).fetchone()[0]

    def _rows(self, table: str, mine: str, client: str | None, unit: str) -> list[tuple[DpEvent, int]]:
        rows = self._db.execute(
            f"SELECT events.text, COUNT(*) FROM {table} JOIN events ON events.id = {table}.event"
            f" WHERE {mine} run = :run AND unit = :unit GROUP BY events.text",
            {"client": client, "run": self.run, "unit": unit},
        )
        return [(price.from_text(text), count) for text, count in rows]

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing; then the marks say how far the ledger has come."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_if_changed()
            yield
            self._note_conditions()
            last = self._db.execute("SELECT number, chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
            self._db.execute("COMMIT")
            self._conditions.clear()
            self._version = self._data_version()
            for mark in self._marks if last else ():
                witness.write(mark, *last)
        except (sqlite3.Error, OSError) as error:
            text = f"The ledger {self.path} could not be charged for round {self._round} ({error})"
            raise LedgerError(f"{text}; nothing was released.") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
                self._forget()

    def _write(self, paying: Sequence[tuple[Client, DpEvent]]) -> list[str]:
        """Charges whoever is not charged yet for this very release, and returns their names."""
        new = [(c, event) for c, event in paying if not (self._again and self._repeated(c.id))]
        ids, now = {event: self._event(event) for event in {event for _, event in new}}, _now()
        self._db.executemany(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(c.id, self.run, self._round, self._attempt, c.budget.unit, ids[e], now) for c, e in new],
        )
        names = [client.id for client, _ in new]
        self._batch(names)
        return names

    def _event(self, event: DpEvent) -> int:
        text = seals.text_of(event)
        if text not in self._events:
            row = self._db.execute("SELECT id FROM events WHERE text = ?", (text,)).fetchone()
            self._events[text] = row[0]
        return self._events[text]

    def _write_everybody(self, budget: Budget, event: DpEvent) -> list[str]:
        if self._again and self._repeated(ALL):
            return []
        self._db.execute(
            "INSERT INTO everybody VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, self._round, self._attempt, budget.unit, self._event(event), _now()),
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
        row = self._db.execute("SELECT chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        link = witness.chain(row[0] if row else "", self.run, self._round, self._attempt, *names)
        self._db.execute(
            "INSERT INTO batches (run, round, attempt, charges, chain, time) VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, self._round, self._attempt, len(names), link, _now()),
        )

    def _note_conditions(self) -> None:
        for condition in self._conditions:
            condition.refuse(self._db, self.path)  # another run may have noted others meanwhile
            condition.note(self._db)

    def _close_round(self) -> None:
        """From now on `rounds_left` is about the next round, whose attempt is not known yet."""
        self._again, self._attempt = False, ""

    def _forget_if_changed(self) -> None:
        if self._data_version() != self._version:  # another run charged the same ledger meanwhile
            self._version = self._data_version()
            self._forget()

    def _forget(self) -> None:
        self._before.clear()
        self._seals.clear()
        self._used.clear()
        self._events.clear()
        self._relations.clear()
        self._others.clear()

    def _data_version(self) -> int:
        return self._db.execute("PRAGMA data_version").fetchone()[0]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _inner(event: DpEvent) -> DpEvent:
    """An event without the counts around it."""
    ((inner, _),) = price.compose([(event, 1)])
    return inner
