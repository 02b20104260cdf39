"""What a ledger must not contradict before it is charged: which cohorts were drawn for which rows."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tacit.errors import LedgerError


class Condition(Protocol):
    """Something that the runs of one ledger must agree on; noted with the first charge of a run."""

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where the ledger says otherwise."""
        ...

    def note(self, db: sqlite3.Connection) -> None:
        """Writes it down, within the transaction of a charge."""
        ...


@dataclass(frozen=True)
class Draws:
    """The server's seeded cohorts: its key knows no rows, so the same key must not draw for other rows."""

    key: str
    digest: str

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        found = db.execute("SELECT digest FROM draws WHERE key = ?", (self.key,)).fetchone()
        if found is not None and found[0] != self.digest:
            raise LedgerError(
                f"The ledger {path} knows a run of these settings on other rows, and the same seed would draw the same"
                " cohorts: change run.seed; nothing was released."
            )

    def note(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR IGNORE INTO draws VALUES (?, ?)", (self.key, self.digest))
