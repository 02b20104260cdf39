"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is
released.

SQLite with `synchronous=FULL`: when `admit` returns, the charge has reached the disk. Entries are never changed or
removed, and add up over all runs that share the file. Record-level and client-level charges are kept apart and never
added.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of: with
seeded randomness a resumed round repeats the very same release and is paid once; with the operating system's randomness
every start is a new attempt, so a repeated round is paid again.

Where the secret choice of a cohort is part of the price, every client of the population pays for every round, drawn or
not. That is one row in the table `everybody`; whatever reads a client's charges adds it.
"""

import datetime
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
CREATE TABLE IF NOT EXISTS everybody (
    run TEXT NOT NULL, round INTEGER NOT NULL, attempt TEXT NOT NULL,
    unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events (id), time TEXT NOT NULL,
    PRIMARY KEY (run, round, attempt)
) WITHOUT ROWID;
UPDATE facts SET value = '2' WHERE name = 'format' AND value = '1';
"""
FORMAT = "2"  # 1 had no charges for everybody: a version that only knows 1 would not count them, so it must refuse
EVERYBODY = "every client"  # how `entries` names whom such a row charges
OWN = "run = :run AND attempt = :attempt AND round >= :round"  # what this attempt is about to repeat, bit for bit
BUSY_SECONDS = 60.0  # how long a second run on the same ledger waits for its turn

Cost = Callable[[Client], DpEvent]


