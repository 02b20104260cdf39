"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is released.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of
(tacit/engine/release.py): the very same release is paid once, anything else again. Within a run a client releases one event
at most `most` times, and each of its queries once, all fixed when it is first charged: that joint price is sealed before
the first release. Across runs, chosen after seeing the ones before, what other runs have sealed counts as spent: basic
composition is a valid filter and odometer (arXiv:1605.08294, section 3), also for concurrent runs (arXiv:2309.05901v2), and
joint privacy losses are none (arXiv:2602.06756)."""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from dp_accounting import DpEvent

from tacit.errors import AnsweredOnce, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.disk import ALL, EVERYBODY, NOTE, PURPOSE, QUERY, Condition, now
from tacit.types import Budget, Client, Unit

RULE = "basic composition of what the others sealed when they began and this one has used, arXiv:1605.08294"
SPARE_SHARE, SPARE = 10, 2  # repeated rounds are paid again: a tenth of the planned ones and two more are sealed too
ROUNDING = 1e-9  # of a delta: shares like 0.1 do not add up to 1 in binary
BATCHES = "SELECT {} FROM batches WHERE run = ? AND round {} ?"
SEALS = "SELECT {} FROM seals JOIN events ON events.id = seals.event WHERE run {} ?"
text_of = lru_cache(maxsize=100_000)(price.to_text)

Cost = Callable[[Client], DpEvent]
QueryEvents = Mapping[str, DpEvent]  # the queries of a run, by name: each is released once
NO_QUERIES: QueryEvents = {}


# What is sealed for a client before its first release in a run, and what other runs have sealed.


class Spent(NamedTuple):
    """What other runs have sealed: it counts whether they use it or not."""

    epsilon: float = 0.0
    delta: float = 0.0


@dataclass(frozen=True)
class Before:
    """The seals of other runs in one unit, by client; what everybody was sealed for stands under the empty name. Noise is
    sized for what they leave; a run keeps this in `run.json`, so that resuming it gives the same noise."""

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
        """The epsilon that is gone for each client; where all pay in one row, what is gone for the tightest."""
        return np.array([self.of(ALL if together else name).epsilon for name in names])

    def record(self) -> dict[str, Any]:
        """For a run's folder."""
        return {"runs": self.runs, "sealed": dict(self.sealed)}


NOTHING = Before()


def sealed_before(db: sqlite3.Connection, unit: str, *, but: str = "") -> Before:
    """What the runs of a ledger, but one, have sealed in one unit."""
    which = "FROM seals WHERE run != ? AND unit = ?"
    rows = db.execute(f"SELECT client, TOTAL(epsilon), TOTAL(delta) {which} GROUP BY client", (but, unit)).fetchall()
    (runs,) = db.execute(f"SELECT COUNT(DISTINCT run) {which}", (but, unit)).fetchone()
    return Before(runs, {client: Spent(epsilon, delta) for client, epsilon, delta in rows})


@dataclass(frozen=True)
class Seal:
    """One client in one run: at most `most` releases of one event and one of each query, for `epsilon` at `delta`. Guarantee:
    `epsilon` is the price of all these releases at `delta`, computed before the first of them."""

    unit: str
    event: str
    delta: float
    most: int
    epsilon: float
    queries: tuple[tuple[str, str], ...] = ()  # (query, event), in the order of the queries' names

    def __str__(self) -> str:
        queries = "".join(f" and the query {name} with {event}" for name, event in self.queries)
        return f"{self.event}{queries} per {self.unit} at delta {self.delta:g}"

    def refuse_other(self, budget: Budget, event: DpEvent, *, who: str, path: object, queries: QueryEvents) -> None:
        """Refuses a charge with another event, unit or delta, or other queries: the price is that of one event, fixed
        beforehand. Raises: LedgerError, which says what was sealed and what is asked."""
        new = Seal(budget.unit, text_of(event), budget.delta, self.most, self.epsilon, _texts(queries))
        if new != self:
            raise LedgerError(
                f"The ledger {path} has sealed this run for {who} with {self}, and it now asks for {new}: put its"
                " budgets and settings back as they were, or start another run; nothing was released."
            )

    def stands(self, budget: Budget, *, before: Spent, most_epsilon: float = math.inf) -> bool:
        """Whether all that was sealed is still within the budget: it is not where that, or `most_epsilon`, was lowered since."""
        if self.epsilon > most_epsilon * (1 + ROUNDING):
            return False
        return budget.epsilon == math.inf or before.epsilon + self.epsilon <= budget.epsilon * (1 + ROUNDING)


