"""What a release can be: a closed list of kinds, each with its price, the change it protects against, and its words in a ledger.

A `DpEvent` (dp-accounting) describes a release; its `Kind` says the rest. Prices and ledgers ask the kind and know no event
by its type. Reading a ledger looks a name up in the list and imports nothing; a name that is not there is refused. Code adds a
kind by `register`; nothing that stands in a file can.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Literal

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import renyi, sampled_rdp

Relation = Literal["add or remove one", "replace one"]
OURS = frozenset({"event", "steps"})  # what a ledger's line says beside a kind's own words
MOST_RELEASES = 2**53  # counts up to here are exact as floats


def _itself(event: DpEvent) -> DpEvent:
    return event


@dataclass(frozen=True)
class Kind:
    """A kind of event, for all events of its `types`.

    `gaussian` gives (q, z) of what costs no more than a Gaussian release with multiplier z of a Poisson sample at rate q: it is
    priced by the closed form, privacy losses or Rényi curves, whichever is least. What is no such thing gives a `curve`, upper
    bounds of its Rényi divergences at `sampled_rdp.ORDERS`; a composition with one of these is priced by Rényi curves alone.
    `slack` is how far, in total variation, a release may be from what its curve is for. Kinds of one `relation` have a price
    together, others have none. `alone` is the same release to whoever sees one client's report by itself.

    Guarantee asked of whoever writes one: every bound holds, and `from_record(to_record(event))` costs what `event` costs.
    """

    name: str
    types: tuple[type[DpEvent], ...]
    to_record: Callable[[Any], dict[str, Any]]
    from_record: Callable[[dict[str, Any]], DpEvent]
    gaussian: Callable[[Any], tuple[float, float]] | None = None
    curve: Callable[[Any], np.ndarray] | None = None
    slack: Callable[[Any], float] | None = None
    relation: Relation = "add or remove one"
    bound: str = "RDP (rounded up)"  # what a Rényi price of it is called
    alone: Callable[[Any], DpEvent] = _itself

    def __post_init__(self) -> None:
        if self.gaussian is None and self.curve is None:
            raise BadInput(f"The event {self.name!r} has no price: give it `gaussian` or `curve`.")

    def divergences(self, event: DpEvent) -> np.ndarray:
        """Its Rényi curve, never below the truth."""
        return self.curve(event) if self.curve else sampled_rdp.poisson(*self.gaussian(event))  # type: ignore[misc]


_KINDS: dict[str | type[DpEvent], Kind] = {}


def register(kind: Kind) -> None:
    """Adds a kind. Raises BadInput for a name or a type that has one: a ledger's words never change their meaning."""
    for key in (kind.name, *kind.types):
        if key in _KINDS:
            raise BadInput(f"There is an event {getattr(key, '__name__', key)!r} already: take another name.")
    _KINDS.update(dict.fromkeys((kind.name, *kind.types), kind))


def kind_of(event: DpEvent) -> Kind:
    """The kind of an event without counts around it. Raises BadInput for one that has no price.

    >>> kind_of(dp_accounting.GaussianDpEvent(1.0)).name
    'sampled-gaussian'
    """
    if type(event) not in _KINDS:
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    return _KINDS[type(event)]


def named(name: object) -> Kind:
    """The kind of this name in a ledger. Raises BadInput for one that this version does not know; nothing is imported."""
    if not isinstance(name, str) or name not in _KINDS:
        raise BadInput(f"This ledger holds an event of kind {name!r} that this version cannot price.")
    return _KINDS[name]


def counted(event: DpEvent) -> tuple[DpEvent, int]:
    """An event without the self-compositions around it, and how often it happens. Raises BadInput for a broken count."""
    times = 1
    while isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, times = event.event, whole(times * whole(event.count))
    return event, times


def whole(count: int) -> int:
    """A number of releases, refused unless it is a whole number >= 0: a negative one would pay charges back."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= MOST_RELEASES:
        raise BadInput(f"Expected a whole number of releases between 0 and 2^53, got {count!r}.")
    return int(count)


def relation(event: DpEvent) -> Relation:
    """The change that an event's price is for, counts around it or not."""
    return kind_of(counted(event)[0]).relation


def refuse_mixed(relations: AbstractSet[str]) -> None:
    """Replacing one unit and adding or removing one are different promises: their epsilons do not add up. Raises BadInput."""
    if len(relations) > 1:
        raise BadInput(
            "Fixed-size cohorts (replace one) and other releases (add or remove one) have no common price:"
            " use another privacy.ledger."
        )


def alone(event: DpEvent) -> DpEvent:
    """What an event is, counts around it or not, to whoever sees one client's report by itself."""
    inner, times = counted(event)
    return dp_accounting.SelfComposedDpEvent(kind_of(inner).alone(inner), times)


def _sampled_record(event: DpEvent) -> dict[str, Any]:
    rate, z = sampled_rdp.sampled_gaussian(event)
    return {"noise_multiplier": z, "sampling_rate": rate}


def _sampled(record: dict[str, Any]) -> DpEvent:
    one, rate = dp_accounting.GaussianDpEvent(record["noise_multiplier"]), record["sampling_rate"]
    check.rate(sampling_rate=rate)
    found = dp_accounting.PoissonSampledDpEvent(rate, one) if rate < 1 else one
    sampled_rdp.sampled_gaussian(found)
    return found


def _fixed_record(event: dp_accounting.SampledWithoutReplacementDpEvent) -> dict[str, Any]:
    _, z = sampled_rdp.cohort(event)
    return {"noise_multiplier": z, "population": event.source_dataset_size, "cohort": event.sample_size}


def _fixed(record: dict[str, Any]) -> DpEvent:
    one = dp_accounting.GaussianDpEvent(record["noise_multiplier"])
    found = dp_accounting.SampledWithoutReplacementDpEvent(record["population"], record["cohort"], one)
    sampled_rdp.cohort(found)
    return found


register(
    Kind(
        "sampled-gaussian",
        (dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent),
        _sampled_record,
        _sampled,
        gaussian=sampled_rdp.sampled_gaussian,
    )
)
register(
    Kind(
        "fixed-cohort-gaussian",
        (dp_accounting.SampledWithoutReplacementDpEvent,),
        _fixed_record,
        _fixed,
        curve=lambda event: sampled_rdp.without_replacement(*sampled_rdp.cohort(event)),
        relation="replace one",
    )
)
register(
    Kind(
        "integer-sum",
        (renyi.IntegerSumDpEvent,),
        asdict,
        lambda record: renyi.IntegerSumDpEvent(**record),
        curve=renyi.default_curve,
        slack=lambda event: event.slack + event.cut,
        bound="RDP (arXiv:2110.04995, arXiv:2102.06387)",
        alone=renyi.IntegerSumDpEvent.alone,
    )
)
