"""From what was released to an epsilon: composition and conversion by dp-accounting, cached.

PLD (Koskela et al. 2020; connect-the-dots of Doroshenko et al. 2022, arXiv:2207.04380) is the default; RDP on request.
Both are upper bounds. A coarser grid makes a PLD faster and its epsilon larger, never smaller; the grid here costs
about 0.1 %.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

from tacit import check
from tacit.errors import BadInput
from tacit.privacy import renyi

ACCOUNTANTS = ("pld", "rdp")
POINTS_PER_STD = (
    20  # grid points per standard deviation of one step's privacy loss: within 0.1 % of a 10 times finer grid
)
COARSEST, FINEST, WIDEST = 5e-3, 1e-5, 50.0
MOST_POINTS = (
    200_000  # a tiny noise multiplier spreads the loss over thousands; the grid then widens instead of the memory
)

ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE

Composition = tuple[tuple[DpEvent, int], ...]


def compose(events: Iterable[tuple[DpEvent, int]]) -> Composition:
    """Counts equal events together, looking inside self-compositions: the order of releases does not change the price."""
    counts: Counter[DpEvent] = Counter()
    for event, count in events:
        while isinstance(event, dp_accounting.SelfComposedDpEvent):
            event, count = event.event, count * event.count
        counts[event] += count
    return tuple(sorted(((event, count) for event, count in counts.items() if count), key=repr))


@lru_cache(maxsize=100_000)
def epsilon(composition: Composition, *, delta: float, accountant: str = "pld") -> float:
    """The epsilon at `delta` of everything in the composition.

    >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    >>> round(epsilon(((step, 150),), delta=1e-5), 2)
    4.18
    """
    check.probability(delta=delta)
    check.one_of(ACCOUNTANTS, accountant=accountant)
    if not composition:
        return 0.0
    if any(replaces_one(event) for event, _ in composition):
        return _epsilon_replace_one(composition, delta, accountant)
    if any(isinstance(event, renyi.IntegerSumDpEvent) for event, _ in composition):  # their price is a Rényi curve
        return renyi.epsilon(composition, delta=delta)
    return (_epsilon_pld if accountant == "pld" else _epsilon_rdp)(composition, delta)


def _epsilon_pld(composition: Composition, delta: float) -> float:
    interval = min(_interval(event) for event, _ in composition)
    if interval > WIDEST:  # noise so small that the grid would be useless: RDP bounds it as well as anything
        return _epsilon_rdp(composition, delta)
    parts = [_one_step(event, interval).self_compose(count) for event, count in composition]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return float(total.get_epsilon_for_delta(delta))


def _epsilon_rdp(composition: Composition, delta: float, relation: NeighboringRelation = ADD_OR_REMOVE_ONE) -> float:
    accountant = RdpAccountant(neighboring_relation=relation)
    for event, count in composition:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def replaces_one(event: DpEvent) -> bool:
    """Whether an event is priced for replacing one unit by another, not for adding or removing one."""
    return isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)


def _epsilon_replace_one(composition: Composition, delta: float, accountant: str) -> float:
    if accountant != "rdp":
        raise BadInput('Cohorts of a fixed size are priced by RDP alone: set privacy.accountant = "rdp".')
    if not all(replaces_one(event) for event, _ in composition):
        raise BadInput(
            "Fixed-size cohorts (replace one) and other releases (add or remove one) have no common price:"
            " use another privacy.ledger."
        )
    return _epsilon_rdp(composition, delta, NeighboringRelation.REPLACE_ONE)


def sampled_gaussian(event: DpEvent) -> tuple[float, float]:
    """(q, z) of a Gaussian release, Poisson-sampled or not. Raises BadInput for what has no such price."""
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise BadInput(f"No price is known here for the event {type(event).__name__}.")
    return rate, event.noise_multiplier


@lru_cache(maxsize=256)
def _one_step(event: DpEvent, interval: float) -> pld.PrivacyLossDistribution:
    rate, z = sampled_gaussian(event)
    return pld.from_gaussian_mechanism(z, sampling_prob=rate, value_discretization_interval=interval)


def _interval(event: DpEvent) -> float:
    """A grid fine enough for one step's loss, whose standard deviation is about q sqrt(exp(1/z^2) - 1)."""
    rate, z = sampled_gaussian(event)
    std = 1 / z if rate == 1 else rate * math.sqrt(math.expm1(min(1 / z**2, 50.0)))
    widest = 0.5 / z**2 + 12 / z
    return max(FINEST, min(COARSEST, std / POINTS_PER_STD), widest / MOST_POINTS)


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
    """The event that `to_text` wrote, exactly: floats are written so that they read back the same."""
    record = json.loads(text)
    if record.get("event") == renyi.KIND:
        return renyi.from_record(record)
    if record.get("event") not in ("sampled-gaussian", "fixed-cohort-gaussian"):
        raise BadInput(f"This ledger holds an event of kind {record.get('event')!r} that this version cannot price.")
    one: DpEvent = dp_accounting.GaussianDpEvent(record["noise_multiplier"])
    if record["event"] == "fixed-cohort-gaussian":
        one = dp_accounting.SampledWithoutReplacementDpEvent(record["population"], record["cohort"], one)
    elif record["sampling_rate"] < 1:
        one = dp_accounting.PoissonSampledDpEvent(record["sampling_rate"], one)
    return dp_accounting.SelfComposedDpEvent(one, record["steps"])