class Ledger:
    """A ledger file, opened for one attempt at one run.

    Guarantee: after `admit` returns, what it charged is on disk; `spent` never reports less than what was charged.
    """

    def __init__(self, path: Path | str, *, population: str, run: str, attempt: str, accountant: str = "pld"):
        self.path, self.run, self.attempt, self.accountant = Path(path), run, attempt, accountant
        self._round = 0
        self._before: dict[tuple[str | None, str], price.Composition] = {}
        self._left: dict[str | None, tuple[DpEvent, Budget, int]] = {}  # None: everybody
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
        with self._charging():
            priced = [(client, cost(client)) for client in clients]
            paying = [(c, event) for c, event in priced if self.rounds_left(c, event, most=most, hint=hint) >= 1]
            self._write(paying)
        self._left.pop(None, None)
        for client, event in paying:
            self._count(client, event)
        self._round += 1
        return [client for client, _ in paying]

    def admit_everybody(self, budget: Budget, event: DpEvent, *, most: int = 10**7, hint: int = 1) -> bool:
        """Charges every client of the population for the open round, if each can pay within `budget`; else nobody.

        The charge is one row, whatever the size of the population, and on disk on return. Raises LedgerError if it could not
        be written: then nothing may be released.
        """
        with self._charging():
            left = self.rounds_left_to_all(budget, event, most=most, hint=hint)
            if left >= 1:
                self._write_everybody(budget, event)
        if left >= 1:
            self._before.clear()
            self._left = {None: (event, budget, left - 1)}
            self._round += 1
        return left >= 1

    def rounds_left_to_all(self, budget: Budget, event: DpEvent, *, most: int = 10**7, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, every client can pay for; solved once, then counted down."""
        known = self._left.get(None)
        if known is None or known[:2] != (event, budget):
            spent = {
                self._spent_before(None, budget.unit),
                *self._compositions(budget.unit, f" AND NOT ({OWN})").values(),
            }
            limits = {"epsilon": budget.epsilon, "delta": budget.delta, "accountant": self.accountant, "most": most}
            left = min(affordable(event, spent=one, hint=hint, **limits) for one in spent)
            known = self._left[None] = (event, budget, left)
        return known[2]

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

    def composition(self, client: str | None, unit: str) -> price.Composition:
        """Everything on disk that the client was charged for in one unit; of None, what every client was charged for."""
        return self._read(client, unit, "")

    def _spent_before(self, client: str | None, unit: str) -> price.Composition:
        key = (client, unit)
        if key not in self._before:
            shared = () if client is None else self._spent_before(None, unit)
            own = self._rows("charges" if client is not None else "everybody", client, unit, f" AND NOT ({OWN})")
            self._before[key] = price.compose([*shared, *own])
        return self._before[key]

    def _read(self, client: str | None, unit: str, condition: str) -> price.Composition:
        own = self._rows("charges", client, unit, condition) if client is not None else []
        return price.compose([*own, *self._rows("everybody", None, unit, condition)])

    def _rows(self, table: str, client: str | None, unit: str, condition: str) -> list[tuple[DpEvent, int]]:
        mine = "client = :client AND " if client is not None else ""
        rows = self._db.execute(
            f"SELECT events.text, COUNT(*) FROM {table} JOIN events ON events.id = {table}.event"
            f" WHERE {mine}unit = :unit{condition} GROUP BY events.text",
            {"client": client, "unit": unit, "run": self.run, "attempt": self.attempt, "round": self._round},
        )
        return [(price.from_text(text), count) for text, count in rows]

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that was ever charged by itself, read at once."""
        return self._compositions(unit, "")

    def _compositions(self, unit: str, condition: str) -> dict[str, price.Composition]:
        rows = self._db.execute(
            "SELECT client, events.text, COUNT(*) FROM charges JOIN events ON events.id = charges.event"
            f" WHERE unit = :unit{condition} GROUP BY client, events.text",
            {"unit": unit, "run": self.run, "attempt": self.attempt, "round": self._round},
        )
        shared = self._rows("everybody", None, unit, condition)
        charges: dict[str, list[tuple[DpEvent, int]]] = {}
        for client, text, count in rows:
            charges.setdefault(client, [*shared]).append((price.from_text(text), count))
        return {client: price.compose(events) for client, events in charges.items()}

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
        """The clients that were ever charged."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM charges")}

    def charged_before(self, round: int) -> bool:
        """Whether another attempt at this run was charged for a round."""
        condition = "run = ? AND round = ? AND attempt != ?"
        row = self._db.execute(f"SELECT 1 FROM charges WHERE {condition}", (self.run, round, self.attempt)).fetchone()
        return row is not None

    def charged_rounds(self) -> int:
        """How many rounds of this run are on disk, over all attempts."""
        rows = "SELECT run, round, attempt FROM charges UNION SELECT run, round, attempt FROM everybody"
        return self._db.execute(f"SELECT COUNT(*) FROM ({rows}) WHERE run = ?", (self.run,)).fetchone()[0]

    def other_runs(self) -> int:
        """How many runs beside this one have been charged here."""
        runs = "SELECT run FROM charges UNION SELECT run FROM everybody"
        return self._db.execute(f"SELECT COUNT(*) FROM ({runs}) WHERE run != ?", (self.run,)).fetchone()[0]

    def __repr__(self) -> str:
        count = sum(self._db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("charges", "everybody"))
        return f"Ledger({str(self.path)!r}: {count} charges; entries() lists them)"

    def close(self) -> None:
        """Closes the file. Nothing is pending: every charge was written when it was made."""
        self._db.close()

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self.open_round(self._round)
            yield
            self._db.execute("COMMIT")
            self._version = self._data_version()
        except sqlite3.Error as error:
            text = f"The ledger {self.path} could not be charged for round {self._round} ({error})"
            raise LedgerError(f"{text}; nothing was released.") from error
        finally:
            self._roll_back()

    def _write_everybody(self, budget: Budget, event: DpEvent) -> None:
        now, text = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"), price.to_text(event)
        self._db.execute("INSERT OR IGNORE INTO events (text) VALUES (?)", (text,))
        self._db.execute(
            "INSERT OR IGNORE INTO everybody SELECT ?, ?, ?, ?, id, ? FROM events WHERE text = ?",
            (self.run, self._round, self.attempt, budget.unit, now, text),
        )

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
