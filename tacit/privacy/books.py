"""Reading a ledger without writing to it: who was charged what, when and for what, and whether the file is sound."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import LedgerError
from tacit.privacy import price
from tacit.privacy.ledger import EVERYBODY, FORMAT

NAMES: tuple[str, ...] = ("run", "round", "attempt", "client", "unit", "event", "time")
UNITS = ("record", "client")


def find(path: Path) -> Path:
    """The ledger file itself, or the one in a run's or a site's folder. Raises LedgerError."""
    file = path / "ledger.db" if path.is_dir() else path
    if not file.is_file():
        raise LedgerError(f"There is no ledger at {file}.")
    return file


def entries(path: Path) -> list[dict[str, Any]]:
    """Every charge, oldest first, as plain values. Raises LedgerError for a file that is no ledger."""
    query = (
        "SELECT run, round, attempt, client, unit, text, time FROM"
        f" (SELECT * FROM charges UNION ALL SELECT '{EVERYBODY}', * FROM everybody) AS paid"
        " JOIN events ON events.id = paid.event ORDER BY time, run, round, client"
    )
    with _open(path) as book:
        return [dict(zip(NAMES, row, strict=True)) for row in book.execute(query)] if _laid_out(book) else []


def spent(charges: list[dict[str, Any]], *, delta: float) -> dict[tuple[str, str], float]:
    """The epsilon of everything charged, by client and unit; what everybody was charged for counts for each.

    Priced by PLD, or by RDP where cohorts had a fixed size.
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


def faults(path: Path) -> Iterator[str]:
    """Whatever is wrong with a ledger: damage, another format, charges without a price or a time."""
    with _open(path) as book:
        for (text,) in book.execute("PRAGMA integrity_check").fetchall():
            if text != "ok":
                yield f"the file is damaged: {text}"
        if not _laid_out(book):
            return
        (format,) = book.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or ("none",)
        if format != FORMAT:
            yield f"it has format {format}, and this version reads {FORMAT}"
        lost = "event NOT IN (SELECT id FROM events)"
        counts = [
            book.execute(f"SELECT COUNT(*) FROM {t} WHERE {lost}").fetchone()[0] for t in ("charges", "everybody")
        ]
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


def _laid_out(book: sqlite3.Connection) -> bool:
    """Whether anything was ever written: an empty file is a ledger without charges."""
    return book.execute("SELECT COUNT(*) FROM sqlite_master WHERE name IN ('charges', 'everybody')").fetchone()[0] == 2


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=60)) as book:
            yield book
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read as a ledger ({error}).") from error