def _texts(queries: QueryEvents) -> tuple[tuple[str, str], ...]:
    return tuple((name, text_of(queries[name])) for name in sorted(queries))


def with_spare(rounds: int) -> int:
    """The releases that a run of so many planned rounds seals at most."""
    return rounds + rounds // SPARE_SHARE + SPARE


def most_releases(
    budget: Budget,
    event: DpEvent,
    *,
    before: Spent,
    total_delta: float,
    rounds: int,
    hint: int,
    most_epsilon: float = math.inf,
    queries: QueryEvents = NO_QUERIES,
    spare: bool = True,
) -> int:
    """How many releases of the event may be sealed beside the queries, after what other runs have sealed; 0 where none can.
    Guarantee: the epsilon of so many releases and of every query, added to `before.epsilon`, is at most `budget.epsilon` and
    `most_epsilon`, and the run's delta, added to `before.delta`, at most `total_delta` (to ROUNDING)."""
    remaining = min(most_epsilon, math.inf if budget.epsilon == math.inf else budget.epsilon - before.epsilon)
    if remaining <= 0 or before.delta + budget.delta > total_delta * (1 + ROUNDING):
        return 0
    most = with_spare(rounds) if spare else rounds
    spent = price.compose((query, 1) for query in queries.values())
    limits = {"epsilon": remaining, "delta": budget.delta, "most": most, "hint": min(hint, most)}
    return price.affordable(event, spent=spent, **limits)


def seal(budget: Budget, event: DpEvent, *, most: int, queries: QueryEvents = NO_QUERIES) -> Seal:
    """The price of `most` releases (as `most_releases` allowed) and of the queries, before the first of them; nothing is
    written. Raises: BadInput for an event without a price."""
    composition = price.compose([(event, most), *((query, 1) for query in queries.values())])
    epsilon = price.epsilon(composition, delta=budget.delta)
    return Seal(budget.unit, text_of(event), budget.delta, most, epsilon, _texts(queries))


