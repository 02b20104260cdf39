"""Epsilon by round from the ledger, for every client or for groups of them: exact at marks, an upper bound in between.

What other runs of the same ledger have sealed counts from the start, so a curve never shows less than what was spent. Clients
with the same limit that pay the same event are one group, and its curve is that of a member that took part most often:
composition is monotone, so this bounds all of them.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import BadInput
from tacit.experiment.extras import HELD_OUT
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import SideDpEvent

MOST_GROUPS = 8  # curves that can be told apart in one picture
MOST_PRICES = 96  # at 10 to 20 ms each
LARGEST = 1e9  # no limit, where limits are compared
FEWEST_MARKS, MOST_MARKS = 12, 16  # marks of a curve; the largest is what the loop prices while a run goes on

EVERYBODY = None
Buckets = dict[int, Counter[int]]  # event -> bucket -> charges
# queries (round -1) count from the start, but for those that are asked at the end
PAID = "(SELECT client, run, round, unit, event FROM charges UNION ALL SELECT NULL, run, round, unit, event FROM everybody)"
OWN = f"SELECT client, event, MAX(round, 0) / ?, COUNT(*), MAX(round) FROM {PAID} WHERE run = ? AND unit = ? GROUP BY 1, 2, 3"
QUERIES = f"SELECT client, COUNT(*) FROM {PAID} WHERE run = ? AND unit = ? AND round < 0 GROUP BY 1"
OTHERS = "SELECT NULLIF(client, ''), TOTAL(epsilon) FROM seals WHERE run != ? AND unit = ? GROUP BY 1"


@dataclass(frozen=True)
class Charges:
    """The charges of one unit: by client and event, those of this run in buckets of `step` rounds; of other runs what they
    sealed. What every client was charged for, drawn or not, stands under EVERYBODY and belongs to each."""

    own: dict[str | None, Buckets]
    sealed: dict[str | None, float]
    last: dict[str | None, int]  # the last round that each was charged for
    events: dict[int, Any]
    step: int
    total: int
    delta: float
    queries: dict[str | None, int]  # how many of this run's charges are for queries, and for no round

    def epsilon(self, pairs: Iterable[tuple[int, int]]) -> float:
        """The price of so many charges of these events."""
        composition = price.compose((self.events[event], int(count)) for event, count in pairs)
        return price.epsilon(composition, delta=self.delta)

    def mine(self, name: str) -> Buckets:
        """What the client was charged for in this run."""
        shared, alone = self.own.get(EVERYBODY, {}), self.own.get(name)
        if not shared or not alone:
            return alone or shared
        return {e: shared.get(e, Counter()) + alone.get(e, Counter()) for e in sorted({*shared, *alone})}

    def before(self, name: str) -> float:
        """The epsilon that other runs have sealed for the client: it counts, used or not."""
        return self.sealed.get(EVERYBODY, 0.0) + self.sealed.get(name, 0.0)

    def rounds(self, name: str) -> int:
        """How many rounds of this run the client was charged for."""
        return sum(buckets.total() for buckets in self.mine(name).values()) - self.queries.get(name, 0)

    def last_round(self, name: str) -> int:
        """The last round that the client was charged for; -1 if there is none."""
        return max(self.last.get(EVERYBODY, -1), self.last.get(name, -1))


def read(path: Path, *, run: str, unit: str, planned: int, delta: float) -> Charges:
    """Reads a ledger and adds nothing to it. Raises BadInput for a file that is none."""
    step = -(-planned // MOST_MARKS)
    try:
        # not read-only: what a crash left half-written in the journal is rolled back first, as for every reader
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=10)) as db:
            events = {key: price.from_text(text) for key, text in db.execute("SELECT id, text FROM events").fetchall()}
            mine = db.execute(OWN, (step, run, unit)).fetchall()
            queries = dict(db.execute(QUERIES, (run, unit)).fetchall())
            sealed = dict(db.execute(OTHERS, (run, unit)).fetchall())
            total = db.execute(f"SELECT COUNT(*) FROM {PAID}").fetchone()[0]
    except sqlite3.Error as error:
        raise BadInput(f"The ledger {path} cannot be read ({error}).") from None
    own: dict[str | None, Buckets] = defaultdict(lambda: defaultdict(Counter))
    last: dict[str | None, int] = {}
    inner = {key: price.counted(event)[0] for key, event in events.items()}
    late = {key for key, one in inner.items() if isinstance(one, SideDpEvent) and one.side == HELD_OUT}
    for client, event, bucket, count, latest in mine:  # held-out records are asked about when training is over
        own[client][event][(planned - 1) // step if event in late else bucket] = count
        last[client] = max(latest, last.get(client, -1))
    return Charges(own, sealed, last, events, step, total, delta, queries)


def stride(planned: int, curves: int) -> int:
    """The rounds between two marks of a curve, so that all curves in total stay cheap.

    >>> stride(30, 1), stride(500, 1), stride(500, 8)
    (2, 32, 64)
    """
    finest = -(-planned // MOST_MARKS)
    wanted = max(FEWEST_MARKS, min(MOST_MARKS, MOST_PRICES // max(1, curves)))
    return finest * -(-planned // (wanted * finest))  # a multiple: the loop has priced those for its two ends


def groups(
    charges: Charges, names: list[str], limits: list[float | None], *, planned: int, done: int
) -> list[dict[str, Any]]:
    """The curves: `rounds` (counted from 1) and `epsilon` spent by then, with the limit and the members they stand for. Between
    two marks the later one is the bound."""
    chosen, found = _chosen(charges, names, limits) if done else [], []
    every = stride(planned, len(chosen)) // charges.step
    last = (done - 1) // (every * charges.step)
    for members, stand_for in chosen:
        most: dict[int, np.ndarray] = {}  # for each event, the largest number of charges of a member until each mark
        for name in (names[i] for i in members):
            for event, buckets in charges.mine(name).items():
                row = np.zeros(last + 1, dtype=int)
                for bucket, count in buckets.items():
                    row[min(bucket // every, last)] += count  # a charge of the open round counts already
                most[event] = np.maximum(most.get(event, 0), np.cumsum(row))
        before = charges.before(names[members[0]])
        known = [limit for limit in (limits[index] for index in stand_for) if limit is not None]
        found.append(
            {
                "rounds": [min(done, (mark + 1) * every * charges.step) for mark in range(last + 1)],
                "epsilon": [
                    before + charges.epsilon((e, n[mark]) for e, n in most.items()) for mark in range(last + 1)
                ],
                "limit": limits[members[0]],
                "clients": len(stand_for),
                "limits": [min(known), max(known)] if known else None,
                "name": names[stand_for[0]] if len(stand_for) == 1 else None,
            }
        )
    return found


def spent_by_all(charges: Charges, names: list[str], *, most: int | None = None) -> list[float] | None:
    """What every client has spent, exactly; None if that takes more than `most` prices."""
    kinds = [tuple(sorted((event, n.total()) for event, n in charges.mine(name).items())) for name in names]
    if most is not None and len(set(kinds)) > most:
        return None
    prices = {kind: charges.epsilon(kind) for kind in set(kinds)}
    return [charges.before(name) + prices[kind] for name, kind in zip(names, kinds, strict=True)]


def _chosen(charges: Charges, names: list[str], limits: list[float | None]) -> list[tuple[list[int], list[int]]]:
    """(the clients a curve is computed for, the clients it stands for): all kinds of clients (of equal limit, events and past), or
    one of each of a few stretches of ascending limits, found by cutting the widest at its widest gap, again and again."""
    by: dict[Any, list[int]] = defaultdict(list)
    for index, (name, limit) in enumerate(zip(names, limits, strict=True)):
        by[np.inf if limit is None else limit, tuple(sorted(charges.mine(name))), charges.before(name)].append(index)
    order = sorted(by)
    kinds = [by[key] for key in order]
    if len(kinds) <= MOST_GROUPS:
        return [(kind, kind) for kind in kinds]
    logs, stretches = np.log([min(key[0], LARGEST) for key in order]), [(0, len(order))]
    while len(stretches) < MOST_GROUPS:
        start, stop = max(stretches, key=lambda part: (logs[part[1] - 1] - logs[part[0]], part[1] - part[0]))
        if stop - start < 2:
            break
        cut = start + 1 + int(np.argmax(np.diff(logs[start:stop])))
        stretches.remove((start, stop))
        stretches += [(start, cut), (cut, stop)]
    ends = [
        (start, stop, start if start == 0 else stop - 1) for start, stop in sorted(stretches)
    ]  # both ends are there
    return [(kinds[shown], [index for kind in kinds[start:stop] for index in kind]) for start, stop, shown in ends]
