"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is released. A
charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of
(tacit/engine/release.py): a round that repeats the very same release is paid once; anything else is paid again. Before a
client's first charge in a run, the price of all it may release there is sealed (filter.py): its event never changes, and
what other runs have sealed counts as spent. Where the secret of a cohort is part of the price, every client pays for every
round: one row in the table `everybody`, and one seal whose client is the empty name. Record-level and client-level charges
are never added."""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from dp_accounting import DpEvent

from tacit.errors import AnsweredOnce, LedgerError
from tacit.privacy.accounting import events, price
from tacit.privacy.ledger import filter as filters
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, Seal, Spent, text_of
from tacit.privacy.ledger.reader import Before, sealed
from tacit.privacy.ledger.sql import (
    ALL,
    EVERYBODY,
    NOTE,
    QUERY,
    Condition,
    charges,
    connect,
    key_of,
    keyed,
    now,
    released,
)
from tacit.types import Budget, Client, Unit

BATCHES = "SELECT {} FROM batches WHERE run = ? AND round {} ?"
SEALS = (
    "SELECT client, unit, text, delta, most, epsilon FROM seals JOIN events ON events.id = seals.event WHERE run = ?"
)
ASKED = "SELECT client, query, text FROM asked JOIN events ON events.id = asked.event WHERE run = ? ORDER BY query"

Cost = Callable[[Client], DpEvent]


class Ledger:
    """A ledger file, opened for one start of one run, which may spend `delta` in all and plans so many `rounds`. Without
    `delta` the run has all of its clients' budgets'. `most_epsilon` is what it may cost a client; `asked` gives the
    queries that a client answers beside its rounds; without `spare` no releases for rounds that must be repeated are
    sealed. `marks` say how far the ledger has come; `conditions` are what it must not contradict, made with its key and
    noted with the first charge; `refuse_copies` is asked before every charge, and again once it is on disk. Guarantee:
    after `admit` returns, what it charged is on disk; over all runs of the file, in whatever order they charge it, no
    client's sealed prices add up to more than its budget at the time of sealing; `spent` never reports less than what was
    charged. Every answer is about what has reached the disk. A client has at most one seal a run, written before its first
    release and never changed. Assumes: a release is made only after `admit` or `admit_everybody` has returned, and
    `attempt` names everything its bits depend on. Whoever can write to the file can forge it: a mark shows a ledger that
    was lost or went back, and nothing more. Raises: LedgerError where the file cannot be opened, has another format or
    population, is behind a mark, or contradicts a condition."""

    def __init__(
        self,
        path: Path | str,
        *,
        population: str,
        run: str,
        delta: float | None = None,
        rounds: int = 10**6,
        most_epsilon: float = math.inf,
        accountant: str = "pld",
        asked: Callable[[str], Asked] = lambda client: NOTHING_ASKED,
        spare: bool = True,
        marks: Sequence[Path] = (),
        conditions: Sequence[Callable[[bytes], Condition]] = (),
        refuse_copies: Callable[["Ledger"], None] = lambda ledger: None,
    ):
        self.path, self.run, self.accountant = Path(path), run, accountant
        self._delta, self._rounds, self._most_epsilon, self._spare = delta, rounds, most_epsilon, spare
        self._asked, self._marks, self._refuse_copies = asked, tuple(marks), refuse_copies
        for mark in self._marks:
            reader.refuse_lost(self.path, mark)
        self._key = key_of(self.path)
        self._db = connect(self.path, population=population, key=self._key)
        for mark in self._marks:
            reader.refuse_older(self, mark)
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
        count = sum(self._db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("charges", "everybody"))
        return f"Ledger({str(self.path)!r}: {count} charges; entries() lists them)"

    # Charging.

    def open_round(self, round: int, attempt: str) -> None:
        """Says which release of which round is paid for next, before every `admit`. It writes nothing. Until the round is
        paid, `rounds_left` counts it as still to come even where a crash left it on disk. Raises: LedgerError for a round
        below zero: there queries are charged, and what is sealed does not count it."""
        if round < 0:
            raise LedgerError(f"The ledger {self.path} opens no round of the number {round}: they are counted from 0.")
        self._round, self._attempt = round, self.keyed(attempt)
        self.again = self._attempt in self._attempts(round)
        self.ahead = self._db.execute(BATCHES.format("1", ">"), (self.run, round)).fetchone() is not None
        self._forget_if_changed()

    def admit(self, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for the open round, and returns those, in the order given. Guarantee: on return
        the charges, and the seals of those charged for the first time, are on disk in one transaction, and the marks after
        it. Nobody is charged who is not returned; whoever was charged for this very attempt before is returned and not
        charged again. Raises: LedgerError if the charge could not be written, is another than was sealed, would mix
        clients that pay for themselves with a charge to all, or contradicts a condition; BadInput for an event without a
        price. Then nothing may be released, and nothing was charged, with one exception: where only a mark could not be
        written, the charge stands and is not asked for again."""
        with self._charging():
            priced = [(client, cost(client)) for client in clients]
            paying = [(c, event) for c, event in priced if self.rounds_left(c, event, hint=hint) >= 1]
            for client, event in paying:
                self._seal(client.id, client.budget, event, hint=hint)
            self._charge(paying)
        self._close_round()
        return [client for client, _ in paying]

    def admit_everybody(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> bool:
        """Charges every client of the population for the open round, if each can pay within `budget`; else nobody. Guarantee:
        the charge is one row, whatever the size of the population, and on disk on return; clients that were charged alone
        in other runs are counted by the one that has sealed most. False means that nothing was charged and nothing may be
        released. Raises: as `admit`."""
        with self._charging():
            left = self.rounds_left_to_all(budget, event, hint=hint)
            if left >= 1:
                self._seal(ALL, budget, event, hint=hint)
                if not (self.again and self._repeated(ALL)):
                    row = (self.run, self._round, self._attempt, budget.unit, self._event(event), now())
                    self._db.execute("INSERT INTO everybody VALUES (?, ?, ?, ?, ?, ?)", row)
                    self._link(self._round, self._attempt, EVERYBODY)
                    self._count([ALL])
        if left >= 1:
            self._close_round()
        return left >= 1

    def answer(self, query: str, attempt: str, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for a query of this run, and returns those; `cost` is that of a round. Whoever
        cannot pay for the queries and one round beside them pays for none. Guarantee: as `admit`; of one query a client is
        charged for one attempt: the same one is free and no other is ever allowed, so that one charge stands for one
        vector. Raises: AnsweredOnce where it was charged under another attempt, and as `admit`; KeyError for a query that
        was not planned."""
        name = f"{query}:{self.keyed(attempt)}"
        with self._charging():
            self._round, self._attempt, self.again = QUERY, name, name in self._attempts(QUERY)
            paying = [client for client in clients if self._pays_once(query, client, cost(client), hint)]
            for client in paying:
                self._seal(client.id, client.budget, cost(client), hint=hint)
            self._charge([(client, self._asked(client.id)[query]) for client in paying])
        self._close_round()
        return paying

    def release(self, what: str, digest: str) -> None:
        """Notes, on disk, which vector is about to be released under a name of this run, where that may happen once. Raises:
        LedgerError where it was another one before, in whichever copy of the run's folder; then nothing may be released."""
        digest = self.keyed(digest)
        condition = released(self.run, what, digest)
        with self._charging():
            condition.refuse(self._db, self.path)
            if condition.known(self._db) is None:
                condition.note(self._db)
                self._link(NOTE, f"{what}:{digest}")  # so that a mark tells an older copy, which does not know of it

    def released(self, what: str) -> bool:
        """Whether something was released under a name of this run."""
        return released(self.run, what, "").known(self._db) is not None

    def refuse_copies(self) -> None:
        """Refuses to go on where a copy of this ledger was charged for what this one does not know. Raises LedgerError."""
        self._refuse_copies(self)

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing; then the marks say how far the ledger has come. Copies are
        looked for before it, so that the later one pays nothing, and after the marks: of two that charge in the same
        second at least one sees the other's mark, and releases nothing."""
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
            if last:
                for mark in self._marks:
                    reader.write_mark(mark, *last)
            done = True
        except (sqlite3.Error, OSError) as error:
            what = "a query" if self._round == QUERY else f"round {self._round + 1}"
            text = f"The ledger {self.path} could not be charged for {what} ({error})"
            raise LedgerError(f"{text}; nothing was released.") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not done:  # SQLite may have taken the transaction back by itself, or only a mark could not be written
                self._forget()
        self.refuse_copies()

    def _charge(self, paying: Sequence[tuple[Client, DpEvent]]) -> None:
        new = [(c, event) for c, event in paying if not (self.again and self._repeated(c.id))]
        ids, time = {event: self._event(event) for event in {event for _, event in new}}, now()
        self._db.executemany(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(c.id, self.run, self._round, self._attempt, c.budget.unit, ids[e], time) for c, e in new],
        )
        if new:
            self._link(self._round, self._attempt, *(client.id for client, _ in new))
        if self._round != QUERY:
            self._count([client.id for client, _ in new])

    def _count(self, charged: Sequence[str]) -> None:
        for name in charged:
            if name in self._used:  # else it is read from the disk when it is asked for
                self._used[name] += 1

    def _event(self, event: DpEvent) -> int:
        return self._db.execute("SELECT id FROM events WHERE text = ?", (text_of(event),)).fetchone()[0]

    def _link(self, round: int, attempt: str, *names: str) -> None:
        last = self._last_batch()
        link = reader.chain(last[1] if last else "", self.run, round, attempt, *names)
        self._db.execute(
            "INSERT INTO batches (run, round, attempt, charges, chain, time) VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, round, attempt, len(names), link, now()),
        )

    def _last_batch(self) -> tuple[int, str] | None:
        return self._db.execute("SELECT number, chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()

    def _close_round(self) -> None:
        self.again, self._attempt = False, ""

    # What is left.

    def rounds_left(self, client: Client, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, the client can pay for in this run; 0 or less where it cannot.
        Before the first charge it is what would be sealed. A budget that was lowered since counts at once. Raises:
        LedgerError for another event, unit or delta than was sealed; BadInput for an event without a price beside the runs
        before."""
        return self._left(client.id, client.budget, event, hint)

    def rounds_left_to_all(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, every client can pay for. Raises as `rounds_left`."""
        return self._left(ALL, budget, event, hint)

    def _left(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        most = self._most(name, budget, event, hint)
        if name not in self._seals:  # then nothing was charged either
            return most
        return most - self._used_by(name) + self._repeated(name)

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
            asked = defaultdict[str, list[tuple[str, str]]](list)
            for name, query, text in self._db.execute(ASKED, (self.run,)):
                asked[name].append((query, text))
            rows = self._db.execute(SEALS, (self.run,))
            self._known_seals = {name: Seal(*row, asked=tuple(asked[name])) for name, *row in rows}
        return self._known_seals

    def _most(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        """How many releases of `event` this run may charge to a client in all, those on disk included. As many as were
        sealed; fewer where the budget was lowered since; before the first charge, as many as would be sealed."""
        known = self._seals.get(name)
        if known is None:
            return self._affordable(name, budget, event, hint)
        known.refuse_other(budget, event, who=name or EVERYBODY, path=self.path, asked=self._asked(name))
        if known.stands(budget, before=self.before(name, budget.unit), most_epsilon=self._most_epsilon):
            return known.most
        return min(known.most, self._affordable(name, budget, event, hint))

    def _seal(self, name: str, budget: Budget, event: DpEvent, *, hint: int) -> None:
        """Seals what the run may release about a client, of whom nothing is on disk yet; nothing where that is done already.
        Assumes: a transaction is open, in which the client's first charge follows, and `_most` allowed at least one
        release."""
        if name in self._seals:
            return
        if self._seals if name == ALL else ALL in self._seals:  # one share of delta covers one of the two
            raise LedgerError(
                f"In one run of the ledger {self.path} either all clients pay together or each for itself."
            )
        most = self._affordable(name, budget, event, hint)
        new = filters.seal(budget, event, most=most, accountant=self.accountant, asked=self._asked(name))
        for text in (new.event, *(text for _, text in new.asked)):
            self._db.execute("INSERT OR IGNORE INTO events (text) VALUES (?)", (text,))
        self._db.executemany(
            "INSERT INTO asked SELECT ?, ?, ?, id FROM events WHERE text = ?",
            [(name, self.run, query, text) for query, text in new.asked],
        )
        self._db.execute(
            "INSERT INTO seals SELECT ?, ?, ?, id, ?, ?, ?, ? FROM events WHERE text = ?",
            (name, self.run, new.unit, new.delta, new.most, new.epsilon, now(), new.event),
        )
        self._seals[name], self._used[name] = new, 0

    def _affordable(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        """Raises BadInput for an event whose price is for another change than those of other runs."""
        if budget.unit not in self._relations:
            texts = {text for _, text, *_ in self._of_other_runs(budget.unit)}
            self._relations[budget.unit] = {events.relation(price.from_text(text)) for text in texts}
        events.refuse_mixed(self._relations[budget.unit] | {events.relation(event)})
        return filters.most_releases(
            budget,
            event,
            before=self.before(name, budget.unit),
            total_delta=budget.delta if self._delta is None else self._delta,
            rounds=self._rounds,
            accountant=self.accountant,
            most_epsilon=self._most_epsilon,
            hint=hint,
            asked=self._asked(name),
            spare=self._spare,
        )

    # What was charged and sealed.

    def before(self, client: str, unit: str) -> Spent:
        """What other runs have sealed for a client in one unit; of the empty name, for whoever has sealed most. Sealed means:
        counted in full, whether those runs go on, were abandoned, or have released less. Seals of everybody count for each
        client."""
        if unit not in self._before:
            self._before[unit] = sealed(self._db, unit, but=self.run)
        return self._before[unit].of(client)

    def other_runs(self, unit: Unit, *, apart: bool = False) -> int:
        """How many other runs have sealed a price in this unit; with `apart`, in the other one. The two are never added."""
        self._forget_if_changed()
        if apart:
            unit = next(other for other in get_args(Unit) if other != unit)
        self.before(ALL, unit)
        return self._before[unit].runs

    def sealed_elsewhere(self, unit: str) -> Iterator[tuple[str, DpEvent, int, float, float]]:
        """(client, event, most, delta, epsilon) of every seal of other runs in one unit; the empty name is everybody. Raises:
        BadInput for an event that this version cannot price."""
        for client, text, *numbers in self._of_other_runs(unit):
            yield client, price.from_text(text), *numbers

    def _of_other_runs(self, unit: str) -> sqlite3.Cursor:
        query = "SELECT client, text, most, delta, epsilon FROM seals JOIN events ON events.id = seals.event"
        return self._db.execute(f"{query} WHERE run != ? AND unit = ?", (self.run, unit))

    def composition(self, client: str | None, unit: str) -> price.Composition:
        """What this run has charged to the client in one unit, all attempts counted; of None, to every client. It is what
        `price.epsilon` takes: equal events counted together, the charges to everybody among them."""
        shared = self._releases("everybody", "''", unit)
        own = [] if client is None else self._releases("charges", "client", unit, "AND client = ?", client)
        return price.compose((event, count) for _, event, count in (*own, *shared))

    def compositions(self, unit: str) -> dict[str, price.Composition]:
        """`composition` of every client that this run charged by itself, read at once."""
        shared = [(event, count) for _, event, count in self._releases("everybody", "''", unit)]
        found: dict[str, list[tuple[DpEvent, int]]] = {}
        for client, event, count in self._releases("charges", "client", unit):
            found.setdefault(client, [*shared]).append((event, count))
        return {client: price.compose(paid) for client, paid in found.items()}

    def _releases(self, table: str, who: str, unit: str, *mine: str) -> list[tuple[str, DpEvent, int]]:
        rows = self._db.execute(
            f"SELECT {who} AS who, text, COUNT(*) FROM {table} JOIN events ON events.id = {table}.event"
            f" WHERE run = ? AND unit = ? {' '.join(mine[:1])} GROUP BY who, text",
            (self.run, unit, *mine[1:]),
        )
        return [(client, price.from_text(text), count) for client, text, count in rows]

    def spent(self, client: Client) -> float:
        """The epsilon of all that other runs have sealed and of all that this one has charged, in the budget's unit.
        Guarantee: an upper bound for whatever order the runs were chosen in (basic composition, filter.py). It holds at
        the sum of the runs' deltas."""
        return self.before(client.id, client.budget.unit).epsilon + self.alone(client)

    def alone(self, client: Client) -> float:
        """The epsilon, at the run's own delta, of what this run has charged to the client, alone or with everybody."""
        composition = self.composition(client.id, client.budget.unit)
        return price.epsilon(composition, delta=client.budget.delta, accountant=self.accountant)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every charge of every run, oldest first, as plain values."""
        return charges(self._db)

    def charged(self) -> set[str]:
        """The clients that were ever charged by themselves, in whatever run."""
        return {client for (client,) in self._db.execute("SELECT DISTINCT client FROM seals") if client != ALL}

    def charged_most(self) -> str | None:
        """Whom this run has charged by itself most often; None before its first such charge."""
        query = "SELECT client FROM charges WHERE run = ? AND round >= 0 GROUP BY client ORDER BY COUNT(*) DESC LIMIT 1"
        row = self._db.execute(query, (self.run,)).fetchone()
        return row[0] if row else None

    def charged_before(self, round: int, attempt: str) -> bool:
        """Whether another attempt at a round of this run was charged: another release of it may have been seen."""
        return bool(self._attempts(round) - {self.keyed(attempt)})

    def is_first(self, round: int, attempt: str) -> bool:
        """Whether no attempt at a round of this run was charged before this one: once that is so, it stays so."""
        row = self._db.execute(
            f"{BATCHES.format('attempt', '=')} ORDER BY number LIMIT 1", (self.run, round)
        ).fetchone()
        return row is None or row[0] == self.keyed(attempt)

    def charged_rounds(self) -> int:
        """How many releases of this run are on disk: a round that was paid for twice counts twice."""
        rows = "SELECT run, round, attempt FROM charges UNION SELECT run, round, attempt FROM everybody"
        counted = f"SELECT COUNT(*) FROM ({rows}) WHERE run = ? AND round >= 0"  # queries belong to no round
        return self._db.execute(counted, (self.run,)).fetchone()[0]

    def knows(self, what: int | str, *, run: str | None = None) -> bool:
        """Whether any attempt at a round (or a query, by name) of this run, or of another one, was charged. Charged means: it
        may have been released."""
        if isinstance(what, int):
            return self._db.execute(BATCHES.format("1", "="), (run or self.run, what)).fetchone() is not None
        rows = f"{BATCHES.format('1', '=')} AND attempt LIKE ? || ':%'"
        return self._db.execute(rows, (run or self.run, QUERY, what)).fetchone() is not None

    def answered(self, query: str, attempt: str) -> set[str]:
        """The clients that this run has charged for one attempt at a query, by what it is called here (`keyed`)."""
        rows = "SELECT client FROM charges WHERE run = ? AND round = ? AND attempt = ?"
        return {client for (client,) in self._db.execute(rows, (self.run, QUERY, f"{query}:{attempt}"))}

    def keyed(self, text: str) -> str:
        """What an attempt, or anything else that follows from rows, is called here and in a run's files."""
        return keyed(self._key, text)

    def link(self, number: int) -> str | None:
        """The chained hash of a batch of charges (`reader.chain`); None where there is no such batch."""
        row = self._db.execute("SELECT chain FROM batches WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def _attempts(self, round: int) -> set[str]:
        return {name for (name,) in self._db.execute(BATCHES.format("attempt", "="), (self.run, round))}

    def _forget_if_changed(self) -> None:
        if self._data_version() != self._version:  # another run charged the same ledger meanwhile
            self._version = self._data_version()
            self._forget()

    def _forget(self) -> None:
        self._before: dict[str, Before] = {}
        self._known_seals: dict[str, Seal] | None = None
        self._relations: dict[str, set[events.Relation]] = {}
        self._used: dict[str, int] = {}

    def _data_version(self) -> int:
        return self._db.execute("PRAGMA data_version").fetchone()[0]
