"""Reading a ledger without writing to it: who was charged what, when and for what, and whether the file is sound.

It reads all formats there were. A ledger that is being charged can be read; so can a copy on a disk that nobody may write to."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tacit import store
from tacit.errors import LedgerError
from tacit.machine import locked
from tacit.privacy.accounting import price
from tacit.privacy.ledger.secret import begun_at, key_of
from tacit.privacy.ledger.sql import EVERYBODY, FORMAT, QUERY, charges, refuse_other_secret, tables_of

# A mark beside a run or a site that says how far its ledger had come: a lost or older ledger is then noticed.

if TYPE_CHECKING:
    from tacit.privacy.ledger.view import RunView

NAME = "ledger.mark"
CHAIN_BYTES = 16
UNRELEASED = "nothing was released."


def chain(before: str, *parts: object) -> str:
    """The hash of a batch of charges (its run, round, attempt and clients) and of all before it, whose link is `before`.

    >>> chain("", "run", 0, "attempt", "north") == chain("", "run", 0, "attempt", "south")
    False
    """
    text = json.dumps([before, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=CHAIN_BYTES).hexdigest()


def write(path: Path, number: int, link: str) -> None:
    """Notes how far a ledger has come; a mark that is further stays.

    Guarantee: a kill or a power cut leaves the old mark or the new one. Runs that share a ledger take turns by a lock beside
    the mark: one that overtook another would set the mark back, or write into the other's file.

    Raises: OSError where it cannot be written, LedgerError where the mark that is there cannot be read.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "w") as turn, locked(turn.fileno()):
        known = read(path)
        if known is not None and known[0] > number:
            return
        store.write(path, json.dumps({"batch": number, "chain": link}).encode(), mode=store.OWNER)


def read(path: Path) -> tuple[int, str] | None:
    """The mark as (number of the last batch, its hash), or None where there is none.

    Raises: LedgerError for one that cannot be read.
    """
    try:
        record = json.loads(path.read_text("utf-8"))
        return int(record["batch"]), str(record["chain"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} says how far the ledger had come, and cannot be read: put it back.") from None


def refuse_lost(ledger: Path, mark: Path) -> None:
    """Refuses to begin an empty ledger where one was charged before. Raises LedgerError."""
    if read(mark) is not None and not begun_at(ledger):
        raise LedgerError(f"{ledger} is gone, but {mark} says that it was charged: restore the ledger; {UNRELEASED}")


def refuse_older(ledger: "RunView", mark: Path) -> None:
    """Refuses a ledger that lacks charges which the mark knows, or has others under their number. Raises LedgerError."""
    batch = lacking(ledger, mark)
    if batch is not None:
        raise LedgerError(
            f"{ledger.path} is an older copy, or another ledger, than the one charged here (it lacks batch {batch} of"
            f" {mark}): restore the newest copy of the ledger; {UNRELEASED}"
        )


def lacking(ledger: "RunView", mark: Path) -> int | None:
    """The batch that a mark knows and a ledger lacks, or has otherwise; None where it lacks none. Raises LedgerError, as `read`."""
    known = read(mark)
    return None if known is None or ledger.link(known[0]) == known[1] else known[0]


UNITS = ("record", "client")
READ = ("1", "2", FORMAT)


def find(path: Path) -> Path:
    """The ledger file itself, or the one in a run's or a site's folder.

    Raises: LedgerError where there is none, naming those in folders below.
    """
    file = path / "ledger.db" if path.is_dir() else path
    if not file.is_file():
        below = sorted(str(ledger.parent) for ledger in path.rglob("ledger.db")) if path.is_dir() else []
        raise LedgerError(f"There is no ledger at {file}{': look at ' + ', '.join(below) if below else ''}.")
    return file


def entries(path: Path) -> list[dict[str, Any]]:
    """Every charge, oldest first, as plain values under the names of `tables.COLUMNS`; an empty file has none.

    Raises: LedgerError for a file that is no ledger.
    """
    with reading(path) as db:
        return list(charges(db, _charged(db)))


@dataclass(frozen=True)
class Account:
    """One client in one run: what was sealed for it beforehand, and what it has used of that.

    `sealed` is the epsilon of `most` releases and counts against the budget; `used` that of the `releases` charged so far,
    both at the run's `delta`. Queries are releases, too.
    """

    client: str
    run: str
    unit: str
    delta: float
    sealed: float
    used: float
    releases: int
    most: int


def accounts(path: Path) -> list[Account]:
    """Every client of every run; what everybody was charged for stands under EVERYBODY.

    Older formats sealed nothing: the list is empty.

    Raises: LedgerError for a file that is no ledger, BadInput for an event that this version cannot price.
    """
    with reading(path) as db:
        if "seals" not in tables_of(db):
            return []
        paid = "SELECT client, run, round, event FROM charges UNION ALL SELECT '', run, round, event FROM everybody"
        rows = db.execute(
            "SELECT seals.client, seals.run, unit, delta, epsilon, text, COUNT(paid.run), most FROM seals"
            f" JOIN events ON events.id = seals.event LEFT JOIN (SELECT * FROM ({paid}) WHERE round >= 0) AS paid"
            " ON paid.client = seals.client AND paid.run = seals.run GROUP BY seals.client, seals.run ORDER BY seals.time"
        ).fetchall()
        answered, asked = _queries(db)
    found = []
    for client, run, unit, delta, sealed, text, count, most in rows:
        paid = answered.get((client, run), [])
        used = _price([(text, count), *((query, 1) for query in paid)], delta)
        most = most + asked.get((client, run), 0)
        found.append(Account(client or EVERYBODY, run, unit, delta, sealed, used, count + len(paid), most))
    return found


def _queries(db: sqlite3.Connection) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], int]]:
    """By client and run: the events of the queries that were charged, and how many were sealed."""
    answered: dict[tuple[str, str], list[str]] = {}
    query = "SELECT client, run, text FROM charges JOIN events ON events.id = charges.event WHERE round < 0"
    for client, run, text in db.execute(query):
        answered.setdefault((client, run), []).append(text)
    counts = "SELECT client, run, COUNT(*) FROM asked GROUP BY client, run"
    rows = db.execute(counts).fetchall() if "asked" in tables_of(db) else []
    return answered, {(client, run): count for client, run, count in rows}


