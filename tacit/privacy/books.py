"""Reading a ledger without writing to it: who was charged what, when and for what, and whether the file is sound."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import LedgerError
from tacit.privacy import price
from tacit.privacy.ledger import FORMAT

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
        "SELECT run, round, attempt, client, unit, text, time FROM charges JOIN events ON events.id = charges.event"
        " ORDER BY time, run, round, client"
    )
    with _open(path) as book:
        return [dict(zip(NAMES, row, strict=True)) for row in book.execute(query)] if _laid_out(book) else []


def spent(charges: list[dict[str, Any]], *, delta: float, accountant: str = "pld") -> dict[tuple[str, str], float]:
    """The epsilon of everything charged, by client and unit."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for entry in charges:
        groups.setdefault((entry["client"], entry["unit"]), []).append((price.from_text(entry["event"]), 1))
    return {
        key: price.epsilon(price.compose(events), delta=delta, accountant=accountant) for key, events in groups.items()
    }


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
        (orphans,) = book.execute("SELECT COUNT(*) FROM charges WHERE event NOT IN (SELECT id FROM events)").fetchone()
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
    return book.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'charges'").fetchone()[0] == 1


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=60)) as book:
            yield book
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read as a ledger ({error}).") from error
