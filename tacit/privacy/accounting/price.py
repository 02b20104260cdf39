"""From what was released to an epsilon, cached.

What is printed is never below the truth, for every input that is accepted: every bound below holds with its rounding.
- Gaussian releases without sampling compose in closed form (gdp.py).
- With sampling, the least of three bounds on the same composition: privacy loss distributions with a proven bound on every
  rounding (composed.py), Rényi curves (sampled_rdp.py; they take over where the losses are too
  large for a grid), and the closed form of the same releases without sampling.
  A coarser grid makes a distribution faster and its epsilon larger, never smaller; the grid costs about 0.1 %.
- Fixed-size cohorts, integer sums, and everything on request (`accountant="rdp"`): Rényi curves alone.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import composed, gdp, sampled_rdp
from tacit.privacy.accounting.sampled_rdp import sampled_gaussian
from tacit.privacy.integers import renyi

ACCOUNTANTS = ("pld", "rdp")
INTEGER_SUMS = "RDP (integer sums)"
MOST_RELEASES = 2**53  # counts up to here are exact as floats

Composition = tuple[tuple[DpEvent, int], ...]


def compose(events: Iterable[tuple[DpEvent, int]]) -> Composition:
    """Counts equal events together, looking inside self-compositions: the order of releases does not change the price."""
    counts: Counter[DpEvent] = Counter()
    for event, count in events:
        times = _whole(count)
        while isinstance(event, dp_accounting.SelfComposedDpEvent):
            event, times = event.event, _whole(times * _whole(event.count))
        counts[event] = _whole(counts[event] + times)
    return tuple(sorted(((event, count) for event, count in counts.items() if count), key=repr))


def _whole(count: int) -> int:
    """A number of releases, refused unless it is a whole number >= 0: a negative one would pay charges back."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= MOST_RELEASES:
        raise BadInput(f"Expected a whole number of releases between 0 and 2^53, got {count!r}.")
    return int(count)


def epsilon(composition: Composition, *, delta: float, accountant: str = "pld") -> float:
    """The epsilon at `delta` of everything in the composition. Guarantee: not below the smallest that holds.

    >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    >>> round(epsilon(((step, 150),), delta=1e-5), 2)
    4.18
    """
    return _priced(composition, delta=delta, accountant=accountant)[0]


def method(composition: Composition, *, delta: float, accountant: str = "pld") -> str:
    """The name of the bound that `epsilon` took.

    >>> method(((dp_accounting.GaussianDpEvent(2.0), 3),), delta=1e-5)
    'GDP (closed form)'
    """
    return _priced(composition, delta=delta, accountant=accountant)[1]


@lru_cache(maxsize=100_000)
def _priced(composition: Composition, *, delta: float, accountant: str) -> tuple[float, str]:
    check.probability(delta=delta)
    check.one_of(ACCOUNTANTS, accountant=accountant)
    composition = compose(composition)
    if not composition:
        return 0.0, "nothing released"
    if any(replaces_one(event) for event, _ in composition):
        return _replace_one(composition, delta, accountant)
    if any(isinstance(event, renyi.IntegerSumDpEvent) for event, _ in composition):  # their price is a Rényi curve
        return renyi.epsilon(composition, delta=delta), INTEGER_SUMS
    if accountant == "rdp":
        return _rdp(composition, delta)
    return _sampled(composition, delta)


def _sampled(composition: Composition, delta: float) -> tuple[float, str]:
    parts = [(*sampled_gaussian(event), count) for event, count in composition]
    unsampled = gdp.epsilon(gdp.mu_of((z, count) for _, z, count in parts), delta), "GDP (closed form)"
    whole, drawn = ([part for part in parts if (part[0] == 1) == wanted] for wanted in (True, False))
    if not drawn or unsampled[0] == 0:
        return unsampled
    if whole:  # they are one Gaussian release
        drawn.append((1.0, (1 - 1e-15) / gdp.mu_of((z, count) for _, z, count in whole), 1))
    drawn = tuple(drawn)
    by_losses = composed.epsilon(drawn, delta), "PLD (connect the dots, numerical error bounded)"
    if math.isinf(by_losses[0]):
        return min(_rdp(composition, delta), _whole_orders(drawn, delta), unsampled)
    return min(by_losses, _whole_orders(drawn, delta), unsampled)


def _whole_orders(drawn: composed.Parts, delta: float) -> tuple[float, str]:
    curve = np.sum([count * sampled_rdp.poisson_whole(rate, z) for rate, z, count in drawn], axis=0)
    return sampled_rdp.epsilon(sampled_rdp.WHOLE, curve, delta), "RDP (rounded up)"


def _rdp(composition: Composition, delta: float) -> tuple[float, str]:
    curve = np.sum([count * sampled_rdp.curve(event) for event, count in composition], axis=0)
    return sampled_rdp.epsilon(sampled_rdp.ORDERS, curve, delta), "RDP (rounded up)"


def replaces_one(event: DpEvent) -> bool:
    """Whether an event is priced for replacing one unit by another, not for adding or removing one."""
    return isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)


def _replace_one(composition: Composition, delta: float, accountant: str) -> tuple[float, str]:
    if accountant != "rdp":
        raise BadInput('Cohorts of a fixed size are priced by RDP alone: set privacy.accountant = "rdp".')
    if not all(replaces_one(event) for event, _ in composition):
        raise BadInput(
            "Fixed-size cohorts (replace one) and other releases (add or remove one) have no common price:"
            " use another privacy.ledger."
        )
    return _rdp(composition, delta)


def to_text(event: DpEvent) -> str:
    """A round event as one line of JSON for the ledger; `from_text` is its inverse."""
    steps = 1
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, steps = event.event, event.count
    if isinstance(event, renyi.IntegerSumDpEvent):
        return renyi.to_text(event, steps)
    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        sizes = {"population": event.source_dataset_size, "cohort": event.sample_size}
        _, z = sampled_gaussian(event.event)
        return json.dumps({"event": "fixed-cohort-gaussian", "noise_multiplier": z, **sizes, "steps": steps})
    rate, z = sampled_gaussian(event)
    return json.dumps({"event": "sampled-gaussian", "noise_multiplier": z, "sampling_rate": rate, "steps": steps})


@lru_cache(maxsize=100_000)
def from_text(text: str) -> DpEvent:
    """The event that `to_text` wrote, exactly: floats are written so that they read back the same.

    Raises BadInput for anything else, a negative or broken number of steps included: it would pay charges back.
    """
    try:
        record = json.loads(text)
        kind = record.get("event")
        if kind not in ("sampled-gaussian", "fixed-cohort-gaussian", renyi.KIND):
            raise BadInput(f"This ledger holds an event of kind {kind!r} that this version cannot price.")
        if _whole(record["steps"]) == 0:
            raise BadInput("This ledger holds an event of no steps at all.")
        return renyi.from_record(record) if kind == renyi.KIND else _from_record(record)
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"This ledger holds an event that cannot be read: {str(text)[:80]!r}.") from error


def _from_record(record: dict) -> DpEvent:
    one: DpEvent = dp_accounting.GaussianDpEvent(record["noise_multiplier"])
    if record["event"] == "fixed-cohort-gaussian":
        one = dp_accounting.SampledWithoutReplacementDpEvent(record["population"], record["cohort"], one)
        sampled_rdp.cohort(one)
    else:
        check.rate(sampling_rate=record["sampling_rate"])
        one = dp_accounting.PoissonSampledDpEvent(record["sampling_rate"], one) if record["sampling_rate"] < 1 else one
        sampled_gaussian(one)
    return dp_accounting.SelfComposedDpEvent(one, record["steps"])