def totals(accounts: list[Account]) -> dict[tuple[str, str], tuple[float, float]]:
    """(epsilon, delta) by client and unit: the sums of what was sealed, by basic composition (tacit/privacy/ledger/filter.py).

    Guarantee: an upper bound for what each client has spent in all runs, however they were chosen; units are never added. What
    everybody was sealed for counts for each client that is named.

    >>> one = Account("north", "a", "client", 1e-6, sealed=1.0, used=0.5, releases=3, most=6)
    >>> totals([one, Account(EVERYBODY, "b", "client", 1e-6, 2.0, 2.0, 9, 9)])["north", "client"][0]
    3.0
    """
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for each in accounts:
        epsilon, delta = sums.get((each.client, each.unit), (0.0, 0.0))
        sums[each.client, each.unit] = (epsilon + each.sealed, delta + each.delta)
    shared = {unit: pair for (client, unit), pair in sums.items() if client == EVERYBODY}
    for (client, unit), (epsilon, delta) in sums.items():
        more = shared.get(unit, (0.0, 0.0)) if client != EVERYBODY else (0.0, 0.0)
        sums[client, unit] = (epsilon + more[0], delta + more[1])
    return sums


def at_one_site(accounts: list[Account]) -> dict[str, tuple[float, float]]:
    """(epsilon, delta) by unit of what a site's own ledger has sealed: all of it is about the same rows, whatever the site's name.

    >>> north = Account("north", "a", "record", 1e-6, sealed=1.0, used=0.5, releases=3, most=6)
    >>> at_one_site([north, Account("polar", "b", "record", 1e-6, 2.0, 2.0, 9, 9)])["record"][0]
    3.0
    """
    sums: dict[str, tuple[float, float]] = {}
    for each in accounts:
        epsilon, delta = sums.get(each.unit, (0.0, 0.0))
        sums[each.unit] = (epsilon + each.sealed, delta + each.delta)
    return sums


def _price(paid: Iterable[tuple[str, int]], delta: float) -> float:
    composition = price.compose((price.from_text(text), count) for text, count in paid)
    return price.epsilon(composition, delta=delta, accountant=price.accountant_for(composition))


