"""Reading a ledger without writing to it: who was charged what, what other runs have sealed, and whether the file is sound. A
ledger that is being charged can be read; so can a copy on a disk that nobody may write to."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.disk import EVERYBODY, FORMAT, QUERY, reading, tables_of
from tacit.privacy.ledger.ledger import NOTHING, Before, Spent, sealed_before
from tacit.types import Unit

Key = TypeVar("Key")


# What other runs have sealed before a run is planned.


def read_before(path: Path, *, unit: str) -> Before:
    """What a ledger's runs have sealed in one unit; nothing where there is no ledger yet. It is opened for reading alone.
    Raises: LedgerError for a path where there can be no ledger, a file that is none, and one of another format."""
    if path.is_dir():
        example = path / "ledger.db"
        raise LedgerError(f"privacy.ledger = {str(path)!r} is a folder: name a file, for instance {example}.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise LedgerError(f"privacy.ledger = {str(path)!r} cannot be made: {above} is a file, not a folder.")
    if not disk.begun_at(path):
        return NOTHING
    with reading(path) as db:
        disk.refuse_other_format(db, path)
        return sealed_before(db, unit) if "seals" in tables_of(db) else NOTHING


def refuse_before(path: Path, *, population: str, conditions: Iterable[Callable[[bytes], disk.Condition]] = ()) -> None:
    """Refuses what a run on this ledger would be refused for: a lost or older copy, other data, rows that changed hands. It
    is for plans, which write nothing: the run itself asks again, within the transaction of its first charge. Raises
    LedgerError."""
    watermark = path.with_name(f"{path.name}.mark")
    disk.refuse_lost(path, watermark)
    if not disk.begun_at(path):
        return
    key = disk.key_of(path)
    for fault in behind(path, watermark):
        raise LedgerError(f"{path}: {fault}.")
    with reading(path) as db:
        disk.refuse_other_population(db, path, population, key)
        for condition in conditions:
            condition(key).refuse(db, path)


def recorded(record: Mapping[str, Any]) -> Before:
    """The inverse of `Before.record`. Raises KeyError, TypeError, ValueError or AttributeError for what is no such record."""
    sealed = {str(name): Spent(*map(float, pair)) for name, pair in record["sealed"].items()}
    return Before(int(record["runs"]), sealed)


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
    """Every charge, oldest first, as plain values under the names of `disk.COLUMNS`; an empty file has none. Raises:
    LedgerError for a file that is no ledger."""
    with reading(path) as db:
        return list(disk.charges(db)) if "charges" in tables_of(db) else []


@dataclass(frozen=True)
class Account:
    """One client in one run: what was sealed for it beforehand, and what it has used of that. `sealed` is the epsilon of
    `most` releases and counts against the budget; `used` that of the `releases` charged so far, both at the run's `delta`.
    Queries are releases, too. `purpose` is what it was for where it was no run of Tacit's."""

    client: str
    run: str
    unit: str
    delta: float
    sealed: float
    used: float
    releases: int
    most: int
    purpose: str = ""


def accounts(path: Path) -> list[Account]:
    """Every client of every run; what everybody was charged for stands under EVERYBODY. Raises: LedgerError for a file that
    is no ledger, BadInput for an event that this version cannot price."""
    with reading(path) as db:
        if "seals" not in tables_of(db):
            return []
        paid = defaultdict[tuple[str, str], list[tuple[str, int]]](list)
        query = "SELECT client, run, text, COUNT(*) FROM paid JOIN events ON events.id = paid.event"
        for client, run, text, count in db.execute(f"{query} GROUP BY client, run, text"):
            paid[client, run].append((text, count))
        counts = db.execute("SELECT client, run, COUNT(*) FROM queries GROUP BY client, run")
        queries = {(client, run): count for client, run, count in counts}
        rows = db.execute("SELECT client, run, unit, delta, epsilon, most FROM seals ORDER BY time").fetchall()
        known = disk.purposes(db)
    found = []
    for client, run, unit, delta, epsilon, most in rows:
        releases = price.compose((price.from_text(text), count) for text, count in paid[client, run])
        used = price.epsilon(releases, delta=delta)
        count, most = sum(count for _, count in paid[client, run]), most + queries.get((client, run), 0)
        purpose = known.get(run, "")
        found.append(Account(client or EVERYBODY, run, unit, delta, epsilon, used, count, most, purpose))
    return found


def totals(accounts: list[Account]) -> dict[tuple[str, str], tuple[float, float]]:
    """(epsilon, delta) by client and unit: the sums of what was sealed, by basic composition. Guarantee: an upper bound for
    what each client has spent in all runs, however they were chosen; units are never added, and what everybody was sealed for
    counts for each client.

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
    earlier one: `totals` is. Raises: BadInput for charges that have no price, or none in total."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for entry in charges:
        groups.setdefault((entry["client"], entry["unit"]), []).append((price.from_text(entry["event"]), 1))
    epsilons = {}
    for (client, unit), events in groups.items():
        shared = groups.get((EVERYBODY, unit), []) if client != EVERYBODY else []
        composition = price.compose([*events, *shared])
        epsilons[client, unit] = price.epsilon(composition, delta=delta)
    return epsilons


def release(entry: dict[str, Any]) -> str:
    """What a charge was for, as people read it: rounds count from 1 there, and a query belongs to none."""
    number = entry["round"]
    if number == QUERY:
        return f"query {entry['attempt'].partition(':')[0]}"
    return f"round {number + 1 if isinstance(number, int) else number}"


# Whether the file is sound.


def behind(path: Path, watermark: Path) -> Iterator[str]:
    """Whatever shows that a ledger has not come as far as the watermark beside it says; without one it is taken as it is.
    Raises: LedgerError for a watermark or a ledger that cannot be read."""
    if disk.read_watermark(watermark) is None:
        return
    with reading(path) as db:
        if disk.lacking(db, watermark) is not None:
            yield (
                f"it is an older copy, or another ledger, than the one {watermark} was written for: restore the newest copy"
            )


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
            return
        try:
            disk.refuse_other_secret(db, path, disk.key_of(path))
        except LedgerError as error:
            yield str(error)
        query = "SELECT COUNT(*) FROM paid WHERE event NOT IN (SELECT id FROM events)"
        orphans = db.execute(query).fetchone()[0]
        if orphans:
            yield f"{orphans} charges name an event that is not there"
        paid = list(disk.charges(db))
    for entry in paid:
        where = f"{release(entry)} of {entry['client']} in run {entry['run']}"
        try:
            price.from_text(entry["event"])
        except (ValueError, KeyError, TypeError):
            yield f"{where} was charged for something without a price: {entry['event']}"
        if entry["unit"] not in get_args(Unit):
            yield f"{where} was charged per {entry['unit']!r}, which is no unit"
        if entry["round"] < QUERY or not entry["time"]:
            yield f"{where} has no valid round or time"
