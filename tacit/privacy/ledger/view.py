"""An open ledger as one run reads it: what the run has charged, and what others have sealed. Nothing here writes.

What is asked for every client in every round is kept in memory until another connection changes the file."""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy.accounting import events, price
from tacit.privacy.ledger import filter as filters
from tacit.privacy.ledger import secret
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, Seal, Spent
from tacit.privacy.ledger.sql import ALL, EVERYBODY, QUERY, charges, connect, now
from tacit.types import Budget, Unit

BATCHES = "SELECT {} FROM batches WHERE run = ? AND round {} ?"
BEFORE = "SELECT {}, TOTAL(epsilon), TOTAL(delta) FROM seals WHERE run != ? AND {}"
UNITS: tuple[Unit, ...] = get_args(Unit)
AT_ONCE = 500  # clients that one query of the file is about


class RunView:
    """The questions that one run asks its ledger.

    Guarantee: every answer is about what has reached the disk. Those that are kept in memory (`before`, `other_runs`) are read
    again when a round is opened or charged after another run has changed the file; within the transaction of a charge nobody
    else can change it.

    Raises: LedgerError where the file cannot be opened, has an older format, or belongs to another population.
    """

    def __init__(self, path: Path, *, population: str, run: str):
        self.path, self.run = path, run
        self._before: dict[tuple[str, str], Spent] = {}
        self._others: dict[tuple[str, bool], int] = {}
        self._key = secret.key_of(path)
        self._db: sqlite3.Connection = connect(path, population=population, key=self._key)
        self._version = self._data_version()

    def composition(self, client: str | None, unit: str) -> price.Composition:
        """What this run has charged to the client in one unit, all attempts counted; of None, to every client.

        It is what `price.epsilon` takes: equal events counted together, the charges to everybody among them.
        """
        own = self._rows("charges", "client = :client AND", client, unit) if client is not None else []
        return price.compose([*own, *self._rows("everybody", "", None, unit)])

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that this run charged by itself, read at once.

        Whoever was charged only with all others is left out.
        """
        rows = self._db.execute(
            "SELECT client, events.text, COUNT(*) FROM charges JOIN events ON events.id = charges.event"
            " WHERE run = ? AND unit = ? GROUP BY client, events.text",
            (self.run, unit),
        )
        shared = self._rows("everybody", "", None, unit)
        releases: dict[str, list[tuple[DpEvent, int]]] = {}
        for client, text, count in rows:
            releases.setdefault(client, [*shared]).append((price.from_text(text), count))
        return {client: price.compose(paid) for client, paid in releases.items()}

    def before(self, client: str, unit: str) -> Spent:
        """What other runs have sealed for a client in one unit; of the empty name, for whoever has sealed most.

        Sealed means: counted in full, whether those runs go on, were abandoned, or have released less. Seals of everybody
        count for each client.
        """
        if (client, unit) not in self._before:
            if client == ALL:
                epsilon, delta = self._of_everybody(unit)
                query = f"{BEFORE.format('client, unit', 'client != ?')} AND unit = ? GROUP BY client"
                alone = self._db.execute(query, (self.run, ALL, unit)).fetchall()
                own = max((e for *_, e, _ in alone), default=0.0), max((d for *_, d in alone), default=0.0)
                self._before[ALL, unit] = Spent(epsilon + own[0], delta + own[1])
            else:
                self.read_before([client])
        return self._before[client, unit]

    def read_before(self, clients: Iterable[str]) -> None:
        """Has `before` of some clients at hand, in both units, with one look at the file for many of them."""
        new = [client for client in clients if client != ALL and (client, UNITS[0]) not in self._before]
        shared = {unit: self._of_everybody(unit) for unit in UNITS} if new else {}
        for first in range(0, len(new), AT_ONCE):
            some = new[first : first + AT_ONCE]
            query = (
                BEFORE.format("client, unit", f"client IN ({', '.join('?' * len(some))})") + " GROUP BY client, unit"
            )
            rows = self._db.execute(query, (self.run, *some))
            own = {(client, unit): (epsilon, delta) for client, unit, epsilon, delta in rows}
            for client, unit in product(some, UNITS):
                epsilon, delta = own.get((client, unit), (0.0, 0.0))
                self._before[client, unit] = Spent(shared[unit][0] + epsilon, shared[unit][1] + delta)

    def _of_everybody(self, unit: str) -> tuple[float, float]:
        """What other runs have sealed for all clients together."""
        query = f"{BEFORE.format('1, unit', 'client = ?')} AND unit = ?"
        return self._db.execute(query, (self.run, ALL, unit)).fetchone()[2:]

    def sealed_elsewhere(self, unit: str) -> Iterator[tuple[str, DpEvent, int, float, float]]:
        """(client, event, most, delta, epsilon) of every seal of other runs in one unit; the empty name is everybody.

        Raises: BadInput for an event that this version cannot price.
        """
        rows = self._db.execute(
            "SELECT client, events.text, most, delta, epsilon FROM seals JOIN events ON events.id = seals.event"
            " WHERE run != ? AND unit = ?",
            (self.run, unit),
        )
        for client, text, most, delta, epsilon in rows:
            yield client, price.from_text(text), most, delta, epsilon

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every charge of every run, oldest first, as plain values."""
        return charges(self._db)

    def charged(self) -> set[str]:
        """The clients that were ever charged by themselves, in whatever run."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM seals") if client != ALL}

    def charged_most(self) -> str | None:
        """Whom this run has charged by itself most often; None before its first such charge."""
        query = "SELECT client FROM charges WHERE run = ? AND round >= 0 GROUP BY client ORDER BY COUNT(*) DESC LIMIT 1"
        row = self._db.execute(query, (self.run,)).fetchone()
        return row[0] if row else None

    def charged_before(self, round: int, attempt: str) -> bool:
        """Whether another attempt at a round of this run was charged: another release of it may have been seen."""
        return bool(self._attempts(round) - {self.keyed(attempt)})

    def keyed(self, text: str) -> str:
        """What an attempt, or anything else that follows from rows, is called here and in a run's files."""
        return secret.keyed(self._key, text)

    def knows(self, what: int | str, *, run: str | None = None) -> bool:
        """Whether any attempt at a round (or a query, by name) of this run, or of another one, was charged.

        Charged means: it may have been released.
        """
        if isinstance(what, int):
            return self._db.execute(BATCHES.format("1", "="), (run or self.run, what)).fetchone() is not None
        rows = f"{BATCHES.format('1', '=')} AND attempt LIKE ? || ':%'"
        return self._db.execute(rows, (run or self.run, QUERY, what)).fetchone() is not None

    def answered(self, query: str, attempt: str) -> set[str]:
        """The clients that this run has charged for one attempt at a query, by what it is called here (`keyed`)."""
        rows = "SELECT client FROM charges WHERE run = ? AND round = ? AND attempt = ?"
        return {client for (client,) in self._db.execute(rows, (self.run, QUERY, f"{query}:{attempt}"))}

    def charged_rounds(self) -> int:
        """How many releases of this run are on disk: a round that was paid for twice counts twice."""
        rows = "SELECT run, round, attempt FROM charges UNION SELECT run, round, attempt FROM everybody"
        counted = f"SELECT COUNT(*) FROM ({rows}) WHERE run = ? AND round >= 0"  # queries belong to no round
        return self._db.execute(counted, (self.run,)).fetchone()[0]

    def other_runs(self, unit: Unit, *, apart: bool = False) -> int:
        """How many other runs have sealed a price in this unit; with `apart`, in the other one. The two are never added."""
        self._forget_if_changed()
        if (unit, apart) not in self._others:
            query = f"SELECT COUNT(DISTINCT run) FROM seals WHERE run != ? AND unit {'!=' if apart else '='} ?"
            self._others[unit, apart] = self._db.execute(query, (self.run, unit)).fetchone()[0]
        return self._others[unit, apart]

    def link(self, number: int) -> str | None:
        """The chained hash of a batch of charges (tacit/privacy/ledger/reader.py); None where there is no such batch."""
        row = self._db.execute("SELECT chain FROM batches WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def __repr__(self) -> str:
        count = sum(self._db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("charges", "everybody"))
        return f"Ledger({str(self.path)!r}: {count} charges; entries() lists them)"

    def close(self) -> None:
        """Closes the file. Nothing is pending: every charge was written when it was made."""
        self._db.close()

    def _attempts(self, round: int) -> set[str]:
        return {name for (name,) in self._db.execute(BATCHES.format("attempt", "="), (self.run, round))}

    def _rows(self, table: str, mine: str, client: str | None, unit: str) -> list[tuple[DpEvent, int]]:
        rows = self._db.execute(
            f"SELECT events.text, COUNT(*) FROM {table} JOIN events ON events.id = {table}.event"
            f" WHERE {mine} run = :run AND unit = :unit GROUP BY events.text",
            {"client": client, "run": self.run, "unit": unit},
        )
        return [(price.from_text(text), count) for text, count in rows]

    def _forget_if_changed(self) -> None:
        if self._data_version() != self._version:  # another run charged the same ledger meanwhile
            self._version = self._data_version()
            self._forget()

    def _forget(self) -> None:
        self._before.clear()
        self._others.clear()

    def _data_version(self) -> int:
        return self._db.execute("PRAGMA data_version").fetchone()[0]


# What a run may release about each client, sealed once: within the transaction of the client's first charge.

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
