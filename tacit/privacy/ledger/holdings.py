"""Who holds which row, and which rows are held out, where the data itself names the clients. Rows may come and go with their
client's charges; a row that changes hands, or leaves the protected rows for the test set, is refused. A move is a row that is
new with one client and missing with another, whether at once or in two steps."""

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tacit.data.dataset import Dataset
from tacit.data.population import HASH_BYTES, Population, row_hashes, rows_digest
from tacit.errors import LedgerError
from tacit.privacy.ledger.disk import UNRELEASED, keyed, now
from tacit.wire import digest_of

TEST = ""  # whose rows the held-out ones are
PERSON = b"person "  # begins the hash of a person among those of rows, where a person is the unit
MOST_AT_ONCE = 500  # placeholders of one statement
MOST_ROWS = 500_000  # that a ledger knows one by one


@dataclass(frozen=True, eq=False)
class Holdings:
    """How often each row (`counts`) is with each client; the empty name has the test rows. Without `counts` (very many rows,
    or rows passed from Python) a ledger is used with exactly these rows. Guarantee: a row that was charged to one client is
    not charged to another later, and does not become a test row, as far as a hash of 128 bits tells rows apart; nor is a person,
    where a person is the unit, charged to another, with whatever rows. Assumes: a row that is changed is another row."""

    digest: str
    counts: Mapping[bytes, Mapping[str, int]] | None = field(default=None, repr=False)

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where a row has changed hands, or went over to the test rows, since this ledger was charged."""
        known = {digest for (digest,) in db.execute("SELECT digest FROM holdings")}
        if not known or self.digest in known:
            return
        other = f"The ledger {path} belongs to other data"
        if self.counts is None:
            raise LedgerError(
                f"{other} or another partition of it: its rows (passed from Python, or more than {MOST_ROWS:,}) it knows all"
                f" together, and they are not the same; put them back; {UNRELEASED}"
            )
        if not db.execute("SELECT 1 FROM held").fetchone():
            raise LedgerError(
                f"{other}: it was charged for more than {MOST_ROWS:,} rows, which it knows all together; put them back;"
                f" {UNRELEASED}"
            )
        for row, before in self._known(db):
            moved = _moved(self.counts[row], before)
            if moved:
                first, second = (f"client {name}" if name != TEST else "the test rows" for name in moved)
                what = "person" if row.startswith(PERSON) else "row"
                text = f"a {what} of {first} is now with {second}, so it would have the charges of both"
                if moved[1] == TEST:
                    text = f"a row that {first} was charged for is now among {second}, which are public"
                raise LedgerError(f"{other} or another partition of it: {text}; put it back; {UNRELEASED}")

    def note(self, db: sqlite3.Connection) -> None:
        known = {row for row, _ in self._known(db)}
        rows = [
            (row, client, 0 if row in known else count, count)
            for row, by_client in (self.counts or {}).items()
            for client, count in by_client.items()
        ]
        db.executemany(
            "INSERT INTO held VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET most = MAX(most, excluded.most)", rows
        )
        db.execute("INSERT OR IGNORE INTO holdings VALUES (?, ?)", (self.digest, now()))

    def _known(self, db: sqlite3.Connection) -> Iterator[tuple[bytes, dict[str, tuple[int, int]]]]:
        """The rows here that the ledger knows, each with (at first sight, at most) by client."""
        rows = sorted(self.counts or ())
        for start in range(0, len(rows), MOST_AT_ONCE):
            part = rows[start : start + MOST_AT_ONCE]
            known: dict[bytes, dict[str, tuple[int, int]]] = {}
            query = f"SELECT * FROM held WHERE row IN ({', '.join('?' * len(part))})"
            for row, client, first, most in db.execute(query, part):
                known.setdefault(row, {})[client] = (first, most)
            yield from known.items()


def _moved(here: Mapping[str, int], known: dict[str, tuple[int, int]]) -> tuple[str, str] | None:
    """(from, to) of a row that is new with one client and missing with another, or new in the test set at all."""
    for client, count in here.items():
        others = [other for other in known if other != client]
        gone = [other for other in others if here.get(other, 0) < known[other][1]]
        if count > known.get(client, (0, 0))[0] and (gone or (client == TEST and others)):
            return (gone or others)[0], client
    return None


def holdings(population: Population, dataset: Dataset, key: bytes, *, whole: bool = False) -> Holdings:
    """What every client holds, for training or not, and what is public: one hash per row under the ledger's key. `whole` asks
    for one hash of them all, in whatever order; of very many rows it is that, client by client and in their order.
    Assumes: rows are encoded alike in every run of the ledger; the population's identity sees to that."""
    parts = [part for part in (population, population.held) if part is not None]
    if sum(len(part.y) for part in parts) > MOST_ROWS:
        held = [one for part in parts for one in ("\x1f".join(part.names), part.digest())]
        return Holdings(keyed(key, digest_of("whole holdings", *held, rows_digest(dataset.test_x, dataset.test_y))))
    rows: list[tuple[bytes, str]] = []
    for part in parts:
        names = (part.names[k] for k in np.repeat(np.arange(len(part)), part.rows).tolist())
        rows += zip(row_hashes(part.x, part.y, key=key), names, strict=True)
        if part.persons is not None and not whole:  # whoever moves with new rows moves all the same
            names = (part.names[k] for k in np.repeat(np.arange(len(part)), part.sizes).tolist())
            rows += zip((PERSON + keyed(key, tag).encode() for tag in part.persons.tags), names, strict=True)
    rows += ((row, TEST) for row in row_hashes(dataset.test_x, dataset.test_y, key=key))
    if whole:
        return Holdings(keyed(key, b"".join(row + repr(client).encode() for row, client in sorted(rows))))
    counts = defaultdict[bytes, Counter[str]](Counter)
    for row, client in rows:
        counts[row][client] += 1
    hashed = hashlib.blake2b(digest_size=HASH_BYTES)
    for row in sorted(counts):
        hashed.update(row + repr(sorted(counts[row].items())).encode())
    return Holdings(hashed.hexdigest(), counts)
