"""Releases about some of a client's records only: parallel composition, where a coin of each record's own decides which.

Whether a record is held out is a function of that record alone (tacit/data/row_hashes.py), so a record that comes or goes moves no
other one, and every release about the other side has the same distribution with it and without it, whatever was released before.
So a record pays for the releases about all records and for those about its own side, and for no others: the price of a
composition is the largest over the sides (McSherry 2009, Theorem 4; that later releases depend on earlier ones changes nothing,
because those are the same on both sides of the comparison).
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import events

MOST_SPLITS = 3  # in one composition; with more, all are taken as if every record were on every side
LONGEST = 100  # characters of a name


@dataclass(frozen=True)
class SideDpEvent(DpEvent):
    """A release about the records on one `side` of a `split`, which names the coin that every record has tossed.

    Raises: BadInput for a release that is itself about a side, has counts around it, or is priced by Rényi curves alone.
    """

    split: str
    side: str
    event: DpEvent

    def __post_init__(self) -> None:
        for word in (self.split, self.side):
            if not isinstance(word, str) or not 0 < len(word) <= LONGEST:
                raise BadInput("Expected a split and a side to have a name.")
        if isinstance(self.event, SideDpEvent | dp_accounting.SelfComposedDpEvent):
            raise BadInput("A release about one side is a single release, and about that side alone.")
        check.one_of(("add or remove one",), relation=events.kind_of(self.event).relation)
        if events.kind_of(self.event).gaussian is None:
            raise BadInput("No price is known here for such a release about some of the records.")


def on_side(event: DpEvent, *, split: str, side: str) -> DpEvent:
    """An event, counts around it or not, as one about the records on a side.

    >>> on_side(dp_accounting.GaussianDpEvent(2.0), split="a", side="held out").event.side
    'held out'
    """
    inner, times = events.counted(event)
    return dp_accounting.SelfComposedDpEvent(SideDpEvent(split, side, inner), times)


def apart(composition: tuple[tuple[DpEvent, int], ...]) -> list[tuple[tuple[DpEvent, int], ...]]:
    """What a record can have paid for, for every way in which its coins may have fallen; one composition where nothing is apart.

    Guarantee: whatever sides a record is on, one of these holds every release that is about it.
    """
    splits: dict[str, set[str]] = {}
    for event, _ in composition:
        if isinstance(event, SideDpEvent):
            splits.setdefault(event.split, set()).add(event.side)
    if not splits or len(splits) > MOST_SPLITS:
        return [composition]
    found = []
    for sides in product(*(sorted(splits[split]) for split in sorted(splits))):
        mine = set(zip(sorted(splits), sides, strict=True))
        found.append(
            tuple(
                (event, count)
                for event, count in composition
                if not isinstance(event, SideDpEvent) or (event.split, event.side) in mine
            )
        )
    return found


def whose(composition: tuple[tuple[DpEvent, int], ...]) -> str:
    """The sides that the releases of one of these (`apart`) are about; empty where all are about every record.

    >>> whose(((SideDpEvent("a", "held out", dp_accounting.GaussianDpEvent(2.0)), 1),))
    'held out'
    """
    return " and ".join(sorted({event.side for event, _ in composition if isinstance(event, SideDpEvent)}))


def _record(event: SideDpEvent) -> dict[str, Any]:
    kind = events.kind_of(event.event)
    return {"split": event.split, "side": event.side, "of": kind.name, **kind.to_record(event.event)}


def _read(record: dict[str, Any]) -> SideDpEvent:
    split, side, name = (record.pop(key) for key in ("split", "side", "of"))
    return SideDpEvent(split, side, events.kind_named(name).from_record(record))


def _gaussian(event: SideDpEvent) -> tuple[float, float]:
    return events.kind_of(event.event).gaussian(event.event)  # type: ignore[misc]


def _slack(event: SideDpEvent) -> float:
    slack = events.kind_of(event.event).slack
    return slack(event.event) if slack else 0.0


events.register(events.Kind("one-side", (SideDpEvent,), _record, _read, gaussian=_gaussian, slack=_slack))
