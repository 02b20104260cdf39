"""The tables of a ledger file, and how a file is opened: sound, of this format, and of this population."""

import sqlite3
from pathlib import Path

from tacit.errors import LedgerError

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
OTHER_DATA = "belongs to other data or another partition of it"
FORMAT = "3"  # 1 and 2 had no sealed prices, so what other runs may still spend is not known there
BUSY_SECONDS = 60.0  # how long a second run on the same ledger waits for its turn


def connect(path: Path, *, population: str) -> sqlite3.Connection:
    """Opens or makes a ledger. Raises LedgerError for what cannot be opened, is older, or belongs to other data."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
        db.execute("PRAGMA synchronous=FULL")
        refuse_older_format(db, path)
        db.executescript(SCHEMA)
        _fact(db, path, "format", FORMAT, "was written by another version of Tacit")
        _fact(db, path, "population", population, OTHER_DATA)
        return db
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"The ledger {path} cannot be opened ({error}); nothing was released.") from error


def refuse_older_format(db: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerError for a ledger that seals no prices."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
        return
    (found,) = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or (FORMAT,)
    if found in ("1", "2"):
        raise LedgerError(
            f"The ledger {path} has format {found}, which seals no prices, so it can be read but not charged any more:"
            " finish its runs with the version that wrote it, or begin a new ledger with the budget that"
            " `tacit ledger show` says is left."
        )


def _fact(db: sqlite3.Connection, path: Path, name: str, value: str, otherwise: str) -> None:
    db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
    _refuse_other(db, path, name, value, otherwise)


def refuse_other_population(db: sqlite3.Connection, path: Path, population: str) -> None:
    """Raises LedgerError for the ledger of other data; one that nobody has charged yet is anybody's."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
        _refuse_other(db, path, "population", population, OTHER_DATA)


def _refuse_other(db: sqlite3.Connection, path: Path, name: str, value: str, otherwise: str) -> None:
    (found,) = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone() or (value,)
    if found != value:
        raise LedgerError(
            f"The ledger {path} {otherwise} ({name} {found}, here {value}): go back to the data and settings that it began with."
            " Another privacy.ledger would know nothing of what the same people have spent here; divide their budget first."
        )
