"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is released.

SQLite with `synchronous=FULL`: when `admit` returns, the charge has reached the disk (tacit/privacy/ledger/ledger.py).
Entries are never changed or removed.
Record-level and client-level charges are kept apart and never added.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of
(tacit/engine/release.py): a resumed round that repeats the very same release is paid once; anything else, however small the
change, is another attempt and is paid again. Within a run a client's event never changes: another one is refused, not ignored.
Beside its rounds a run may ask queries, each once and planned beforehand (`answer`): there a second attempt is refused.

Before a client's first charge in a run, the price of all it may release there is sealed (tacit/privacy/ledger/view.py), and
what other runs have sealed counts as spent. Where the secret choice of a cohort is part of the price, every client pays for
every round, drawn or not: one row in the table `everybody`, and one seal whose client is the empty name."""

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import AnsweredOnce, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked, text_of
from tacit.privacy.ledger.sql import ALL, EVERYBODY, NOTE, QUERY, Condition, Released, now
from tacit.privacy.ledger.view import BATCHES, Limits, RunView, Sealing
from tacit.types import Budget, Client

# The writing half of a ledger: the round that is open, and one transaction for all that is charged at once.


class Charging(RunView):
    """A ledger file that one start of one run writes to: `open_round` says for what, `_charging` is the transaction.

    Guarantee: what was written within `_charging` is on disk when it is left, with the marks after it, or nothing is; and what was
    kept in memory of a charge that failed is forgotten.

    Raises: LedgerError where the file cannot be opened, has an older format, belongs to another population, is not as far as a
    mark says, or contradicts a condition.
    """

    def __init__(
        self,
        path: Path,
        *,
        population: str,
        run: str,
        marks: Sequence[Path] = (),
        conditions: Sequence[Callable[[bytes], Condition]] = (),
        refuse_copies: Callable[["Charging"], None] = lambda ledger: None,
    ):
        self._marks = tuple(marks)
        for mark in self._marks:
            reader.refuse_lost(path, mark)
        super().__init__(path, population=population, run=run)
        for mark in self._marks:
            reader.refuse_older(self, mark)
        self._refuse_copies = refuse_copies
        self._conditions = [condition(self._key) for condition in conditions]
        for condition in self._conditions:
            condition.refuse(self._db, self.path)
        self._used: dict[str, int] = {}
        self._event_ids: dict[str, int] = {}
        self._round, self._attempt = 0, ""
        self._ahead = False  # whether rounds after the open one are on disk: those of a run that lost its checkpoint
        self._again = False  # whether the open round is on disk

    def open_round(self, round: int, attempt: str) -> None:
        """Says which release of which round is paid for next. What is on disk for the very same one was left by a crash.

        Assumes: it is called before every `admit`. It writes nothing; until the round is paid, `rounds_left` counts it as
        still to come even where it is on disk.

        Raises: LedgerError for a round below zero: there queries are charged, and what is sealed does not count it.
        """
        if round < 0:
            raise LedgerError(f"The ledger {self.path} opens no round of the number {round}: they are counted from 0.")
        self._round, self._attempt = round, self.keyed(attempt)
        self._again = self._attempt in self._attempts(round)
        self._ahead = self._db.execute(BATCHES.format("1", ">"), (self.run, round)).fetchone() is not None
        self._forget_if_changed()

    @property
    def ahead(self) -> bool:
        """Whether rounds after the open one were charged: those of a run that lost its checkpoint."""
        return self._ahead

    @property
    def again(self) -> bool:
        """Whether the open round was charged under this very attempt."""
        return self._again

    def _used_by(self, name: str) -> int:
        """How many releases of this run are on disk for a client, over all attempts."""
        if name not in self._used:
            self._used[name] = self._on_disk(name)
        return self._used[name]

    def _repeated(self, name: str) -> int:
        """How many of the releases on disk are those still to come: the open one, left by a crash, or later ones.

        Of later rounds nobody knows yet whether they repeat; when such a round is opened, its attempt decides.
        """
        if not (self._again or (self._attempt == "" and self._ahead)):
            return 0
        return self._on_disk(
            name, "AND round = :round AND attempt = :attempt" if self._attempt else "AND round > :round"
        )

    def _on_disk(self, name: str, which: str = "") -> int:
        which = which or "AND round >= 0"  # queries are counted apart
        table, mine = ("everybody", "") if name == ALL else ("charges", "client = :client AND")
        query = f"SELECT COUNT(*) FROM {table} WHERE {mine} run = :run {which}"
        values = {"client": name, "run": self.run, "round": self._round, "attempt": self._attempt}
        return self._db.execute(query, values).fetchone()[0]

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """One transaction that reaches the disk, or nothing; then the marks say how far the ledger has come.

        Copies are looked for before it, so that the later one pays nothing, and after the marks: of two that charge in the same
        second at least one sees the other's mark, and releases nothing.
        """
        done = False
        self.refuse_copies()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_if_changed()
            yield
            self._note_conditions()
            last = self._db.execute("SELECT number, chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
            self._db.execute("COMMIT")
            self._conditions.clear()
            for mark in self._marks if last else ():
                reader.write(mark, *last)
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

    def refuse_copies(self) -> None:
        """Refuses to go on where a copy of this ledger was charged for what this one does not know. Raises LedgerError."""
        self._refuse_copies(self)

    def _write(self, paying: Sequence[tuple[Client, DpEvent]]) -> list[str]:
        """Charges whoever is not charged yet for this very release, and returns their names."""
        new = [(c, event) for c, event in paying if not (self._again and self._repeated(c.id))]
        ids, time = {event: self._event(event) for event in {event for _, event in new}}, now()
        self._db.executemany(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(c.id, self.run, self._round, self._attempt, c.budget.unit, ids[e], time) for c, e in new],
        )
        names = [client.id for client, _ in new]
        self._batch(names)
        return names

    def _event(self, event: DpEvent) -> int:
        text = text_of(event)
        if text not in self._event_ids:
            row = self._db.execute("SELECT id FROM events WHERE text = ?", (text,)).fetchone()
            self._event_ids[text] = row[0]
        return self._event_ids[text]

    def _write_everybody(self, budget: Budget, event: DpEvent) -> list[str]:
        if self._again and self._repeated(ALL):
            return []
        self._db.execute(
            "INSERT INTO everybody VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, self._round, self._attempt, budget.unit, self._event(event), now()),
        )
        self._batch([EVERYBODY])
        return [ALL]

    def _count(self, written: Sequence[str]) -> None:
        """Counts what was charged, where it is not read from the disk anyway."""
        for name in written:
            if name in self._used:
                self._used[name] += 1

    def _batch(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._link(self._round, self._attempt, *names)

    def _link(self, round: int, attempt: str, *names: str) -> None:
        """Adds a link to the chain by which a mark knows how far the ledger has come."""
        row = self._db.execute("SELECT chain FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        link = reader.chain(row[0] if row else "", self.run, round, attempt, *names)
        self._db.execute(
            "INSERT INTO batches (run, round, attempt, charges, chain, time) VALUES (?, ?, ?, ?, ?, ?)",
            (self.run, round, attempt, len(names), link, now()),
        )

    def _note_conditions(self) -> None:
        for condition in self._conditions:
            condition.refuse(self._db, self.path)  # another run may have noted others meanwhile
            condition.note(self._db)

    def _close_round(self) -> None:
        """From now on `rounds_left` is about the next round, whose attempt is not known yet."""
        self._again, self._attempt = False, ""

    def _forget(self) -> None:
        super()._forget()
        self._used.clear()
        self._event_ids.clear()


Cost = Callable[[Client], DpEvent]


class Ledger(Charging):
    """A ledger file, opened for one start of one run, which may spend `delta` in all and plans so many `rounds`.

    A client's budget holds the run's own share of delta; without `delta` the run has all of it. `most_epsilon` is what the run
    may cost a client by itself, where less was promised than the budget has left; `asked` gives the queries that a client answers
    beside its rounds. `marks` are files that say how far the
    ledger has come (tacit/privacy/ledger/reader.py); `conditions` are what the ledger must not contradict, each made with the
    ledger's key (secret.py) and noted there with the first charge; `refuse_copies` is asked before every charge, and again once
    it is on disk.

    Guarantee: after `admit` returns, what it charged is on disk; over all runs of the file, whatever the order in which they
    charge it, no client's sealed prices add up to more than its budget at the time of sealing; `spent` never reports less than
    what was charged.

    Assumes: a release is made only after `admit` or `admit_everybody` has returned, and `attempt` names everything its bits
    depend on. Whoever can write to the file can forge it: a mark shows a ledger that was lost or went back, and nothing more.

    Raises: LedgerError where the file cannot be opened, has an older format, belongs to another population, is not as far as a
    mark says, or contradicts a condition.
    """

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
        refuse_copies: Callable[[Charging], None] = lambda ledger: None,
    ):
        super().__init__(
            Path(path),
            population=population,
            run=run,
            marks=marks,
            conditions=conditions,
            refuse_copies=refuse_copies,
        )
        self.accountant = accountant
        self._sealing = Sealing(self, self._db, Limits(delta, rounds, most_epsilon, accountant, asked, spare))

    def release(self, what: str, digest: str) -> None:
        """Notes, on disk, which vector is about to be released under a name of this run, where that may happen once.

        Raises: LedgerError where it was another one before, in whichever copy of the run's folder; then nothing may be released.
        """
        digest = self.keyed(digest)
        condition = Released(self.run, what, digest)
        with self._charging():
            condition.refuse(self._db, self.path)
            if condition.known(self._db) is None:
                condition.note(self._db)
                self._link(NOTE, f"{what}:{digest}")  # so that a mark tells an older copy, which does not know of it

    def released(self, what: str) -> bool:
        """Whether something was released under a name of this run."""
        return Released(self.run, what, "").known(self._db) is not None

    def admit(self, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for the open round, and returns those, in the order given.

        Guarantee: on return the charges, and the seals of those charged for the first time, are on disk in one transaction,
        and the marks after it. This call charges nobody whom it does not return. Whoever was charged for this very attempt
        before is returned and not charged again. `hint` (about how many releases a budget pays for) saves prices and changes
        nothing else.

        Raises: LedgerError if the charge could not be written, is another than was sealed for that client in this run, would
        mix clients that pay for themselves with a charge to all, or contradicts a condition; BadInput for an event without a
        price, or with one for another change than the runs before. Then nothing may be released, and nothing was charged, with
        one exception: where only a mark could not be written, the charge stands and is not asked for again.
        """
        with self._charging():
            self.read(client.id for client in clients)
            priced = [(client, cost(client)) for client in clients]
            paying = [(c, event) for c, event in priced if self.rounds_left(c, event, hint=hint) >= 1]
            for client, event in paying:
                if (
                    self._sealing.of(client.id) is None
                ):  # a seal comes before the first charge, so there is none on disk
                    self._used[client.id] = 0
                self._sealing.seal(client.id, client.budget, event, hint=hint)
            self._count(self._write(paying))
        self._close_round()
        return [client for client, _ in paying]

    def admit_everybody(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> bool:
        """Charges every client of the population for the open round, if each can pay within `budget`; else nobody.

        Guarantee: the charge is one row, whatever the size of the population, and on disk on return; clients that were charged
        alone in other runs are counted by the one that has sealed most. False means that nothing was charged and nothing may
        be released.

        Raises: as `admit`.
        """
        with self._charging():
            left = self.rounds_left_to_all(budget, event, hint=hint)
            if left >= 1:
                self._sealing.seal(ALL, budget, event, hint=hint)
                self._count(self._write_everybody(budget, event))
        if left >= 1:
            self._close_round()
        return left >= 1

    def answer(self, query: str, attempt: str, clients: Sequence[Client], cost: Cost, *, hint: int = 1) -> list[Client]:
        """Charges every client that can pay for a query of this run, and returns those; `cost` is that of a round.

        Whoever cannot pay for the queries and one round beside them pays for none. `attempt` names the release as in `open_round`.

        Guarantee: as `admit`. Of one query of a run a client is charged for one attempt: the same one is free and no other is
        ever allowed, so that one charge stands for one vector.

        Raises: AnsweredOnce where the query was charged under another attempt, and as `admit`; KeyError for a query that the run
        did not plan.
        """
        name = f"{query}:{self.keyed(attempt)}"
        with self._charging():
            self._round, self._attempt, self._again = QUERY, name, name in self._attempts(QUERY)
            paying = [client for client in clients if self._pays_once(query, client, cost(client), hint)]
            for client in paying:
                self._sealing.seal(client.id, client.budget, cost(client), hint=hint)
            self._write([(client, self._sealing.queries(client.id)[query]) for client in paying])
        self._close_round()
        return paying

    def _pays_once(self, query: str, client: Client, event: DpEvent, hint: int) -> bool:
        """Whether a client pays for a query, or has paid for this very attempt. Raises LedgerError where it paid for another."""
        rows = "SELECT attempt FROM charges WHERE client = ? AND run = ? AND round = ? AND attempt LIKE ? || ':%'"
        known = {attempt for (attempt,) in self._db.execute(rows, (client.id, self.run, QUERY, query))}
        if known - {self._attempt}:
            raise AnsweredOnce(
                f"The ledger {self.path} has charged {client.id} for the query {query!r} of this run, and its answer is not kept"
                " or not the one that would be given now: a query is answered once, so start another run; nothing was released."
            )
        return bool(known) or self._sealing.most(client.id, client.budget, event, hint=hint) >= max(
            1, self._used_by(client.id)
        )

    def read(self, names: Iterable[str]) -> None:
        """Has what is known of some clients at hand, so that asking for one after the other does not look at the file for each."""
        known = list(names)
        self._sealing.read(known)
        self.read_before(known)

    def rounds_left_to_all(self, budget: Budget, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, every client can pay for. Raises as `rounds_left`."""
        return self._left(ALL, budget, event, hint)

    def rounds_left(self, client: Client, event: DpEvent, *, hint: int = 1) -> int:
        """How many rounds at `event`, the open one included, the client can pay for in this run; 0 or less where it cannot.

        It counts what is sealed and not yet charged. Before the first charge it is what would be sealed: the most releases
        that the rest of the budget pays for, at most the planned rounds and a few spare ones. A budget that was lowered since
        counts at once.

        Raises: LedgerError for another event, unit or delta than this run has sealed for the client; BadInput for an event
        without a price, or with one for another change than those of the runs before.
        """
        return self._left(client.id, client.budget, event, hint)

    def spent(self, client: Client) -> float:
        """The epsilon of all that other runs have sealed and of all that this one has charged, in the budget's unit.

        Guarantee: an upper bound for whatever order the runs were chosen in (basic composition,
        tacit/privacy/ledger/filter.py). It holds at the sum of the runs' deltas.
        """
        return self.before(client.id, client.budget.unit).epsilon + self.alone(client)

    def alone(self, client: Client) -> float:
        """The epsilon, at the run's own delta, of what this run has charged to the client, alone or with everybody."""
        composition = self.composition(client.id, client.budget.unit)
        return price.epsilon(composition, delta=client.budget.delta, accountant=self.accountant)

    def _left(self, name: str, budget: Budget, event: DpEvent, hint: int) -> int:
        most = self._sealing.most(name, budget, event, hint=hint)
        if self._sealing.of(name) is None:  # then nothing was charged either
            return most
        return most - self._used_by(name) + self._repeated(name)

    def _forget(self) -> None:
        super()._forget()
        self._sealing.forget()
