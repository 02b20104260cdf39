"""What a ledger must not contradict: which cohorts were drawn for which rows, and which vector a charge stands for."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tacit.errors import LedgerError


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
    """The server's seeded cohorts: its key knows no rows, so the same key must not draw for other rows.

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
