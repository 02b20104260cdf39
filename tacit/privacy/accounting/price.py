"""From what was released to an epsilon, never below the truth: every bound below holds with its rounding.
- Gaussian releases without sampling compose in closed form; with sampling the least of three bounds counts: privacy loss
  distributions (pld.py), Rényi curves (rdp.py), and the closed form of the same releases without sampling.
- Releases about one side of a split are composed with those about all records, side by side: the largest price counts.
- Fixed-size cohorts, integer sums, the best of many runs, and everything on request: Rényi curves alone."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import events, pld, rdp

# Releases about some of a client's records only: parallel composition, where a coin of each record's own decides which.

MOST_SPLITS = 3  # in one composition; with more, all are taken as if every record were on every side
LONGEST = 100  # characters of a name


@dataclass(frozen=True)
class SideDpEvent(DpEvent):
    """A release about the records on one `side` of a `split`, which names the coin that every record has tossed. Raises:
    BadInput for a release that is itself about a side, has counts around it, or is priced by Rényi curves alone."""

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
    """What a record can have paid for, for every way in which its coins may have fallen; one composition where nothing is
    apart. Guarantee: whatever sides a record is on, one of these holds every release that is about it."""
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

# a kind of its own, which every ledger that is read may hold

ACCOUNTANTS = ("pld", "rdp")

Composition = tuple[tuple[DpEvent, int], ...]


def compose(releases: Iterable[tuple[DpEvent, int]]) -> Composition:
    """Counts equal events together, looking inside self-compositions: the order of releases does not change the price.
    Assumes: events and counts were fixed beforehand. Raises: BadInput for a count that is no whole number from 0 to 2^53.

    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> compose([(gaussian, 2), (dp_accounting.SelfComposedDpEvent(gaussian, 3), 1)])
    ((GaussianDpEvent(noise_multiplier=1.0), 5),)
    """
    counts: Counter[DpEvent] = Counter()
    for event, count in releases:
        inner, times = events.counted(event)
        counts[inner] = events.release_count(counts[inner] + events.release_count(events.release_count(count) * times))
    return tuple(sorted(((event, count) for event, count in counts.items() if count), key=repr))


def epsilon(composition: Composition, *, delta: float, accountant: str = "pld") -> float:
    """The epsilon at `delta` of everything in the composition; 0 for nothing, inf where no bound says anything. Guarantee:
    not below the smallest that holds for the events' own change, every rounding included. Raises: BadInput for events
    without a price or without one together, and for cohorts of a fixed size by another accountant than "rdp".

    >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    >>> round(epsilon(((step, 150),), delta=1e-5), 2)
    4.18
    """
    return _priced(composition, delta=delta, accountant=accountant)[0]


def method(composition: Composition, *, delta: float, accountant: str = "pld") -> str:
    """The name of the bound that `epsilon` took: the least of those that apply. Raises as `epsilon`.

    >>> method(((dp_accounting.GaussianDpEvent(2.0), 3),), delta=1e-5)
    'GDP (closed form)'
    """
    return named([methods(composition, delta=delta, accountant=accountant)])


def methods(composition: Composition, *, delta: float, accountant: str = "pld") -> dict[str, str]:
    """The bound that was taken for the records of every side; under "" where all records are on one. Raises as `epsilon`.

    >>> asked = on_side(dp_accounting.GaussianDpEvent(2.0), split="a", side="held out")
    >>> methods(((asked, 1),), delta=1e-5)
    {'held out': 'GDP (closed form)'}
    """
    return dict(_priced(composition, delta=delta, accountant=accountant)[1])


def named(clients: Iterable[dict[str, str]]) -> str:
    """The bounds of many clients (`methods`) in words: each once, and for whom it was taken where that differs by the side.

    >>> named([{"trained on": "PLD", "held out": "GDP"}, {"trained on": "RDP", "held out": "GDP"}])
    'PLD and RDP for records trained on and GDP for records held out'
    """
    found: dict[str, set[str]] = {}
    for one in clients:
        for side, name in one.items():
            found.setdefault(side, set()).add(name)
    words = {side: " and ".join(sorted(names)) for side, names in sorted(found.items(), reverse=True)}
    if len(set(words.values())) <= 1:
        return next(iter(words.values()), "")
    return " and ".join(f"{names} for records {side}" if side else names for side, names in words.items())


@lru_cache(maxsize=100_000)
def _priced(composition: Composition, *, delta: float, accountant: str) -> tuple[float, tuple[tuple[str, str], ...]]:
    check.probability(delta=delta)
    check.one_of(ACCOUNTANTS, accountant=accountant)
    composition = compose(composition)
    if not composition:
        return 0.0, (("", "nothing released"),)
    kinds = [events.kind_of(event) for event, _ in composition]
    relations = {kind.relation for kind in kinds}
    if "replace one" in relations and accountant != "rdp":
        raise BadInput('Cohorts of a fixed size are priced by RDP alone: set privacy.accountant = "rdp".')
    events.refuse_mixed(relations)
    bounds = [(whose(one), *_together(one, delta=delta, accountant=accountant)) for one in apart(composition)]
    return max(spent for _, spent, _ in bounds), tuple((side, name) for side, _, name in bounds)


def _together(composition: Composition, *, delta: float, accountant: str) -> tuple[float, str]:
    if accountant == "rdp" or any(events.kind_of(event).gaussian is None for event, _ in composition):
        return _rdp(composition, delta)
    slack = _slack_price(composition)
    return _sampled(composition, delta) if slack == 0 else _with_slack(composition, delta, slack)


def _slack_price(composition: Composition) -> float:
    """How far, in total variation, all releases together may be from what they are priced as."""
    kinds = [(events.kind_of(event), event, count) for event, count in composition]
    return sum(count * kind.slack(event) for kind, event, count in kinds if kind.slack)


def _with_slack(composition: Composition, delta: float, slack: float) -> tuple[float, str]:
    """As `_sampled`, with (1 + e^epsilon) slack paid for out of a part of delta that is set aside; inf where it eats delta."""
    for reserve in rdp.RESERVES:
        spent, name = _sampled(composition, delta * (1 - reserve))
        if spent + math.log1p(math.exp(-spent)) + math.log(slack) <= math.log(delta * reserve):
            return spent, name
    return math.inf, "no bound"


def accountant_for(composition: Composition) -> str:
    """The accountant that can price a composition: "pld" wherever it can. Raises BadInput for an event that has no price."""
    return "rdp" if any(events.relation(event) == "replace one" for event, _ in composition) else "pld"


def _sampled(composition: Composition, delta: float) -> tuple[float, str]:
    parts = [(*events.kind_of(event).gaussian(event), count) for event, count in composition]  # type: ignore[misc]
    unsampled = pld.epsilon(pld.mu_of((z, count) for _, z, count in parts), delta), "GDP (closed form)"
    unsampled_parts, drawn = ([part for part in parts if (part[0] == 1) == full] for full in (True, False))
    if not drawn or unsampled[0] == 0:
        return unsampled
    if unsampled_parts:  # they are one Gaussian release
        drawn.append((1.0, (1 - 1e-15) / pld.mu_of((z, count) for _, z, count in unsampled_parts), 1))
    drawn = tuple(drawn)
    by_losses = pld.epsilon_composed(drawn, delta), "PLD (connect the dots, numerical error bounded)"
    if math.isinf(by_losses[0]):
        return min(_rdp(composition, delta), _whole_orders(drawn, delta), unsampled)
    return min(by_losses, _whole_orders(drawn, delta), unsampled)


def _whole_orders(drawn: pld.Parts, delta: float) -> tuple[float, str]:
    curve = np.sum([count * rdp.poisson_whole(rate, z) for rate, z, count in drawn], axis=0)
    return rdp.epsilon(rdp.WHOLE, curve, delta), "RDP (rounded up)"


def _rdp(composition: Composition, delta: float) -> tuple[float, str]:
    parts = [(events.kind_of(event), event, count) for event, count in composition]
    curve = np.sum([count * kind.divergences(event) for kind, event, count in parts], axis=0)
    name = " and ".join(sorted({kind.bound for kind, _, _ in parts}))
    if slack := _slack_price(composition):
        return rdp.epsilon_renyi(curve, slack=slack, delta=delta), name
    return rdp.epsilon(rdp.ORDERS, curve, delta), name


def to_text(event: DpEvent) -> str:
    """A round event as one line of JSON for the ledger; `from_text` is its inverse. Raises: BadInput for what has no price,
    and for a kind that writes words which are the ledger's own.

    >>> to_text(dp_accounting.GaussianDpEvent(2.0))
    '{"event": "sampled-gaussian", "noise_multiplier": 2.0, "sampling_rate": 1.0, "steps": 1}'
    """
    inner, steps = events.counted(event)
    kind = events.kind_of(inner)
    record = kind.to_record(inner)
    if events.OURS & record.keys():
        raise BadInput(f'The event {kind.name!r} may not write "event" or "steps" itself: use other words.')
    return json.dumps({"event": kind.name, **record, "steps": steps})


@lru_cache(maxsize=100_000)
def from_text(text: str) -> DpEvent:
    """The event that `to_text` wrote, exactly. Nothing in the text is imported or run; only registered kinds are read.
    Raises: BadInput for anything else, a negative or broken number of steps included: it would pay charges back.

    >>> from_text(to_text(dp_accounting.GaussianDpEvent(0.1)))
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=0.1), count=1)
    """
    try:
        record = json.loads(text)
        kind = events.kind_named(record.get("event"))
        if events.release_count(record["steps"]) == 0:
            raise BadInput("This ledger holds an event of no steps at all.")
        one = kind.from_record({key: value for key, value in record.items() if key not in events.OURS})
        return dp_accounting.SelfComposedDpEvent(one, record["steps"])
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"This ledger holds an event that cannot be read: {str(text)[:80]!r}.") from error
