"""A ledger file: its tables, the secret beside it, how it is opened, and the watermarks that show a lost or older copy.
Whatever follows from rows (the population, attempts, what runs must agree on) is a hash under the key in the secret: whoever
has the ledger alone can guess rows and never sees whether a guess was right. Assumes: whoever may read the secret is trusted
with the rows."""

import datetime
import fcntl
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tacit import store
from tacit.check import printable
from tacit.crypto import keys
from tacit.errors import BadInput, KeyRefused, LedgerError

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
CREATE VIEW IF NOT EXISTS paid AS SELECT * FROM charges UNION ALL SELECT '', * FROM everybody;
CREATE TABLE IF NOT EXISTS seals (
    client TEXT NOT NULL, run TEXT NOT NULL, unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events (id),
    delta REAL NOT NULL, most INTEGER NOT NULL, epsilon REAL NOT NULL, time TEXT NOT NULL,
    PRIMARY KEY (client, run)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queries (
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
    "belongs to other data or another partition of it, or rows are dealt out or held out by another seed (seed.data, run.seed)"
    " or share"
)
FORMAT = "4"
EVERYBODY = "every client"  # how people read whom a charge to all is for
ALL = ""  # whose seal that is
QUERY = -1  # the round under which queries are charged: they belong to none
NOTE = -2  # the round of a batch without charges, which notes what was released (`Ledger.release`)
PURPOSE = -3  # and of one that notes, in its attempt, what something else than a run was charged for (`Ledger.charge`)
MOST_PURPOSE = 200  # characters
COLUMNS: tuple[str, ...] = ("run", "round", "attempt", "client", "unit", "event", "time")  # of a charge
SECRET, SUFFIX = "secret", ".secret"  # whose keyed hash says which secret is the ledger's, and where it lies
KEY_BYTES, KEYED_BYTES, CHAIN_BYTES = 32, 16, 16
BUSY_SECONDS = 60.0  # how long a second run on the same ledger waits for its turn
UNRELEASED = "nothing was released."
NAME = "ledger.mark"  # the watermark beside a run or a site


# The secret. Guarantee: it is made once, before the ledger, and never again: under another key the same rows would be other
# ones, and their budgets would begin anew.


def secret_of(ledger: Path) -> Path:
    """Where a ledger's secret lies."""
    return ledger.with_name(ledger.name + SUFFIX)


def keyed(key: bytes, text: bytes | str) -> str:
    """What stands in a ledger, or anywhere else, for a text that follows from rows."""
    raw = text.encode() if isinstance(text, str) else text
    return hashlib.blake2b(raw, digest_size=KEYED_BYTES, key=key, person=b"tacit-ledger").hexdigest()


def key_of(ledger: Path) -> bytes:
    """The key of a ledger; of one that nobody has begun it is made, by one of all who ask at once. Raises: LedgerError where
    it is gone, damaged, open to others or cannot be written."""
    file = secret_of(ledger)
    begun = begun_at(ledger)  # looked at first: a ledger that is there was begun after its secret
    if not file.exists():
        if begun:
            raise LedgerError(
                f"{file} is gone, without which {ledger} can be read and not be charged (nobody could say whose rows it"
                f" knows): restore it with the ledger; {UNRELEASED}"
            )
        _make_secret(file)
    try:
        key = bytes.fromhex(str(keys.read(file, secret=True).get("key")))
    except (KeyRefused, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise LedgerError(
            f"{file} is damaged, or not yours alone (mode 600), and without it {ledger} cannot be charged: put it back;"
            f" {UNRELEASED}"
        )
    return key


def _make_secret(file: Path) -> None:
    try:
        keys.write(file, {"key": secrets.token_hex(KEY_BYTES)}, mode=keys.SECRET)
    except BadInput as error:
        if not file.exists():  # else another process was first
            raise LedgerError(f"{file} cannot be written ({error.__cause__}); {UNRELEASED}") from error


def begun_at(ledger: Path) -> bool:
    """Whether a ledger is there and not empty."""
    return ledger.exists() and ledger.stat().st_size > 0


# Opening.


def connect(path: Path, *, population: str | None, key: bytes) -> sqlite3.Connection:
    """Opens or makes a ledger for charging; without a population it stays whose it is. Guarantee: only its owner can open the
    file and what SQLite writes beside it; a committed transaction has reached the disk (`synchronous=FULL`, rollback
    journal). Raises: LedgerError for what cannot be opened, has another format (it is left as it is), or belongs to others."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            store.create(path, b"")
        elif path.stat().st_mode & 0o077:  # not opened for this: closing it would end this process's locks on it
            path.chmod(store.OWNER)
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
        db.execute("PRAGMA synchronous=FULL")
        refuse_other_format(db, path)
        db.executescript(SCHEMA)
        refuse_other_secret(db, path, key)
        facts = {"format": FORMAT, "secret": keyed(key, SECRET)}
        facts |= {} if population is None else {"population": keyed(key, population)}
        db.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts.items())
        refuse_other_format(db, path)
        if population is not None:
            refuse_other_population(db, path, population, key)
        return db
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"The ledger {path} cannot be opened ({error}); {UNRELEASED}") from error


def _fact(db: sqlite3.Connection, name: str, default: str) -> str:
    query = "SELECT value FROM facts WHERE name = ?"
    row = db.execute(query, (name,)).fetchone() if "facts" in tables_of(db) else None
    return row[0] if row else default


def refuse_other_format(db: sqlite3.Connection, path: Path) -> None:
    """Refuses a ledger of another format; a file without tables passes. Raises LedgerError."""
    if _fact(db, "format", FORMAT) != FORMAT:
        _refuse_other(path, "was written by another version of Tacit")


def refuse_other_population(db: sqlite3.Connection, path: Path, population: str, key: bytes) -> None:
    """Refuses the ledger of other data. One that nobody has charged yet is anybody's. Raises LedgerError."""
    refuse_other_secret(db, path, key)
    named = keyed(key, population)
    if _fact(db, "population", named) != named:
        _refuse_other(path, OTHER_DATA)


def refuse_other_secret(db: sqlite3.Connection, path: Path, key: bytes) -> None:
    """Refuses the secret of another ledger: under it the same rows would be other ones. Raises LedgerError."""
    named = keyed(key, SECRET)
    if _fact(db, "secret", named) != named:
        raise LedgerError(
            f"{secret_of(path)} is the secret of another ledger than {path}: put back the one that belongs to it; {UNRELEASED}"
        )


def _refuse_other(path: Path, otherwise: str) -> None:
    raise LedgerError(
        f"The ledger {path} {otherwise}: go back to the data and settings that it began with."
        " Another privacy.ledger would know nothing of what the same people have spent here; divide their budget first."
    )


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, for reading alone. What a kill left in the middle of a charge is rolled back in a copy. Guarantee: neither
    the ledger nor its journal is changed. Raises: LedgerError for what is no ledger, also within the block."""
    try:
        with ExitStack() as stack:
            db = stack.enter_context(closing(_connect(path, "ro")))
            if _half_written(db):
                copy = Path(stack.enter_context(TemporaryDirectory())) / path.name
                for end in ("", "-journal"):
                    copyfile(f"{path}{end}", f"{copy}{end}")
                db = stack.enter_context(closing(_connect(copy, "rw")))
            yield db
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"{path} cannot be read as a ledger ({error}).") from error


def _half_written(db: sqlite3.Connection) -> bool:
    """Whether nobody is writing and a journal waits to be rolled back, which a reader who may not write cannot do."""
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
            return True
        raise
    return False


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)


def now() -> str:
    """This moment as a ledger writes it: UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def tables_of(db: sqlite3.Connection) -> set[str]:
    """The names of the tables that a file has."""
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def charges(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every charge, oldest first, under the names of COLUMNS; one to all has the client EVERYBODY. What something else than a
    run was charged for has its `purpose` too."""
    known = purposes(db)
    rows = db.execute(
        f"SELECT run, round, attempt, IIF(client = '', '{EVERYBODY}', client) AS client, unit, text, time FROM paid"
        " JOIN events ON events.id = paid.event ORDER BY time, run, round, client"
    )
    for row in rows:
        entry = dict(zip(COLUMNS, row, strict=True))
        yield entry | ({"purpose": known[entry["run"]]} if entry["run"] in known else {})


def purposes(db: sqlite3.Connection) -> dict[str, str]:
    """By run, what it was charged for where it is no run of Tacit's: printable and cut, whoever wrote it."""
    rows = db.execute("SELECT run, attempt FROM batches WHERE round = ?", (PURPOSE,))
    return {run: printable(str(text), MOST_PURPOSE) for run, text in rows}


# Watermarks: files beside a run or a site that say how far its ledger had come.


def chain(before: str, *parts: object) -> str:
    """The hash of a batch of charges (its run, round, attempt and clients) and of all before it, whose link is `before`."""
    text = json.dumps([before, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=CHAIN_BYTES).hexdigest()


def write_watermark(path: Path, number: int, link: str) -> None:
    """Notes how far a ledger has come; a watermark that is further stays. Guarantee: a kill or a power cut leaves the old one
    or the new one. Runs that share a ledger write one after the other, by a lock beside the file: one that overtook
    another would set it back. Raises: OSError where it cannot be written, LedgerError where what is there cannot be read."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        known = read_watermark(path)
        if known is None or known[0] <= number:
            store.write(path, json.dumps({"batch": number, "chain": link}).encode(), mode=store.OWNER)


def read_watermark(path: Path) -> tuple[int, str] | None:
    """(number of the last batch, its hash), or None where there is no file. Raises LedgerError for one that cannot be read."""
    try:
        record = json.loads(path.read_text("utf-8"))
        return int(record["batch"]), str(record["chain"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} says how far the ledger had come, and cannot be read: put it back.") from None


def refuse_lost(ledger: Path, watermark: Path) -> None:
    """Refuses to begin an empty ledger where one was charged before. Raises LedgerError."""
    if read_watermark(watermark) is not None and not begun_at(ledger):
        raise LedgerError(
            f"{ledger} is gone, but {watermark} says that it was charged: restore the ledger; {UNRELEASED}"
        )


def lacking(db: sqlite3.Connection, watermark: Path) -> int | None:
    """The batch that a watermark knows and a ledger lacks, or has otherwise; None where it lacks none. Raises LedgerError."""
    known = read_watermark(watermark)
    if known is None:
        return None
    row = "batches" in tables_of(db) and db.execute("SELECT chain FROM batches WHERE number = ?", known[:1]).fetchone()
    return None if row and row[0] == known[1] else known[0]


def refuse_older(db: sqlite3.Connection, path: Path, watermark: Path) -> None:
    """Refuses a ledger that lacks charges which the watermark knows, or has others under their number. Raises LedgerError."""
    batch = lacking(db, watermark)
    if batch is not None:
        raise LedgerError(
            f"{path} is an older copy, or another ledger, than the one charged here (it lacks batch {batch} of {watermark}):"
            f" restore the newest copy of the ledger; {UNRELEASED}"
        )


# What a ledger must not contradict: which cohorts were drawn for which rows, and which vector a charge stands for.


class Condition(Protocol):
    """Something that the runs of one ledger must agree on; noted with the first charge of a run. Guarantee, of the ledger:
    `refuse` is asked when the run opens the file and again within the transaction of its first charge, just before `note`,
    so that of two runs at once the second sees what the first noted."""

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where the ledger says otherwise. It writes nothing."""
        ...

    def note(self, db: sqlite3.Connection) -> None:
        """Writes it down, within the transaction of a charge. Doing so twice changes nothing."""
        ...


@dataclass(frozen=True)
class Once:
    """One key has one digest. `otherwise` is what the ledger knows where it has another one."""

    key: str
    digest: str
    otherwise: str

    def known(self, db: sqlite3.Connection) -> str | None:
        """The digest that is noted under this key; None for nothing."""
        row = db.execute("SELECT digest FROM draws WHERE key = ?", (self.key,)).fetchone()
        return row[0] if row else None

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        if self.known(db) not in (None, self.digest):
            raise LedgerError(f"The ledger {path} knows {self.otherwise} {UNRELEASED.capitalize()}")

    def note(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR IGNORE INTO draws VALUES (?, ?)", (self.key, self.digest))


def seeded_cohorts(key: str, digest: str) -> Once:
    """The server's seeded cohorts: the same `key` draws the same ones, on rows with this `digest`; both are keyed by the
    secret. On other rows two runs would share one draw, and their prices are for independent ones."""
    text = "a run of these settings on other rows, and the same seed would draw the same cohorts"
    return Once(key, digest, f"{text}: change run.seed or seed.noise.")


def released(run: str, what: str, digest: str) -> Once:
    """That one charge stands for one vector: what is released under a name (`what`) of a run, by the vector's digest."""
    text = f"that this {what} was released, as something else, for the one charge that stands for it"
    return Once(
        f"released {run} {what}",
        digest,
        f"{text}: a copy of the folder went on before, or its checkpoint was edited.",
    )
