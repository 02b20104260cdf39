"""The ledger: who was charged what, for which round of which run. Append-only, on disk, paid before anything is released.

SQLite with `synchronous=FULL`: when `admit` returns, the charge has reached the disk (tacit/privacy/ledger/charging.py).
Entries are never changed or removed.
Record-level and client-level charges are kept apart and never added.

A charge belongs to (client, run, round, attempt). An attempt names everything the released bits are a function of
(tacit/build/release.py): a resumed round that repeats the very same release is paid once; anything else, however small the
change, is another attempt and is paid again. Within a run a client's event never changes: another one is refused, not ignored.
Beside its rounds a run may ask queries, each once and planned beforehand (`answer`): there a second attempt is refused.

Before a client's first charge in a run, the price of all it may release there is sealed (tacit/privacy/ledger/sealing.py), and
what other runs have sealed counts as spent. Where the secret choice of a cohort is part of the price, every client pays for
every round, drawn or not: one row in the table `everybody`, and one seal whose client is the empty name.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import AnsweredOnce
from tacit.privacy.accounting import price
from tacit.privacy.ledger.charging import Charging
from tacit.privacy.ledger.conditions import Condition, Released
from tacit.privacy.ledger.filter import NOTHING_ASKED, Asked
from tacit.privacy.ledger.sealing import Limits, Sealing
from tacit.privacy.ledger.tables import ALL, NOTE, QUERY
from tacit.types import Budget, Client

Cost = Callable[[Client], DpEvent]


class Ledger(Charging):
    """A ledger file, opened for one start of one run, which may spend `delta` in all and plans so many `rounds`.

    A client's budget holds the run's own share of delta; without `delta` the run has all of it. `most_epsilon` is what the run
    may cost a client by itself, where less was promised than the budget has left; `asked` gives the queries that a client answers
    beside its rounds. `marks` are files that say how far the
    ledger has come (tacit/privacy/ledger/witness.py); `conditions` are what the ledger must not contradict, noted there with
    the first charge.

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
        conditions: Sequence[Condition] = (),
    ):
        super().__init__(Path(path), population=population, run=run, marks=marks, conditions=conditions)
        self.accountant = accountant
        self._sealing = Sealing(self, self._db, Limits(delta, rounds, most_epsilon, accountant, asked, spare))

    def release(self, what: str, digest: str) -> None:
        """Notes, on disk, which vector is about to be released under a name of this run, where that may happen once.

        Raises: LedgerError where it was another one before, in whichever copy of the run's folder; then nothing may be released.
        """
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
        name = f"{query}:{attempt}"
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