class Ledger:
    """A ledger file, opened for one start of one run, which may spend `delta` in all and plans so many `rounds`. `queries`
    gives a client's queries; without `spare` no repeated rounds are sealed; `watermarks` say how far the ledger has come;
    `conditions` are noted with the first charge; `refuse_copies` is asked before and after every charge.

    Guarantee: after `admit` returns, what it charged is on disk; over all runs of the file no client's sealed prices add up
    to more than its budget at the time of sealing. A client has at most one seal a run, written before its first release
    and never changed. Assumes: a release is made only after `admit` has returned, and `attempt` names everything its bits
    depend on. Whoever can write to the file can forge it. Raises: LedgerError where the file cannot be opened or
    contradicts any of this."""

    def __init__(
        self,
        path: Path | str,
        *,
        population: str | None,
        run: str,
        delta: float | None = None,
        rounds: int = 10**6,
        most_epsilon: float = math.inf,
        queries: Callable[[str], QueryEvents] = lambda client: NO_QUERIES,
        spare: bool = True,
        watermarks: Sequence[Path] = (),
        conditions: Sequence[Callable[[bytes], Condition]] = (),
        refuse_copies: Callable[["Ledger"], None] = lambda ledger: None,
    ):
        self.path, self.run = Path(path), run
        self._delta, self._rounds, self._most_epsilon, self._spare = delta, rounds, most_epsilon, spare
        self._queries, self._watermarks, self._refuse_copies = queries, tuple(watermarks), refuse_copies
        for watermark in self._watermarks:
            disk.refuse_lost(self.path, watermark)
        self._key = disk.key_of(self.path)
        self._db = disk.connect(self.path, population=population, key=self._key)
        for watermark in self._watermarks:
            self.refuse_older(watermark)
        self._conditions = [condition(self._key) for condition in conditions]
        for condition in self._conditions:
            condition.refuse(self._db, self.path)
        self._round, self._attempt = 0, ""
        self.ahead = False  # whether rounds after the open one are on disk: those of a run that lost its checkpoint
        self.again = False  # whether the open round is on disk, under this very attempt
        self._version = self._data_version()
        self._forget()

    def close(self) -> None:
        """Closes the file. Nothing is pending: every charge was written when it was made."""
        self._db.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}: {self._value('SELECT COUNT(*) FROM paid')} charges; entries() lists them)"

    def _value(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        return row[0] if row else None

    # Charging.

    def open_round(self, round: int, attempt: str) -> None:
        """Says which release of which round is paid for next, before every `admit`. It writes nothing. Until the round is
        paid, `rounds_left` counts it as still to come even where a crash left it on disk. Raises: LedgerError for a round
        below zero: there queries are charged, and what is sealed does not count it."""
        if round < 0:
            raise LedgerError(f"The ledger {self.path} opens no round of the number {round}: they are counted from 0.")
        self._open(round, self.keyed(attempt))
        self.ahead = self._value(BATCHES.format("1", ">"), self.run, round) is not None
        self._forget_if_changed()

    def _open(self, round: int, attempt: str) -> None:
        self._round, self._attempt, self.again = round, attempt, attempt in self._attempts(round)

    def admit(
        self, clients: Sequence[Client], cost: Callable[[Client], DpEvent | None], *, hint: int = 1
    ) -> list[Client]:
        """Charges every client that can pay for the open round, and returns those, in the order given. Guarantee: on return
        charges and new seals are on disk in one transaction, and the watermarks after it; whoever was charged for this very
        attempt before is returned and not charged again. Raises: LedgerError if the charge could not be written, is another
        than was sealed, or contradicts a condition; BadInput for an event without a price. Then nothing may be released. A client
        that opted out (no event, and no limit) is returned and not charged; whoever has a limit and no event raises LedgerError."""
        asking = [(client.id, client.budget, event) for client in clients if (event := cost(client)) is not None]
        out = {client.id for client in clients} - {name for name, *_ in asking}
        if any(client.id in out and client.budget.epsilon != math.inf for client in clients):
            raise LedgerError(
                f"The ledger {self.path} was given no price for a client that has a limit: nothing was released."
            )
        paid = self._pay(asking, hint, free=bool(out))
        self._close_round()
        return [client for client in clients if client.id in paid or client.id in out]

    def admit_everybody(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> bool:
        """Charges every client of the population for the open round, in one row, if each can pay within `budget`; else
        nobody, and False. Clients that were charged alone in other runs are counted by the one that has sealed most. Raises:
        as `admit`."""
        paid = bool(self._pay([(ALL, budget, event)], hint))
        if paid:
            self._close_round()
        return paid

    def charge(self, name: str, budget: Budget, event: DpEvent, *, purpose: str) -> bool:
        """Charges one client, or with the empty name all, for the open round of something that is no run of Tacit's, and notes
        with its seal what it is for; False, with nothing written, where the budget does not pay for it. Raises: as `admit`."""
        paid = bool(self._pay([(name, budget, event)], 1, purpose))
        if paid:
            self._close_round()
        return paid

    def admit_all(self, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> bool:
        """Charges each of these clients its own event for the open round if every one can pay; else nobody, and False. Raises: as
        `admit`."""
        paid = bool(self._pay([(client.id, client.budget, cost(client)) for client in clients], hint, all_or_none=True))
        if paid:
            self._close_round()
        return paid

    def _pay(
        self,
        asking: Sequence[tuple[str, Budget, DpEvent]],
        hint: int,
        purpose: str = "",
        *,
        all_or_none: bool = False,
        free: bool = False,
    ) -> set[str]:
        with self._charging():
            paying = [one for one in asking if self._left(*one, hint) >= 1]
            if all_or_none and len(paying) < len(asking):
                paying = []
            if purpose and paying and not self._seals:
                self._link(PURPOSE, purpose)
            for one in paying:
                self._seal(*one, hint=hint)
            self._charge(paying)
            if free and not paying and not self.again:  # a round of clients that opted out is known, too
                self._link(self._round, self._attempt)
        return {name for name, *_ in paying}

    def answer(self, query: str, attempt: str, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for a query of this run and one round beside it, and returns those; `cost` is
        that of a round. Guarantee: as `admit`; of one query a client is charged for one attempt: the same one is free, no
        other is ever allowed. Raises: AnsweredOnce where it was charged under another attempt, KeyError for a query that was
        not planned."""
        with self._charging():
            self._open(QUERY, f"{query}:{self.keyed(attempt)}")
            paying = [client for client in clients if self._pays_once(query, client, cost(client), hint)]
            for client in paying:
                self._seal(client.id, client.budget, cost(client), hint=hint)
            self._charge([(client.id, client.budget, self._queries(client.id)[query]) for client in paying])
        self._close_round()
        return paying

    def release(self, what: str, digest: str) -> None:
        """Notes, on disk, which vector is about to be released under a name of this run, where that may happen once. Raises:
        LedgerError where it was another one before, in whichever copy of the run's folder; then nothing may be released."""
        digest = self.keyed(digest)
        condition = disk.released(self.run, what, digest)
        with self._charging():
            condition.refuse(self._db, self.path)
            if condition.known(self._db) is None:
                condition.note(self._db)
                self._link(
                    NOTE, f"{what}:{digest}"
                )  # so that a watermark tells an older copy, which does not know of it

    def released(self, what: str) -> bool:
        """Whether something was released under a name of this run."""
        return disk.released(self.run, what, "").known(self._db) is not None

    def refuse_copies(self) -> None:
        """Refuses to go on where a copy of this ledger was charged for what this one does not know. Raises LedgerError."""
        self._refuse_copies(self)

    def refuse_older(self, watermark: Path) -> None:
        """Refuses a ledger that lacks charges which the watermark knows. Raises LedgerError."""
        disk.refuse_older(self._db, self.path, watermark)

    def lacks(self, watermark: Path) -> bool:
        """Whether the watermark knows of charges that are not here. Raises LedgerError for one that cannot be read."""
        return disk.lacking(self._db, watermark) is not None

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing; then the watermarks say how far the ledger has come. Copies are
        looked for before it, so that the later one pays nothing, and after the watermarks: of two that charge in the same
        second at least one sees the other's watermark, and releases nothing."""
        done = False
        self.refuse_copies()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_if_changed()
            yield
            for condition in self._conditions:
                condition.refuse(self._db, self.path)  # another run may have noted others meanwhile
                condition.note(self._db)
            last = self._last_batch()
            self._db.execute("COMMIT")
            self._conditions.clear()
            if last is not None:
                for watermark in self._watermarks:
                    disk.write_watermark(watermark, *last)
            done = True
        except (sqlite3.Error, OSError) as error:
            what = "a query" if self._round == QUERY else f"round {self._round + 1}"
            text = f"The ledger {self.path} could not be charged for {what} ({error})"
            raise LedgerError(f"{text}; nothing was released.") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not done:  # SQLite may have taken the transaction back, or only a watermark could not be written
                self._forget()
        self.refuse_copies()

    def _charge(self, paying: Iterable[tuple[str, Budget, DpEvent]]) -> None:
        new = [one for one in paying if not (self.again and self._repeated(one[0]))]
        query, time = "SELECT id FROM events WHERE text = ?", now()
        ids = {event: self._value(query, text_of(event)) for event in {event for *_, event in new}}
        for name, budget, event in new:
            row = (self.run, self._round, self._attempt, budget.unit, ids[event], time)
            if name == ALL:
                self._db.execute("INSERT INTO everybody VALUES (?, ?, ?, ?, ?, ?)", row)
            else:
                self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", (name, *row))
            if name in self._used and self._round != QUERY:  # else it is read from the disk when it is asked for
                self._used[name] += 1
        if new:
            self._link(self._round, self._attempt, *(name or EVERYBODY for name, *_ in new))

    def _link(self, round: int, attempt: str, *names: str) -> None:
        last = self._last_batch()
        link = disk.chain(last[1] if last else "", self.run, round, attempt, *names)
        self._db.execute(
            "INSERT INTO batches (run, round, attempt, charges, chain, time) VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, round, attempt, len(names), link, now()),
        )

    def _last_batch(self) -> tuple[int, str] | None:
        return self._db.execute("SELECT number, chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()

    def _close_round(self) -> None:
        self.again, self._attempt = False, ""

    # How often a client can still pay.

    def rounds_left(self, client: Client, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, the client can pay for in this run; before the first charge,
        what would be sealed. Raises: LedgerError for another event, unit or delta than was sealed; BadInput for one without a
        price."""
        return self._left(client.id, client.budget, event, hint)

    def rounds_left_to_all(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, every client can pay for. Raises as `rounds_left`."""
        return self._left(ALL, budget, event, hint)

    def _left(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        most = self._most(name, budget, event, hint)
        return most - self._used_by(name) + self._repeated(name) if name in self._seals else most

    def _pays_once(self, query: str, client: Client, event: DpEvent, hint: int) -> bool:
        """Whether a client pays for a query, or has paid for this very attempt. Raises AnsweredOnce where it paid for another."""
        rows = "SELECT attempt FROM charges WHERE client = ? AND run = ? AND round = ? AND attempt LIKE ? || ':%'"
        known = {attempt for (attempt,) in self._db.execute(rows, (client.id, self.run, QUERY, query))}
        if known - {self._attempt}:
            raise AnsweredOnce(
                f"The ledger {self.path} has charged {client.id} for the query {query!r} of this run, and its answer is not kept"
                " or not the one that would be given now: a query is answered once, so start another run; nothing was released."
            )
        return bool(known) or self._most(client.id, client.budget, event, hint) >= max(1, self._used_by(client.id))

    def _used_by(self, name: str) -> int:
        if name not in self._used:
            self._used[name] = self._on_disk(name, "round >= 0")
        return self._used[name]

    def _repeated(self, name: str) -> int:
        """How many of the releases on disk are those still to come: the open one, left by a crash, or later ones. Of later
        rounds nobody knows yet whether they repeat; when such a round is opened, its attempt decides."""
        if not (self.again or (self._attempt == "" and self.ahead)):
            return 0
        return self._on_disk(name, "round = :round AND attempt = :attempt" if self._attempt else "round > :round")

    def _on_disk(self, name: str, which: str) -> int:
        table, mine = ("everybody", "") if name == ALL else ("charges", "client = :client AND")
        query = f"SELECT COUNT(*) FROM {table} WHERE {mine} run = :run AND {which}"
        values = {"client": name, "run": self.run, "round": self._round, "attempt": self._attempt}
        return self._db.execute(query, values).fetchone()[0]

    # Sealing: what a run may release about each client, once, within the transaction of the client's first charge.

    @property
    def _seals(self) -> dict[str, Seal]:
        if self._known_seals is None:
            queries = defaultdict[str, list[tuple[str, str]]](list)
            query = "SELECT client, query, text FROM queries JOIN events ON events.id = queries.event WHERE run = ?"
            for name, *one in self._db.execute(f"{query} ORDER BY query", (self.run,)):
                queries[name].append((one[0], one[1]))
            rows = self._db.execute(SEALS.format("client, unit, text, delta, most, epsilon", "="), (self.run,))
            self._known_seals = {name: Seal(*row, queries=tuple(queries[name])) for name, *row in rows}
        return self._known_seals

    def _most(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        """How many releases of `event` this run may charge to a client in all, those on disk included. As many as were
        sealed; fewer where the budget was lowered since; before the first charge, as many as would be sealed."""
        known = self._seals.get(name)
        if known is None:
            return self._affordable(name, budget, event, hint)
        known.refuse_other(budget, event, who=name or EVERYBODY, path=self.path, queries=self._queries(name))
        if known.stands(budget, before=self.before(name, budget.unit), most_epsilon=self._most_epsilon):
            return known.most
        return min(known.most, self._affordable(name, budget, event, hint))

    def _seal(self, name: str, budget: Budget, event: DpEvent, *, hint: int) -> None:
        """Seals what the run may release about a client; nothing where that is done. Assumes: a transaction is open, in which
        the client's first charge follows, and `_most` allowed at least one release."""
        if name in self._seals:
            return
        if self._seals if name == ALL else ALL in self._seals:  # one share of delta covers one of the two
            raise LedgerError(
                f"In one run of the ledger {self.path} either all clients pay together or each for itself."
            )
        most = self._affordable(name, budget, event, hint)
        new = seal(budget, event, most=most, queries=self._queries(name))
        texts = [(text,) for text in (new.event, *(text for _, text in new.queries))]
        self._db.executemany("INSERT OR IGNORE INTO events (text) VALUES (?)", texts)
        self._db.executemany(
            "INSERT INTO queries SELECT ?, ?, ?, id FROM events WHERE text = ?",
            [(name, self.run, query, text) for query, text in new.queries],
        )
        self._db.execute(
            "INSERT INTO seals SELECT ?, ?, ?, id, ?, ?, ?, ? FROM events WHERE text = ?",
            (name, self.run, new.unit, new.delta, new.most, new.epsilon, now(), new.event),
        )
        self._seals[name], self._used[name] = new, 0

    def _affordable(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        return most_releases(
            budget,
            event,
            before=self.before(name, budget.unit),
            total_delta=budget.delta if self._delta is None else self._delta,
            rounds=self._rounds,
            most_epsilon=self._most_epsilon,
            hint=hint,
            queries=self._queries(name),
            spare=self._spare,
        )

    # What was charged and sealed.

    def before(self, client: str, unit: str) -> Spent:
        """What other runs have sealed for a client in one unit; of the empty name, for whoever has sealed most. Sealed means:
        counted in full, whether those runs go on, were abandoned, or have released less. Seals of everybody count for each
        client."""
        if unit not in self._before:
            self._before[unit] = sealed_before(self._db, unit, but=self.run)
        return self._before[unit].of(client)

    def other_runs(self, unit: Unit, *, apart: bool = False) -> int:
        """How many other runs have sealed a price in this unit; with `apart`, in another one. Units are never added."""
        self._forget_if_changed()
        units = [other for other in get_args(Unit) if other != unit] if apart else [unit]
        for each in units:
            self.before(ALL, each)
        return sum(self._before[each].runs for each in units)

    def other_releases(self, unit: Unit) -> int:
        """How many of the other runs of a unit are no run of Tacit's, but another release (`charge`)."""
        known = "run IN (SELECT run FROM batches WHERE round = ?)"
        query = f"SELECT COUNT(DISTINCT run) FROM seals WHERE run != ? AND unit = ? AND {known}"
        return self._value(query, self.run, unit, PURPOSE)

    def sealed_elsewhere(self, unit: str) -> Iterator[tuple[str, DpEvent, int, float, float]]:
        """(client, event, most, delta, epsilon) of every seal of other runs in one unit; the empty name is everybody. Raises:
        BadInput for an event that this version cannot price."""
        for client, text, *numbers in self._of_other_runs(unit):
            yield client, price.from_text(text), *numbers

    def _of_other_runs(self, unit: str) -> sqlite3.Cursor:
        query = SEALS.format("client, text, most, delta, epsilon", "!=")
        return self._db.execute(f"{query} AND unit = ?", (self.run, unit))

    def composition(self, client: str | None, unit: str) -> price.Composition:
        """What this run has charged to the client in one unit, all attempts counted; of None, to every client. It is what
        `price.epsilon` takes: equal events counted together, the charges to everybody among them."""
        return price.compose((event, n) for _, event, n in self._releases(unit, ALL, client or ALL))

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that this run charged by itself, read at once."""
        paid = defaultdict[str, list[tuple[DpEvent, int]]](list)
        for client, event, count in self._releases(unit):
            paid[client].append((event, count))
        shared = paid.pop(ALL, [])
        return {client: price.compose([*shared, *own]) for client, own in paid.items()}

    def _releases(self, unit: str, *clients: str) -> list[tuple[str, DpEvent, int]]:
        mine = f" AND client IN ({', '.join('?' * len(clients))})" if clients else ""
        query = (
            "SELECT client, text, COUNT(*) FROM paid JOIN events ON events.id = paid.event WHERE run = ? AND unit = ?"
        )
        rows = self._db.execute(f"{query}{mine} GROUP BY client, text", (self.run, unit, *clients))
        return [(client, price.from_text(text), count) for client, text, count in rows]

    def spent(self, client: Client) -> float:
        """The epsilon of all that other runs have sealed and of all that this one has charged, in the budget's unit.
        Guarantee: an upper bound for whatever order the runs were chosen in (basic composition). It holds at the sum of
        the runs' deltas."""
        return self.before(client.id, client.budget.unit).epsilon + self.alone(client)

    def alone(self, client: Client) -> float:
        """The epsilon, at the run's own delta, of what this run has charged to the client, alone or with everybody."""
        composition = self.composition(client.id, client.budget.unit)
        return price.epsilon(composition, delta=client.budget.delta)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every charge of every run, oldest first, as plain values."""
        return disk.charges(self._db)

    def charged(self) -> set[str]:
        """The clients that were ever charged by themselves, in whatever run."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM seals") if client != ALL}

    def charged_most(self) -> str | None:
        """Whom this run has charged by itself most often; None before its first such charge."""
        query = "SELECT client FROM charges WHERE run = ? AND round >= 0 GROUP BY client ORDER BY COUNT(*) DESC LIMIT 1"
        return self._value(query, self.run)

    def charged_before(self, round: int, attempt: str) -> bool:
        """Whether another attempt at a round of this run was charged: another release of it may have been seen."""
        return bool(self._attempts(round) - {self.keyed(attempt)})

    def is_first(self, round: int, attempt: str) -> bool:
        """Whether no attempt at a round of this run was charged before this one: once that is so, it stays so."""
        first = self._value(f"{BATCHES.format('attempt', '=')} ORDER BY number LIMIT 1", self.run, round)
        return first in (None, self.keyed(attempt))

    def charged_rounds(self) -> int:
        """How many releases of this run are on disk: a round that was paid for twice counts twice."""
        rows = "SELECT DISTINCT round, attempt FROM paid WHERE run = ? AND round >= 0"  # queries belong to no round
        return self._value(f"SELECT COUNT(*) FROM ({rows})", self.run)

    def knows(self, what: int | str, *, run: str | None = None) -> bool:
        """Whether any attempt at a round (or a query, by name) of this run, or of another one, was charged. Charged means: it
        may have been released."""
        run, rows = run or self.run, BATCHES.format("1", "=")
        if isinstance(what, int):
            return self._value(rows, run, what) is not None
        return self._value(f"{rows} AND attempt LIKE ? || ':%'", run, QUERY, what) is not None

    def answered(self, query: str, attempt: str) -> set[str]:
        """The clients that this run has charged for one attempt at a query, by what it is called here (`keyed`)."""
        rows = "SELECT client FROM charges WHERE run = ? AND round = ? AND attempt = ?"
        return {client for (client,) in self._db.execute(rows, (self.run, QUERY, f"{query}:{attempt}"))}

    def keyed(self, text: str) -> str:
        """What an attempt, or anything else that follows from rows, is called here and in a run's files."""
        return disk.keyed(self._key, text)

    def _attempts(self, round: int) -> set[str]:
        return {name for (name,) in self._db.execute(BATCHES.format("attempt", "="), (self.run, round))}

    def _forget_if_changed(self) -> None:
        if self._data_version() != self._version:  # another run charged the same ledger meanwhile
            self._version = self._data_version()
            self._forget()

    def _forget(self) -> None:
        self._before: dict[str, Before] = {}
        self._known_seals: dict[str, Seal] | None = None
        self._used: dict[str, int] = {}

    def _data_version(self) -> int:
        return self._value("PRAGMA data_version")
