"""Reading a ledger without writing to it: who was charged what, what other runs have sealed, and whether the file is sound. A
ledger that is being charged can be read; so can a copy on a disk that nobody may write to. A mark beside a run or a site
says how far its ledger had come: a lost or older ledger is then noticed."""

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tacit import store
from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import sql
from tacit.privacy.ledger.filter import Spent
from tacit.privacy.ledger.sql import (
    ALL,
    EVERYBODY,
    FORMAT,
    QUERY,
    UNRELEASED,
    begun_at,
    charges,
    key_of,
    reading,
    tables_of,
)

if TYPE_CHECKING:
    from tacit.privacy.ledger.ledger import Ledger

NAME = "ledger.mark"
CHAIN_BYTES = 16
Key = TypeVar("Key")
UNITS = ("record", "client")


# Marks.


def chain(before: str, *parts: object) -> str:
    """The hash of a batch of charges (its run, round, attempt and clients) and of all before it, whose link is `before`."""
    text = json.dumps([before, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=CHAIN_BYTES).hexdigest()


def write_mark(path: Path, number: int, link: str) -> None:
    """Notes how far a ledger has come; a mark that is further stays. Guarantee: a kill or a power cut leaves the old mark or
    the new one. Runs that share a ledger write one after the other, by a lock beside the mark: one that overtook another
    would set the mark back. Raises: OSError where it cannot be written, LedgerError where the mark that is there cannot be
    read."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        known = read_mark(path)
        if known is not None and known[0] > number:
            return
        store.write(path, json.dumps({"batch": number, "chain": link}).encode(), mode=store.OWNER)


def read_mark(path: Path) -> tuple[int, str] | None:
    """(number of the last batch, its hash), or None where there is no mark. Raises LedgerError for one that cannot be read."""
    try:
        record = json.loads(path.read_text("utf-8"))
        return int(record["batch"]), str(record["chain"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} says how far the ledger had come, and cannot be read: put it back.") from None


def refuse_lost(ledger: Path, mark: Path) -> None:
    """Refuses to begin an empty ledger where one was charged before. Raises LedgerError."""
    if read_mark(mark) is not None and not begun_at(ledger):
        raise LedgerError(f"{ledger} is gone, but {mark} says that it was charged: restore the ledger; {UNRELEASED}")


def refuse_older(ledger: "Ledger", mark: Path) -> None:
    """Refuses a ledger that lacks charges which the mark knows, or has others under their number. Raises LedgerError."""
    batch = lacking(ledger, mark)
    if batch is not None:
        raise LedgerError(
            f"{ledger.path} is an older copy, or another ledger, than the one charged here (it lacks batch {batch} of"
            f" {mark}): restore the newest copy of the ledger; {UNRELEASED}"
        )


def lacking(ledger: "Ledger", mark: Path) -> int | None:
    """The batch that a mark knows and a ledger lacks, or has otherwise; None where it lacks none. Raises as `read_mark`."""
    known = read_mark(mark)
    return None if known is None or ledger.link(known[0]) == known[1] else known[0]


def marked(path: Path, mark: Path) -> Iterator[str]:
    """Whatever shows that a ledger has not come as far as the mark beside it says; a ledger without a mark is taken as it is.
    Raises: LedgerError for a mark or a file that cannot be read."""
    known = read_mark(mark)
    if known is None:
        return
    with reading(path) as db:
        query = "SELECT chain FROM batches WHERE number = ?"
        row = db.execute(query, (known[0],)).fetchone() if "batches" in tables_of(db) else None
    if row is None or row[0] != known[1]:
        yield f"it is an older copy, or another ledger, than the one {mark} was written for: restore the newest copy"


# What other runs have sealed before a run is planned: noise is sized for what they have left. A run keeps what it found in its
# own folder (`run.json`), so that resuming it gives the same noise.


@dataclass(frozen=True)
class Before:
    """The seals of other runs in one unit, by client; what everybody was sealed for stands under the empty name.

    >>> before = Before(1, {"": Spent(1.0, 1e-6), "north": Spent(0.5, 1e-6)})
    >>> before.of("north").epsilon, before.of("south").epsilon, before.of("").epsilon
    (1.5, 1.0, 1.5)
    """

    runs: int = 0
    sealed: Mapping[str, Spent] = field(default_factory=dict, repr=False)

    def of(self, client: str) -> Spent:
        """What counts for a client; of the empty name, for whoever has sealed most. There the largest epsilon and the largest
        delta are taken, which may be two clients': together they bound every client."""
        shared, own = self.sealed.get(ALL, Spent()), self._most if client == ALL else self.sealed.get(client, Spent())
        return Spent(shared.epsilon + own.epsilon, shared.delta + own.delta)

    @cached_property
    def _most(self) -> Spent:
        alone = [spent for name, spent in self.sealed.items() if name != ALL] or [Spent()]
        return Spent(max(spent.epsilon for spent in alone), max(spent.delta for spent in alone))

    def epsilons(self, names: Sequence[str], *, together: bool) -> np.ndarray:
        """The epsilon that is gone for each client; where all pay together, one noise protects all: what is gone for the
        tightest."""
        return np.array([self.of(ALL if together else name).epsilon for name in names])

    def record(self) -> dict[str, Any]:
        """For a run's folder: a resumed run keeps the noise it began with, whatever others have sealed meanwhile."""
        return {"runs": self.runs, "sealed": {name: [s.epsilon, s.delta] for name, s in self.sealed.items()}}


NOTHING = Before()


def sealed(db: sqlite3.Connection, unit: str, *, but: str = "") -> Before:
    """What the runs of a ledger, but one, have sealed in one unit."""
    which = "FROM seals WHERE run != ? AND unit = ?"
    rows = db.execute(f"SELECT client, TOTAL(epsilon), TOTAL(delta) {which} GROUP BY client", (but, unit)).fetchall()
    (runs,) = db.execute(f"SELECT COUNT(DISTINCT run) {which}", (but, unit)).fetchone()
    return Before(runs, {client: Spent(epsilon, delta) for client, epsilon, delta in rows})


def read_before(path: Path, *, unit: str) -> Before:
    """What a ledger's runs have sealed in one unit; nothing where there is no ledger yet. It is opened for reading alone.
    Raises: LedgerError for a path where there can be no ledger, a file that is none, and one of another format."""
    if path.is_dir():
        example = path / "ledger.db"
        raise LedgerError(f"privacy.ledger = {str(path)!r} is a folder: name a file, for instance {example}.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise LedgerError(f"privacy.ledger = {str(path)!r} cannot be made: {above} is a file, not a folder.")
    if not begun_at(path):
        return NOTHING
    with reading(path) as db:
        sql.refuse_other_format(db, path)
        return sealed(db, unit) if "seals" in tables_of(db) else NOTHING


def refuse_before(path: Path, *, population: str, conditions: Iterable[Callable[[bytes], sql.Condition]] = ()) -> None:
    """Refuses what a run on this ledger would be refused for: a lost or older copy, other data, rows that changed hands. It
    is for plans, which write nothing: the run itself asks again, within the transaction of its first charge. Raises
    LedgerError."""
    mark = path.with_name(f"{path.name}.mark")
    refuse_lost(path, mark)
    if not begun_at(path):
        return
    key = key_of(path)
    for fault in marked(path, mark):
        raise LedgerError(f"{path}: {fault}.")
    with reading(path) as db:
        sql.refuse_other_population(db, path, population, key)
        for condition in conditions:
            condition(key).refuse(db, path)


def recorded(record: Mapping[str, Any]) -> Before:
    """The inverse of `Before.record`. Raises KeyError, TypeError, ValueError or AttributeError for what is no such record.

    >>> recorded(Before(1, {"north": Spent(0.5, 1e-6)}).record())
    Before(runs=1)
    """
    found = {str(name): Spent(float(epsilon), float(delta)) for name, (epsilon, delta) in record["sealed"].items()}
    return Before(int(record["runs"]), found)


def noted(path: Path) -> Before:
    """What a run's folder notes (`run.json`). Raises LedgerError where the file is missing or damaged."""
    try:
        return recorded(json.loads(path.read_text("utf-8")).get("before", NOTHING.record()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise LedgerError(f"{path} is missing or damaged, so nobody knows the run's noise: put it back.") from None


# Who was charged what.


def find(path: Path) -> Path:
    """The ledger file itself, or the one in a run's or a site's folder. Raises: LedgerError where there is none, naming those
    in folders below."""
    file = path / "ledger.db" if path.is_dir() else path
    if not file.is_file():
        below = sorted(str(ledger.parent) for ledger in path.rglob("ledger.db")) if path.is_dir() else []
        raise LedgerError(f"There is no ledger at {file}{': look at ' + ', '.join(below) if below else ''}.")
    return file


def entries(path: Path) -> list[dict[str, Any]]:
    """Every charge, oldest first, as plain values under the names of `sql.COLUMNS`; an empty file has none. Raises:
    LedgerError for a file that is no ledger."""
    with reading(path) as db:
        return list(charges(db)) if "charges" in tables_of(db) else []


@dataclass(frozen=True)
class Account:
    """One client in one run: what was sealed for it beforehand, and what it has used of that. `sealed` is the epsilon of
    `most` releases and counts against the budget; `used` that of the `releases` charged so far, both at the run's `delta`.
    Queries are releases, too."""

    client: str
    run: str
    unit: str
    delta: float
    sealed: float
    used: float
    releases: int
    most: int


def accounts(path: Path) -> list[Account]:
    """Every client of every run; what everybody was charged for stands under EVERYBODY. Raises: LedgerError for a file that
    is no ledger, BadInput for an event that this version cannot price."""
    with reading(path) as db:
        if "seals" not in tables_of(db):
            return []
        paid = "SELECT client, run, round, event FROM charges UNION ALL SELECT '', run, round, event FROM everybody"
        rows = db.execute(
            "SELECT seals.client, seals.run, unit, delta, epsilon, text, COUNT(paid.run), most FROM seals"
            f" JOIN events ON events.id = seals.event LEFT JOIN (SELECT * FROM ({paid}) WHERE round >= 0) AS paid"
            " ON paid.client = seals.client AND paid.run = seals.run GROUP BY seals.client, seals.run ORDER BY seals.time"
        ).fetchall()
        answered: dict[tuple[str, str], list[str]] = {}
        query = "SELECT client, run, text FROM charges JOIN events ON events.id = charges.event WHERE round < 0"
        for client, run, text in db.execute(query):
            answered.setdefault((client, run), []).append(text)
        counts = db.execute("SELECT client, run, COUNT(*) FROM asked GROUP BY client, run")
        asked = {(client, run): count for client, run, count in counts}
    found = []
    for client, run, unit, delta, epsilon, text, count, most in rows:
        queries = answered.get((client, run), [])
        paid = price.compose((price.from_text(one), n) for one, n in [(text, count), *((one, 1) for one in queries)])
        used = price.epsilon(paid, delta=delta, accountant=price.accountant_for(paid))
        most, releases = most + asked.get((client, run), 0), count + len(queries)
        found.append(Account(client or EVERYBODY, run, unit, delta, epsilon, used, releases, most))
    return found


def totals(accounts: list[Account]) -> dict[tuple[str, str], tuple[float, float]]:
    """(epsilon, delta) by client and unit: the sums of what was sealed, by basic composition (filter.py). Guarantee: an upper
    bound for what each client has spent in all runs, however they were chosen; units are never added. What everybody was
    sealed for counts for each client that is named.

    >>> one = Account("north", "a", "client", 1e-6, sealed=1.0, used=0.5, releases=3, most=6)
    >>> totals([one, Account(EVERYBODY, "b", "client", 1e-6, 2.0, 2.0, 9, 9)])["north", "client"][0]
    3.0
    """
    sums = _sums(((each.client, each.unit), each) for each in accounts)
    for (client, unit), (epsilon, delta) in sums.items():
        if client != EVERYBODY and (EVERYBODY, unit) in sums:
            more = sums[EVERYBODY, unit]
            sums[client, unit] = (epsilon + more[0], delta + more[1])
    return sums


def at_one_site(accounts: list[Account]) -> dict[str, tuple[float, float]]:
    """(epsilon, delta) by unit of what a site's own ledger has sealed: all of it is about the same rows, whatever the site's
    name."""
    return _sums((each.unit, each) for each in accounts)


def _sums(accounts: Iterable[tuple[Key, Account]]) -> dict[Key, tuple[float, float]]:
    sums: dict[Key, tuple[float, float]] = {}
    for key, each in accounts:
        epsilon, delta = sums.get(key, (0.0, 0.0))
        sums[key] = (epsilon + each.sealed, delta + each.delta)
    return sums


def spent(charges: list[dict[str, Any]], *, delta: float) -> dict[tuple[str, str], float]:
    """The joint price of everything charged, by client and unit; what everybody was charged for counts for each. Assumes: the
    runs did not depend on each other. Over several runs this is no bound where a later one was chosen after seeing an
    earlier one: `totals` is. Raises: BadInput for charges that have no price, or none together."""
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


def release(entry: dict[str, Any]) -> str:
    """What a charge was for, as people read it: rounds count from 1 there, and a query belongs to none.

    >>> release({"round": 0, "attempt": "c0"}), release({"round": QUERY, "attempt": "range age:c0"})
    ('round 1', 'query range age')
    """
    number = entry["round"]
    if number == QUERY:
        return f"query {entry['attempt'].partition(':')[0]}"
    return f"round {number + 1 if isinstance(number, int) else number}"


def faults(path: Path) -> Iterator[str]:
    """Whatever is wrong with a ledger, a sentence each: damage, another format, no secret, charges without a price or a time.
    Raises: LedgerError for a file that cannot be read at all."""
    with reading(path) as db:
        for (text,) in db.execute("PRAGMA integrity_check").fetchall():
            if text != "ok":
                yield f"the file is damaged: {text}"
        if "charges" not in tables_of(db):
            return
        (format,) = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone() or ("none",)
        if format != FORMAT:
            yield f"it has format {format}, and this version reads {FORMAT}"
        else:
            try:
                sql.refuse_other_secret(db, path, key_of(path))
            except LedgerError as error:
                yield str(error)
        orphans = "SELECT COUNT(*) FROM {} WHERE event NOT IN (SELECT id FROM events)"
        lost = sum(db.execute(orphans.format(table)).fetchone()[0] for table in ("charges", "everybody"))
        if lost:
            yield f"{lost} charges name an event that is not there"
    for entry in entries(path):
        where = f"{release(entry)} of {entry['client']} in run {entry['run']}"
        try:
            price.from_text(entry["event"])
        except (ValueError, KeyError, TypeError):
            yield f"{where} was charged for something without a price: {entry['event']}"
        if entry["unit"] not in UNITS:
            yield f"{where} was charged per {entry['unit']!r}, which is no unit"
        if entry["round"] < QUERY or not entry["time"]:
            yield f"{where} has no valid round or time"
