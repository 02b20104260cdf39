"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is
released.

SQLite with `synchronous=FULL`: when `admit` returns, the charge has reached the disk. Entries are never changed or
removed, and add up over all runs that share the file. Record-level and client-level charges are kept apart and never
added.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of: with
seeded randomness a resumed round repeats the very same release and is paid once; with the operating system's randomness
every start is a new attempt, so a repeated round is paid again.
"""

import datetime
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy import price
from tacit.privacy.calibrate import affordable
from tacit.types import Budget, Client

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS charges (
    client TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, attempt TEXT NOT NULL,
    unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events (id), time TEXT NOT NULL,
    PRIMARY KEY (client, run, round, attempt)
) WITHOUT ROWID;
"""
FORMAT = "1"
BUSY_SECONDS = 60.0  # how long a second run on the same ledger waits for its turn

Cost = Callable[[Client], DpEvent]


class Ledger:
    """A ledger file, opened for one attempt at one run.

    Guarantee: after `admit` returns, what it charged is on disk; `spent` never reports less than what was charged.
    """

    def __init__(self, path: Path | str, *, population: str, run: str, attempt: str, accountant: str = "pld"):
        self.path, self.run, self.attempt, self.accountant = Path(path), run, attempt, accountant
        self._round = 0
        self._before: dict[tuple[str, str], price.Composition] = {}
        self._left: dict[str, tuple[DpEvent, Budget, int]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            self._fact("format", FORMAT, "was written by another version of Tacit")
            self._fact("population", population, "belongs to other data or another partition of it")
            self._version = self._data_version()
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"The ledger {self.path} cannot be opened ({error}); nothing was released.") from error

    def open_round(self, round: int) -> None:
        """Says which round is being paid for. This attempt's own charges for it, left by a crash, are for the same bits."""
        if round != self._round:
            self._round = round
            self._forget()
        elif self._data_version() != self._version:  # another run charged the same ledger meanwhile
            self._version = self._data_version()
            self._forget()

    def admit(self, clients: Sequence[Client], cost: Cost, *, most: int = 10**7, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for the open round and returns them; the charge is on disk on return.

        Raises LedgerError if the charge could not be written: then nothing may be released.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self.open_round(self._round)
            priced = [(client, cost(client)) for client in clients]
            paying = [(c, event) for c, event in priced if self.rounds_left(c, event, most=most, hint=hint) >= 1]
            self._write(paying)
            self._db.execute("COMMIT")
            self._version = self._data_version()
        except sqlite3.Error as error:
            self._roll_back()
            text = (
                f"The ledger {self.path} could not be charged for round {self._round} ({error}); nothing was released."
            )
            raise LedgerError(text) from error
        for client, event in paying:
            self._count(client, event)
        self._round += 1
        return [client for client, _ in paying]

    def rounds_left(self, client: Client, event: DpEvent, *, most: int = 10**7, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, the client can pay for; solved once, then counted down.

        `most` bounds the search; `hint` is a first guess.
        """
        known = self._left.get(client.id)
        if known is None or known[:2] != (event, client.budget):
            budget = client.budget
            left = affordable(
                event,
                epsilon=budget.epsilon,
                delta=budget.delta,
                spent=self._spent_before(client.id, budget.unit),
                accountant=self.accountant,
                most=most,
                hint=hint,
            )
            known = self._left[client.id] = (event, budget, left)
        return known[2]

    def spent(self, client: Client) -> float:
        """The epsilon, at the client's delta, of everything on disk that it was charged for in its budget's unit."""
        composition = self.composition(client.id, client.budget.unit)
        return price.epsilon(composition, delta=client.budget.delta, accountant=self.accountant)

    def composition(self, client: str, unit: str) -> price.Composition:
        """Everything on disk that the client was charged for in one unit."""
        return self._read(client, unit, "")

    def _spent_before(self, client: str, unit: str) -> price.Composition:
        key = (client, unit)
        if key not in self._before:
            own = " AND NOT (run = :run AND attempt = :attempt AND round >= :round)"
            self._before[key] = self._read(client, unit, own)
        return self._before[key]

    def _read(self, client: str, unit: str, condition: str) -> price.Composition:
        rows = self._db.execute(
            "SELECT events.text, COUNT(*) FROM charges JOIN events ON events.id = charges.event"
            f" WHERE client = :client AND unit = :unit{condition} GROUP BY events.text",
            {"client": client, "unit": unit, "run": self.run, "attempt": self.attempt, "round": self._round},
        )
        return price.compose((price.from_text(text), count) for text, count in rows)

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that was ever charged, read at once."""
        rows = self._db.execute(
            "SELECT client, events.text, COUNT(*) FROM charges JOIN events ON events.id = charges.event"
            " WHERE unit = ? GROUP BY client, events.text",
            (unit,),
        )
        charges: dict[str, list[tuple[DpEvent, int]]] = {}
        for client, text, count in rows:
            charges.setdefault(client, []).append((price.from_text(text), count))
        return {client: price.compose(events) for client, events in charges.items()}

    def entries(self) -> Iterator[dict]:
        """Every charge, oldest round first, as plain values."""
        names = ("run", "round", "attempt", "client", "unit", "event", "time")
        rows = self._db.execute(
            "SELECT run, round, attempt, client, unit, text, time FROM charges JOIN events ON events.id = charges.event"
            " ORDER BY time, run, round, client"
        )
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def charged(self) -> set[str]:
        """The clients that were ever charged."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM charges")}

    def charged_before(self, round: int) -> bool:
        """Whether another attempt at this run was charged for a round."""
        condition = "run = ? AND round = ? AND attempt != ?"
        row = self._db.execute(f"SELECT 1 FROM charges WHERE {condition}", (self.run, round, self.attempt)).fetchone()
        return row is not None

    def other_runs(self) -> int:
        """How many runs beside this one have been charged here."""
        return self._db.execute("SELECT COUNT(DISTINCT run) FROM charges WHERE run != ?", (self.run,)).fetchone()[0]

    def __repr__(self) -> str:
        count = self._db.execute("SELECT COUNT(*) FROM charges").fetchone()[0]
        return f"Ledger({str(self.path)!r}: {count} charges; entries() lists them)"

    def close(self) -> None:
        """Closes the file. Nothing is pending: every charge was written when it was made."""
        self._db.close()

    def _write(self, paying: Sequence[tuple[Client, DpEvent]]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        texts = {event: price.to_text(event) for event in {event for _, event in paying}}
        self._db.executemany("INSERT OR IGNORE INTO events (text) VALUES (?)", [(text,) for text in texts.values()])
        # a row that stands already is this attempt's own charge for the very same release (see the module's text)
        self._db.executemany(
            "INSERT OR IGNORE INTO charges SELECT ?, ?, ?, ?, ?, id, ? FROM events WHERE text = ?",
            [(c.id, self.run, self._round, self.attempt, c.budget.unit, now, texts[event]) for c, event in paying],
        )

    def _count(self, client: Client, event: DpEvent) -> None:
        self._before.pop((client.id, client.budget.unit), None)  # read again if it is ever needed
        self._left[client.id] = (event, client.budget, self._left[client.id][2] - 1)

    def _forget(self) -> None:
        self._before.clear()
        self._left.clear()

    def _fact(self, name: str, value: str, otherwise: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]
        if found != value:
            text = f"The ledger {self.path} {otherwise} ({name} {found}, here {value}); name another privacy.ledger."
            raise LedgerError(text)

    def _data_version(self) -> int:
        return self._db.execute("PRAGMA data_version").fetchone()[0]

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
