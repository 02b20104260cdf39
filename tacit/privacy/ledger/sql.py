"""The tables of a ledger file, and how a file is opened: sound, of this format, and of this population.

`facts` says what the file is. `seals` are prices fixed before a run's first release, `charges` (of one client) and `everybody`
(of all) what was really released, each naming its event in `events`. `asked` are the queries that a client's seal pays for beside
its rounds; they are charged under the round QUERY. `batches` chain all charges by hashes, and notes of what was released (NOTE).
`draws`, `held` and `holdings` are what the runs of one file must agree on (conditions.py, holdings.py). Whatever follows from rows
(the population, attempts, the three last tables) is a hash under the ledger's key (secret.py)."""

import datetime
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tacit import store
from tacit.errors import LedgerError
from tacit.machine import keeps_modes
from tacit.privacy.ledger import secret

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
CREATE TABLE IF NOT EXISTS seals (
    client TEXT NOT NULL, run TEXT NOT NULL, unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events (id),
    delta REAL NOT NULL, most INTEGER NOT NULL, epsilon REAL NOT NULL, time TEXT NOT NULL,
    PRIMARY KEY (client, run)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS asked (
    client TEXT NOT NULL, run TEXT NOT NULL, query TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events (id),
    PRIMARY KEY (client, run, query)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, round INTEGER NOT NULL, attempt TEXT NOT NULL,
    charges INTEGER NOT NULL, chain TEXT NOT NULL, time TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_of_a_run ON batches (run, round, attempt);
CREATE TABLE IF NOT EXISTS draws (key TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS held (
    row BLOB NOT NULL, client TEXT NOT NULL, first INTEGER NOT NULL, most INTEGER NOT NULL,
    PRIMARY KEY (row, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holdings (digest TEXT PRIMARY KEY, time TEXT NOT NULL);
"""
OTHER_DATA = (
    "belongs to other data or another partition of it, or rows are dealt out or held out by another seed (data.seed, run.seed)"
    " or share"
)
FORMAT = "3"  # 1 and 2 had no sealed prices, so what other runs may still spend is not known there
EVERYBODY = "every client"  # how `charges` names whom a charge to all is for
ALL = ""  # whose seal that is
QUERY = -1  # the round under which queries are charged: they belong to none
COLUMNS: tuple[str, ...] = ("run", "round", "attempt", "client", "unit", "event", "time")  # of a charge
NOTE = -2  # the round of a batch without charges, which notes what was released (`Ledger.release`)
SECRET = "secret"  # whose keyed hash says which secret is the ledger's
OWNER = 0o600
BUSY_SECONDS = 60.0  # how long a second run on the same ledger waits for its turn


def connect(path: Path, *, population: str, key: bytes) -> sqlite3.Connection:
    """Opens or makes a ledger for charging; `key` is that of its secret.

    Guarantee: nobody but its owner can open the file, nor what SQLite writes beside it, which has the file's own mode. A
    transaction that was committed through this connection has reached the disk (`synchronous=FULL`, rollback journal). A run that
    finds the file locked by another waits up to BUSY_SECONDS for its turn.

    Raises: LedgerError for what cannot be opened, has another format, or belongs to other data; a ledger of formats 1 and 2 is
    left as it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _close_to_others(path)
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
        db.execute("PRAGMA synchronous=FULL")
        refuse_older_format(db, path)
        db.executescript(SCHEMA)
        _fact(db, path, "format", FORMAT, "was written by another version of Tacit")
        refuse_other_secret(db, path, key)
        _fact(db, path, "secret", secret.keyed(key, SECRET), "")
        _fact(db, path, "population", secret.keyed(key, population), OTHER_DATA)
        return db
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"The ledger {path} cannot be opened ({error}); nothing was released.") from error


def _close_to_others(path: Path) -> None:
    """Gives a ledger the mode 0600. One that is there is not opened: closing it would end this process's locks on it."""
    if path.exists():
        if keeps_modes() and path.stat().st_mode & 0o077:
            path.chmod(OWNER)
        return
    store.create(path, b"")


def refuse_older_format(db: sqlite3.Connection, path: Path) -> None:
    """Refuses a ledger that seals no prices: what its runs may still spend is not known. A file without tables passes.

    Raises: LedgerError, which says how to go on.
    """
    if "facts" not in tables_of(db):
        return
    (format,) = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or (FORMAT,)
    if format in ("1", "2"):
        raise LedgerError(
            f"The ledger {path} has format {format}, which seals no prices, so it can be read but not charged any more:"
            " finish its runs with the version that wrote it, or begin a new ledger with the budget that"
            " `tacit ledger show` says is left."
        )


def _fact(db: sqlite3.Connection, path: Path, name: str, value: str, otherwise: str) -> None:
    db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
    _refuse_other(db, path, name, value, otherwise)


def refuse_other_population(db: sqlite3.Connection, path: Path, population: str, key: bytes) -> None:
    """Refuses the ledger of other data. One that nobody has charged yet is anybody's.

    Raises: LedgerError.
    """
    if "facts" in tables_of(db):
        refuse_other_secret(db, path, key)
        _refuse_other(db, path, "population", secret.keyed(key, population), OTHER_DATA)


def refuse_other_secret(db: sqlite3.Connection, path: Path, key: bytes) -> None:
    """Refuses the secret of another ledger: under it the same rows would be other ones. Raises LedgerError."""
    known = db.execute("SELECT value FROM facts WHERE name = 'secret'").fetchone()
    if known not in (None, (secret.keyed(key, SECRET),)):
        raise LedgerError(
            f"{secret.of(path)} is the secret of another ledger than {path}: put back the one that belongs to it; nothing was"
            " released."
        )


def _refuse_other(db: sqlite3.Connection, path: Path, name: str, value: str, otherwise: str) -> None:
    (known,) = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone() or (value,)
    if known != value:
        raise LedgerError(
            f"The ledger {path} {otherwise}: go back to the data and settings that it began with."
            " Another privacy.ledger would know nothing of what the same people have spent here; divide their budget first."
        )


def now() -> str:
    """This moment as a ledger writes it: UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def tables_of(db: sqlite3.Connection) -> set[str]:
    """The names of the tables that a file has."""
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def charges(db: sqlite3.Connection, tables: Sequence[str] = ("charges", "everybody")) -> Iterator[dict[str, Any]]:
    """Every charge in these tables, oldest first, as plain values under the names of COLUMNS.

    A charge to all has the client EVERYBODY.
    """
    parts = {"charges": "SELECT * FROM charges", "everybody": f"SELECT '{EVERYBODY}', * FROM everybody"}
    query = (
        f"SELECT run, round, attempt, client, unit, text, time FROM ({' UNION ALL '.join(parts[t] for t in tables)}) AS paid"
        " JOIN events ON events.id = paid.event ORDER BY time, run, round, client"
    )
    for row in db.execute(query) if tables else ():
        yield dict(zip(COLUMNS, row, strict=True))


# What a ledger must not contradict: which cohorts were drawn for which rows, and which vector a charge stands for.


class Condition(Protocol):
    """Something that the runs of one ledger must agree on; noted with the first charge of a run.

    Guarantee, of the ledger: `refuse` is asked when the run opens the file and again within the transaction of its first
    charge, just before `note`, so that of two runs at once the second sees what the first noted.
    """

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where the ledger says otherwise. It writes nothing."""
        ...

    def note(self, db: sqlite3.Connection) -> None:
        """Writes it down, within the transaction of a charge. Doing so twice changes nothing."""
        ...


@dataclass(frozen=True)
class Released:
    """That one charge stands for one vector: what was released under a name of a run, by the vector's `digest`."""

    run: str
    what: str
    digest: str

    @property
    def key(self) -> str:
        """Under which it is noted, beside the cohorts."""
        return f"released {self.run} {self.what}"

    def known(self, db: sqlite3.Connection) -> str | None:
        """The digest of what was released under this name; None for nothing."""
        found = db.execute("SELECT digest FROM draws WHERE key = ?", (self.key,)).fetchone()
        return found[0] if found else None

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where another vector was released under this name."""
        if self.known(db) not in (None, self.digest):
            raise LedgerError(
                f"The ledger {path} knows that this {self.what} was released, as something else, for the one charge that stands for"
                " it: a copy of the folder went on before, or its checkpoint was edited. Nothing was released."
            )

    def note(self, db: sqlite3.Connection) -> None:
        """Notes what is released."""
        db.execute("INSERT OR IGNORE INTO draws VALUES (?, ?)", (self.key, self.digest))


@dataclass(frozen=True)
class Draws:
    """The server's seeded cohorts: its key knows no rows, so the same key must not draw for other rows. Both stand here as the
    ledger's secret keys them.

    The same `key` draws the same cohorts. On rows with another `digest` two runs would share one draw, and their prices are
    for independent ones.
    """

    key: str
    digest: str

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where this key has drawn for other rows: another run.seed or run.noise_seed is needed."""
        known = db.execute("SELECT digest FROM draws WHERE key = ?", (self.key,)).fetchone()
        if known is not None and known[0] != self.digest:
            raise LedgerError(
                f"The ledger {path} knows a run of these settings on other rows, and the same seed would draw the same"
                " cohorts: change run.seed or run.noise_seed; nothing was released."
            )

    def note(self, db: sqlite3.Connection) -> None:
        """Notes for which rows the key has drawn."""
        db.execute("INSERT OR IGNORE INTO draws VALUES (?, ?)", (self.key, self.digest))