def spent(charges: list[dict[str, Any]], *, delta: float) -> dict[tuple[str, str], float]:
    """The joint price of everything charged, by client and unit; what everybody was charged for counts for each.

    Priced by PLD, or by RDP where cohorts had a fixed size.

    Assumes: the runs did not depend on each other. Over several runs this is no bound where a later one was chosen after
    seeing an earlier one: `totals` is.

    Raises: BadInput for charges that have no price, or none together.
    """
    groups: dict[tuple[str, str], list[Any]] = {}
    for entry in charges:
        groups.setdefault((entry["client"], entry["unit"]), []).append((price.from_text(entry["event"]), 1))
    epsilons = {}
    for (client, unit), events in groups.items():
        shared = groups.get((EVERYBODY, unit), []) if client != EVERYBODY else []
        composition = price.compose([*events, *shared])
        accountant = price.accountant_for(composition)
        epsilons[client, unit] = price.epsilon(composition, delta=delta, accountant=accountant)
    return epsilons


def marked(path: Path, mark: Path) -> Iterator[str]:
    """Whatever shows that a ledger has not come as far as the mark beside it says; a ledger without a mark is taken as it is.

    Raises: LedgerError for a mark or a file that cannot be read.
    """
    known = read(mark)
    if known is None:
        return
    with reading(path) as db:
        query = "SELECT chain FROM batches WHERE number = ?"
        row = db.execute(query, (known[0],)).fetchone() if "batches" in tables_of(db) else None
    if row is None or row[0] != known[1]:
        yield f"it is an older copy, or another ledger, than the one {mark} was written for: restore the newest copy"


def faults(path: Path) -> Iterator[str]:
    """Whatever is wrong with a ledger, a sentence each: damage, another format, no secret, charges without a price or a time.

    Raises: LedgerError for a file that cannot be read at all.
    """
    with reading(path) as db:
        for (text,) in db.execute("PRAGMA integrity_check").fetchall():
            if text != "ok":
                yield f"the file is damaged: {text}"
        charged = _charged(db)
        if not charged:
            return
        (format,) = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or ("none",)
        if format not in READ:
            yield f"it has format {format}, and this version reads {' and '.join(READ)}"
        if format == FORMAT:
            yield from _secret_faults(db, path)
        lost = "event NOT IN (SELECT id FROM events)"
        counts = [db.execute(f"SELECT COUNT(*) FROM {t} WHERE {lost}").fetchone()[0] for t in charged]
        orphans = sum(counts)
        if orphans:
            yield f"{orphans} charges name an event that is not there"
    for entry in entries(path):
        yield from _entry_faults(entry)


def _secret_faults(db: sqlite3.Connection, path: Path) -> Iterator[str]:
    try:
        refuse_other_secret(db, path, key_of(path))
    except LedgerError as error:
        yield str(error)


def release(entry: dict[str, Any]) -> str:
    """What a charge was for, as people read it: rounds count from 1 there, and a query belongs to none.

    >>> release({"round": 0, "attempt": "c0"}), release({"round": QUERY, "attempt": "range age:c0"})
    ('round 1', 'query range age')
    """
    number = entry["round"]
    if number == QUERY:
        return f"query {entry['attempt'].partition(':')[0]}"
    return f"round {number + 1 if isinstance(number, int) else number}"


def _entry_faults(entry: dict[str, Any]) -> Iterator[str]:
    where = f"{release(entry)} of {entry['client']} in run {entry['run']}"
    try:
        price.from_text(entry["event"])
    except (ValueError, KeyError, TypeError):
        yield f"{where} was charged for something without a price: {entry['event']}"
    if entry["unit"] not in UNITS:
        yield f"{where} was charged per {entry['unit']!r}, which is no unit"
    if entry["round"] < QUERY or not entry["time"]:
        yield f"{where} has no valid round or time"


def _charged(db: sqlite3.Connection) -> list[str]:
    """Where charges are: an empty file has none, and the first format has no charges for everybody."""
    names = tables_of(db)
    return [name for name in ("charges", "everybody") if name in names]


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, for reading alone. What a kill left in the middle of a charge is rolled back in a copy.

    Guarantee: neither the ledger nor its journal is changed.

    Raises: LedgerError for what is no ledger, also where that shows only within the block.
    """
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
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=60)
