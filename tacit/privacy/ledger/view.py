"""An open ledger as one run reads it: what the run has charged, and what others have sealed. Nothing here writes.

What is asked for every client in every round is kept in memory until another connection changes the file.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

from dp_accounting import DpEvent

from tacit.privacy.accounting import price
from tacit.privacy.ledger.filter import Spent
from tacit.privacy.ledger.tables import ALL, QUERY, charges, connect
from tacit.types import Unit

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
        self._db: sqlite3.Connection = connect(path, population=population)
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
        return bool(self._attempts(round) - {attempt})

    def knows(self, what: int | str, *, run: str | None = None) -> bool:
        """Whether any attempt at a round (or a query, by name) of this run, or of another one, was charged.

        Charged means: it may have been released.
        """
        if isinstance(what, int):
            return self._db.execute(BATCHES.format("1", "="), (run or self.run, what)).fetchone() is not None
        rows = f"{BATCHES.format('1', '=')} AND attempt LIKE ? || ':%'"
        return self._db.execute(rows, (run or self.run, QUERY, what)).fetchone() is not None

    def answered(self, query: str, attempt: str) -> set[str]:
        """The clients that this run has charged for one attempt at a query."""
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
        """The chained hash of a batch of charges (tacit/privacy/ledger/witness.py); None where there is no such batch."""
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
