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
from dp_accounting import DpEvent

from tacit.errors import BadInput
from tacit.experiment.extras import HELD_OUT
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import SideDpEvent, counted

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
    """The charges of one unit: by client and event, those of this run in buckets of `step` rounds; of other runs what they sealed.

    What every client was charged for, drawn or not, stands under EVERYBODY and belongs to each.
    """

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
    late = {key for key, event in events.items() if _is_late(event)}
    for client, event, bucket, count, latest in mine:
        own[client][event][(planned - 1) // step if event in late else bucket] = count
        last[client] = max(latest, last.get(client, -1))
    return Charges(own, sealed, last, events, step, total, delta, queries)


def _is_late(event: DpEvent) -> bool:
    """Whether it is about held-out records, which are asked about when training is over."""
    inner, _ = counted(event)
    return isinstance(inner, SideDpEvent) and inner.side == HELD_OUT


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
    """The curves: `rounds` (counted from 1) and `epsilon` spent by then, with the limit and the members they stand for.

    Between two marks the later one is the bound.
    """
    chosen, found = _chosen(charges, names, limits) if done else [], []
    every = stride(planned, len(chosen)) // charges.step
    last = (done - 1) // (every * charges.step)
    for members, stand_for in chosen:
        own, before = _most(charges, [names[i] for i in members], last, every), charges.before(names[members[0]])
        spent = [before + charges.epsilon((event, until[m]) for event, until in own.items()) for m in range(last + 1)]
        at = [min(done, (mark + 1) * every * charges.step) for mark in range(last + 1)]
        known = [limit for limit in (limits[index] for index in stand_for) if limit is not None]
        found.append(
            {
                "rounds": at,
                "epsilon": spent,
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
    """(the clients a curve is computed for, the clients it stands for): all kinds of clients, or one of each of a few stretches.

    Clients of a kind have equal limit, events and past.
    """
    by: dict[Any, list[int]] = defaultdict(list)
    for index, (name, limit) in enumerate(zip(names, limits, strict=True)):
        by[np.inf if limit is None else limit, tuple(sorted(charges.mine(name))), charges.before(name)].append(index)
    order = sorted(by)
    kinds = [by[key] for key in order]
    if len(kinds) <= MOST_GROUPS:
        return [(kind, kind) for kind in kinds]
    found = []
    for number, (start, stop) in enumerate(_stretches([key[0] for key in order])):
        shown = kinds[start if number == 0 else stop - 1]  # both ends of the range of limits are there
        found.append((shown, [index for kind in kinds[start:stop] for index in kind]))
    return found


def _stretches(limits: list[float]) -> list[tuple[int, int]]:
    """A few stretches of ascending limits, by cutting the widest one at its widest gap, again and again.

    >>> _stretches([1.0, 1.1, 1.2, 9.0, 9.1, 9.2, 9.3, 9.4, 30.0])[:3]
    [(0, 1), (1, 2), (2, 3)]
    """
    logs = np.log([min(limit, LARGEST) for limit in limits])
    found = [(0, len(logs))]
    while len(found) < MOST_GROUPS:
        start, stop = max(found, key=lambda part: (logs[part[1] - 1] - logs[part[0]], part[1] - part[0]))
        if stop - start < 2:
            break
        cut = start + 1 + int(np.argmax(np.diff(logs[start:stop])))
        found.remove((start, stop))
        found += [(start, cut), (cut, stop)]
    return sorted(found)


def _most(charges: Charges, members: list[str], last: int, every: int) -> dict[int, np.ndarray]:
    """For each event, the largest number of charges of a member until each mark."""
    most: dict[int, np.ndarray] = {}
    for name in members:
        for event, buckets in charges.mine(name).items():
            row = np.zeros(last + 1, dtype=int)
            for bucket, count in buckets.items():
                row[min(bucket // every, last)] += count  # a charge of the open round counts already
            until = np.cumsum(row)
            most[event] = np.maximum(most[event], until) if event in most else until
    return most
