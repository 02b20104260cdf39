"""Who holds which row, and which rows are held out: the identity of a population whose clients the data itself names. Rows
may come and go, and their client's charges carry over. A row that changes hands would have the charges of two clients, and
one that leaves the protected rows for the test set would be public: both are refused. Rows are known by a hash of their
encoded values and label under the ledger's key, and counted: rows that were at two clients from the first are no move; a
move is a row that is new with one client and missing with another, whether at once or in two steps."""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from tacit.data.dataset import Dataset
from tacit.data.population import HASH_BYTES, Population, row_hashes, rows_mark
from tacit.errors import LedgerError
from tacit.privacy.ledger.sql import UNRELEASED, keyed, now
from tacit.wire import digest_of

TEST = ""  # whose rows the held-out ones are
MOST_AT_ONCE = 500  # placeholders of one statement
MOST_ROWS = 500_000  # that a ledger knows one by one

Counts = dict[bytes, dict[str, int]]  # row -> client -> how often


@dataclass(frozen=True, eq=False)
class Holdings:
    """How often each row is with each client; the empty name has the test rows. Guarantee: a row that was charged to one
    client is not charged to another later, and does not become a test row, as far as the hash of its values tells rows
    apart (blake2b, 128 bits). Equal rows that two clients had from the first stay with both. Assumes: a row that is
    changed is another row. Whoever edits a value of a row hides its move; that is beyond this check."""

    counts: Counts = field(repr=False)

    @cached_property
    def digest(self) -> str:
        hashed = hashlib.blake2b(digest_size=HASH_BYTES)
        for row in sorted(self.counts):
            hashed.update(row)
            hashed.update(repr(sorted(self.counts[row].items())).encode())
        return hashed.hexdigest()

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where a row has changed hands, or went over to the test rows, since this ledger was charged."""
        if db.execute("SELECT 1 FROM holdings WHERE digest = ?", (self.digest,)).fetchone():
            return
        if db.execute("SELECT 1 FROM holdings").fetchone() and not db.execute("SELECT 1 FROM held").fetchone():
            raise LedgerError(
                f"The ledger {path} belongs to other data: it was charged for more than {MOST_ROWS:,} rows, which it knows all"
                f" together; put them back; {UNRELEASED}"
            )
        for row, known in self._known(db):
            moved = _moved(self.counts[row], known)
            if moved:
                first, second = (f"client {name}" if name != TEST else "the test rows" for name in moved)
                text = f"a row of {first} is now with {second}, so it would have the charges of both"
                if moved[1] == TEST:
                    text = f"a row that {first} was charged for is now among {second}, which are public"
                raise LedgerError(
                    f"The ledger {path} belongs to other data or another partition of it: {text}; put it back; {UNRELEASED}"
                )

    def note(self, db: sqlite3.Connection) -> None:
        known = {row for row, _ in self._known(db)}
        rows = [
            (row, client, 0 if row in known else count, count)
            for row, by_client in self.counts.items()
            for client, count in by_client.items()
        ]
        db.executemany(
            "INSERT INTO held VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET most = MAX(most, excluded.most)", rows
        )
        db.execute("INSERT OR IGNORE INTO holdings VALUES (?, ?)", (self.digest, now()))

    def _known(self, db: sqlite3.Connection) -> Iterator[tuple[bytes, dict[str, tuple[int, int]]]]:
        """The rows here that the ledger knows, each with (at first sight, at most) by client."""
        rows = sorted(self.counts)
        for start in range(0, len(rows), MOST_AT_ONCE):
            part = rows[start : start + MOST_AT_ONCE]
            places = ", ".join("?" * len(part))
            known: dict[bytes, dict[str, tuple[int, int]]] = {}
            for row, client, first, most in db.execute(f"SELECT * FROM held WHERE row IN ({places})", part):
                known.setdefault(row, {})[client] = (first, most)
            yield from known.items()


@dataclass(frozen=True, eq=False)
class WholeHoldings:
    """The same for more rows than a ledger can know one by one, and for rows that were passed from Python, of which nobody
    knows how they were encoded: all of them as they are, or none. Guarantee: as `Holdings`, because a ledger that was
    charged for these rows is used with no others, and the other way round."""

    digest: str

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where this ledger was charged for other rows."""
        known = {digest for (digest,) in db.execute("SELECT digest FROM holdings")}
        if known and self.digest not in known:
            raise LedgerError(
                f"The ledger {path} belongs to other data or another partition of it: its rows (passed from Python, or more than"
                f" {MOST_ROWS:,}) it knows all together, and they are not the same; put them back; {UNRELEASED}"
            )

    def note(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR IGNORE INTO holdings VALUES (?, ?)", (self.digest, now()))


def _moved(here: dict[str, int], known: dict[str, tuple[int, int]]) -> tuple[str, str] | None:
    """(from, to) of a row that is new with one client and missing with another, or new in the test set at all.

    >>> _moved({"b": 1}, {"a": (1, 1)}), _moved({"a": 1, "b": 1}, {"a": (1, 1)})
    (('a', 'b'), None)
    """
    for client, count in here.items():
        others = [other for other in known if other != client]
        gone = [other for other in others if here.get(other, 0) < known[other][1]]
        if count > known.get(client, (0, 0))[0] and (gone or (client == TEST and others)):
            return (gone or others)[0], client
    return None


def holdings(population: Population, dataset: Dataset, key: bytes, *, whole: bool = False) -> Holdings | WholeHoldings:
    """What every client holds, for training or not, and what is public: one hash per row under the ledger's key. `whole` asks
    for one hash of them all, in whatever order; of very many rows it is that, client by client and in their order.
    Assumes: rows are encoded alike in every run of the ledger; the population's identity sees to that."""
    parts = [part for part in (population, population.held) if part is not None]
    if sum(len(part.y) for part in parts) > MOST_ROWS:
        held = [one for part in parts for one in ("\x1f".join(part.names), part.digest())]
        return WholeHoldings(keyed(key, digest_of("whole holdings", *held, rows_mark(dataset.test_x, dataset.test_y))))
    everything: list[tuple[bytes, str]] = []
    for part in parts:
        names = (part.names[k] for k in np.repeat(np.arange(len(part)), part.sizes).tolist())
        everything += zip(row_hashes(part.x, part.y, key=key), names, strict=True)
    everything += ((row, TEST) for row in row_hashes(dataset.test_x, dataset.test_y, key=key))
    if whole:
        return WholeHoldings(keyed(key, b"".join(row + repr(client).encode() for row, client in sorted(everything))))
    counts: Counts = {}
    for row, client in everything:
        by_client = counts.setdefault(row, {})
        by_client[client] = by_client.get(client, 0) + 1
    return Holdings(counts)
