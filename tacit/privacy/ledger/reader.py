"""Reading a ledger without writing to it: who was charged what, when and for what, and whether the file is sound."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import witness
from tacit.privacy.ledger.ledger import EVERYBODY, FORMAT

NAMES: tuple[str, ...] = ("run", "round", "attempt", "client", "unit", "event", "time")
UNITS = ("record", "client")
READ = ("1", "2", FORMAT)


def find(path: Path) -> Path:
    """The ledger file itself, or the one in a run's or a site's folder. Raises LedgerError."""
    file = path / "ledger.db" if path.is_dir() else path
    if not file.is_file():
        below = sorted(str(place.parent) for place in path.rglob("ledger.db")) if path.is_dir() else []
        raise LedgerError(f"There is no ledger at {file}{': look at ' + ', '.join(below) if below else ''}.")
    return file


def entries(path: Path) -> list[dict[str, Any]]:
    """Every charge, oldest first, as plain values. Raises LedgerError for a file that is no ledger."""
    with reading(path) as book:
        parts = {"charges": "SELECT * FROM charges", "everybody": f"SELECT '{EVERYBODY}', * FROM everybody"}
        found = " UNION ALL ".join(parts[name] for name in _charged(book))
        query = (
            f"SELECT run, round, attempt, client, unit, text, time FROM ({found}) AS paid"
            " JOIN events ON events.id = paid.event ORDER BY time, run, round, client"
        )
        return [dict(zip(NAMES, row, strict=True)) for row in book.execute(query)] if found else []


@dataclass(frozen=True)
class Account:
    """One client in one run: what was sealed for it beforehand, and what it has used of that."""

    client: str
    run: str
    unit: str
    delta: float
    sealed: float
    used: float
    releases: int
    most: int


def accounts(path: Path) -> list[Account]:
    """Every client of every run; what everybody was charged for stands under EVERYBODY. Older ledgers sealed nothing."""
    with reading(path) as book:
        if "seals" not in tables(book):
            return []
        paid = "SELECT client, run, event FROM charges UNION ALL SELECT '', run, event FROM everybody"
        rows = book.execute(
            "SELECT seals.client, seals.run, unit, delta, epsilon, text, COUNT(paid.run), most FROM seals"
            f" JOIN events ON events.id = seals.event LEFT JOIN ({paid}) AS paid"
            " ON paid.client = seals.client AND paid.run = seals.run GROUP BY seals.client, seals.run ORDER BY seals.time"
        ).fetchall()
    return [
        Account(client or EVERYBODY, run, unit, delta, sealed, _price(text, count, delta), count, most)
        for client, run, unit, delta, sealed, text, count, most in rows
    ]


def totals(accounts: list[Account]) -> dict[tuple[str, str], tuple[float, float]]:
    """(epsilon, delta) by client and unit: the sums of what was sealed, by basic composition (tacit/privacy/ledger/filter.py)."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for each in accounts:
        epsilon, delta = found.get((each.client, each.unit), (0.0, 0.0))
        found[each.client, each.unit] = (epsilon + each.sealed, delta + each.delta)
    shared = {unit: sums for (client, unit), sums in found.items() if client == EVERYBODY}
    for (client, unit), (epsilon, delta) in found.items():
        more = shared.get(unit, (0.0, 0.0)) if client != EVERYBODY else (0.0, 0.0)
        found[client, unit] = (epsilon + more[0], delta + more[1])
    return found


def _price(text: str, count: int, delta: float) -> float:
    composition = price.compose([(price.from_text(text), count)])
    accountant = "rdp" if any(price.replaces_one(event) for event, _ in composition) else "pld"
    return price.epsilon(composition, delta=delta, accountant=accountant)


def spent(charges: list[dict[str, Any]], *, delta: float) -> dict[tuple[str, str], float]:
    """The joint price of everything charged, by client and unit; what everybody was charged for counts for each.

    Priced by PLD, or by RDP where cohorts had a fixed size. Over several runs this is no bound where a later one was chosen
    after seeing an earlier one: `totals` is.
    """
    groups: dict[tuple[str, str], list[Any]] = {}
    for entry in charges:
        groups.setdefault((entry["client"], entry["unit"]), []).append((price.from_text(entry["event"]), 1))
    found = {}
    for (client, unit), events in groups.items():
        shared = groups.get((EVERYBODY, unit), []) if client != EVERYBODY else []
        composition = price.compose([*events, *shared])
        accountant = "rdp" if any(price.replaces_one(event) for event, _ in composition) else "pld"
        found[client, unit] = price.epsilon(composition, delta=delta, accountant=accountant)
    return found


def marked(path: Path, mark: Path) -> Iterator[str]:
    """Whether a ledger has come as far as the mark beside it says; a ledger without a mark is taken as it is."""
    known = witness.read(mark)
    if known is None:
        return
    with reading(path) as book:
        query = "SELECT chain FROM batches WHERE number = ?"
        row = book.execute(query, (known[0],)).fetchone() if "batches" in tables(book) else None
    if row is None or row[0] != known[1]:
        yield f"it is an older copy, or another ledger, than the one {mark} was written for: restore the newest copy"


def faults(path: Path) -> Iterator[str]:
    """Whatever is wrong with a ledger: damage, another format, charges without a price or a time."""
    with reading(path) as book:
        for (text,) in book.execute("PRAGMA integrity_check").fetchall():
            if text != "ok":
                yield f"the file is damaged: {text}"
        charged = _charged(book)
        if not charged:
            return
        (format,) = book.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or ("none",)
        if format not in READ:
            yield f"it has format {format}, and this version reads {' and '.join(READ)}"
        lost = "event NOT IN (SELECT id FROM events)"
        counts = [book.execute(f"SELECT COUNT(*) FROM {t} WHERE {lost}").fetchone()[0] for t in charged]
        orphans = sum(counts)
        if orphans:
            yield f"{orphans} charges name an event that is not there"
    for entry in entries(path):
        yield from _entry_faults(entry)


def _entry_faults(entry: dict[str, Any]) -> Iterator[str]:
    where = f"round {entry['round']} of {entry['client']} in run {entry['run']}"
    try:
        price.from_text(entry["event"])
    except (ValueError, KeyError, TypeError):
        yield f"{where} was charged for something without a price: {entry['event']}"
    if entry["unit"] not in UNITS:
        yield f"{where} was charged per {entry['unit']!r}, which is no unit"
    if entry["round"] < 0 or not entry["time"]:
        yield f"{where} has no valid round or time"


def _charged(book: sqlite3.Connection) -> list[str]:
    """Where charges are: an empty file has none, and the first format has no charges for everybody."""
    names = tables(book)
    return [name for name in ("charges", "everybody") if name in names]


def tables(book: sqlite3.Connection) -> set[str]:
    """The names of the tables that a file has."""
    return {name for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, for reading alone. What a kill left in the middle of a charge is rolled back in a copy. Raises LedgerError."""
    try:
        with ExitStack() as stack:
            book = stack.enter_context(closing(_connect(path, "ro")))
            if _half_written(book):
                place = Path(stack.enter_context(TemporaryDirectory())) / path.name
                for end in ("", "-journal"):
                    copyfile(f"{path}{end}", f"{place}{end}")
                book = stack.enter_context(closing(_connect(place, "rw")))
            yield book
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"{path} cannot be read as a ledger ({error}).") from error


def _half_written(book: sqlite3.Connection) -> bool:
    """Whether nobody is writing and a journal waits to be rolled back, which a reader who may not write cannot do."""
    try:
        book.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
            return True
        raise
    return False


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=60)
