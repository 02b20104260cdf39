"""The promise of a run in words and numbers: what a privacy officer signs."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np
from dp_accounting import DpEvent

from tacit.data.population import Population
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.central.plan import CentralPlan
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.privacy.integers.renyi import IntegerSumDpEvent
from tacit.privacy.ledger.filter import RULE
from tacit.privacy.ledger.ledger import ALL, Ledger
from tacit.privacy.local.plan import Plan
from tacit.types import Guarantee, Others, Unit

SEEDED = "a seed (an experiment: whoever knows the seed can remove the noise)"
FROM_OS = "the operating system's entropy"


SIGHT = "the server, the other clients and everybody who sees updates or models"
MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"
PUBLIC = ("the test set and all settings, their tuning included, are public",)
FLOATS = ("floating-point noise stands for real-valued noise",)
EMPTIED = "empty one client (its update is then zero)"
WHO = {
    "record": ("a record belongs to one client only", "each client's number of records is public"),
    "client": (
        "a person's data is with one client only",
        "the number of clients and their numbers of records are public",
    ),
}


def promise(experiment: Experiment, plan: Plan | CentralPlan | DistributedPlan) -> Guarantee:
    """The statement of a run before anything is spent: for whom, against whom, under which change."""
    privacy, assumes = experiment.privacy, FLOATS
    accountant = {"pld": "the least of PLD, RDP and the closed form for Gaussians", "rdp": "RDP"}[privacy.accountant]
    if isinstance(plan, DistributedPlan):
        words, assumes = _distributed_words(experiment, plan), _distributed_assumptions(experiment, plan)
        accountant = "RDP (arXiv:2110.04995, arXiv:2102.06387)"
    elif isinstance(plan, CentralPlan):
        words = _central_words(plan.mechanism)
    else:
        words = _local_words(privacy.unit_kept)
    return Guarantee(
        unit=privacy.unit_kept,
        adversary=words["adversary"],
        relation=words["relation"],
        sampler=words["sampler"],
        accountant=accountant,
        delta=privacy.run_delta,
        epsilon_min=0.0,
        epsilon_median=0.0,
        epsilon_max=0.0,
        randomness=SEEDED if experiment.run.randomness == "seeded" else FROM_OS,
        assumes=(*WHO[privacy.unit_kept], *PUBLIC, *assumes),
    )


def _distributed_words(experiment: Experiment, plan: DistributedPlan) -> dict[str, str]:
    known = plan.noises[0].colluding
    what = "noise and the shares of the key" if experiment.protect.split else "shares"
    helped = f", even with the {what} of {known} other client{'s' if known > 1 else ''}," if known else ""
    sealed = "the server, which holds no key, and everybody who sees the sums or the models"
    trusted = "everybody who sees the sums or the models (the server is trusted to add reports and not to look at one)"
    sums = " or ".join(str(noise.fewest) for noise in plan.noises)
    shares = f"sums of at least {sums} reports with {plan.noises[0].law} shares"
    return {
        "adversary": (sealed if experiment.protect.kind == "paillier" else trusted) + helped,
        "relation": EMPTIED,
        "sampler": f"{shares} (nothing is claimed for choosing clients at random)",
    }


def _distributed_assumptions(experiment: Experiment, plan: DistributedPlan) -> tuple[str, ...]:
    who = f"of the reports in a sum at most {plan.noises[0].colluding} come from clients that give away or leave out their noise"
    own = () if plan.noises[0].colluding else ("a client does not use that it knows its own share",)
    paillier = ("Paillier keeps its assumption", _keys_kept(experiment, clients=len(plan.groups)))
    return (who, *own, *(paillier if experiment.protect.kind == "paillier" else ()))


def _keys_kept(experiment: Experiment, *, clients: int) -> str:
    """How many clients may give their key away. Two sums of one round need 2t answers, so of n honest holders 2t - n refuse."""
    t = experiment.protect.threshold or 1
    if t == 1:
        return "the server gets no client's key"
    few = f"fewer than {t} of the {clients} clients give the server their share of the key"
    spare = 2 * t - clients - 1
    if spare == t - 1:  # every client is needed
        return few
    return f"{few} ({f'at most {spare}' if spare else 'none'}, if it asks for more than one sum of a round)"


def seen_alone(guarantee: Guarantee, experiment: Experiment, ledger: Ledger, population: Population) -> Guarantee:
    """What is left against somebody who can read single reports: each is protected by its own share of the noise alone."""
    protect = experiment.protect
    reader = f"{protect.threshold} clients' shares of the key" if protect.split else "a client's key"
    sealed = f"the server once it has {reader}"
    other = replace(
        guarantee,
        adversary=sealed if protect.kind == "paillier" else "a server that looks at single reports",
        sampler="single reports, each with its own share of the noise",
        assumes=(*WHO["client"], *PUBLIC),
    )

    def alone(event: DpEvent) -> DpEvent:
        return event.alone() if isinstance(event, IntegerSumDpEvent) else event

    return spent_by(other, ledger, population, seen=alone)


def _local_words(unit: Unit) -> dict[str, str]:
    if unit == "client":
        return {
            "adversary": SIGHT,
            "relation": EMPTIED,
            "sampler": "whole updates (nothing is claimed for choosing clients at random)",
        }
    sampler = "Poisson batches within a client (nothing is claimed for choosing clients at random)"
    return {"adversary": SIGHT, "relation": "add or remove one record of one client", "sampler": sampler}


def _central_words(mechanism: CohortGaussian) -> dict[str, str]:
    m = mechanism
    if m.sampler == "fixed":
        sampler = f"cohorts of {m.cohort} of {m.population} clients, without replacement"
        return {"adversary": MODELS_ONLY, "relation": "replace one client by another", "sampler": sampler}
    sampler = f"Poisson cohorts, each of {m.population} clients with probability {m.rate:.4g} in every round"
    return {"adversary": MODELS_ONLY, "relation": "add or remove one client", "sampler": sampler}


def _itself(event: DpEvent) -> DpEvent:
    return event


def spent_by(
    guarantee: Guarantee, ledger: Ledger, population: Population, *, seen: Callable[[DpEvent], DpEvent] = _itself
) -> Guarantee:
    """The statement with what this run spent, over all clients, and what it comes to with the other runs of its ledger.

    Who was never charged spent nothing. `seen` is what an event is to whom the statement is about. The accountant that is named is
    the one whose bound was taken.
    """
    unit, spent, bounds = guarantee.unit, np.zeros(len(population)), set[str]()
    compositions, shared = ledger.compositions(unit), ledger.composition(None, unit)
    for index, name in enumerate(population.names):
        composition = price.compose((seen(event), count) for event, count in compositions.get(name, shared))
        spent[index] = price.epsilon(composition, delta=guarantee.delta, accountant=ledger.accountant)
        if composition:
            bounds.add(price.method(composition, delta=guarantee.delta, accountant=ledger.accountant))
    low, middle, high = (float(value) for value in (spent.min(), np.median(spent), spent.max()))
    others = _others(guarantee, ledger, dict(zip(population.names, spent.tolist(), strict=True)), seen)
    accountant = " and ".join(sorted(bounds - {price.INTEGER_SUMS})) or guarantee.accountant
    ends = {"epsilon_min": low, "epsilon_median": middle, "epsilon_max": high}
    return replace(guarantee, accountant=accountant, **ends, others=others)


def _others(
    guarantee: Guarantee, ledger: Ledger, alone: dict[str, float], seen: Callable[[DpEvent], DpEvent]
) -> Others | None:
    """What the client that has spent most has spent in all runs of the ledger, by basic composition of sealed prices."""
    unit = guarantee.unit
    runs, apart = ledger.other_runs(unit), ledger.other_runs(unit, apart=True)
    if not runs and not apart:
        return None
    epsilons, deltas = defaultdict(float), defaultdict(float)
    for client, event, most, delta, epsilon in ledger.sealed_elsewhere(unit):
        composition = price.compose([(seen(event), most)])
        epsilons[client] += epsilon if seen is _itself else price.epsilon(composition, delta=delta)
        deltas[client] += delta
    everybody = {*alone, *epsilons} - {ALL}  # a client that is not here any more has spent what it has spent
    total = max(alone.get(name, 0.0) + epsilons.get(name, 0.0) for name in everybody) + epsilons.get(ALL, 0.0)
    most_delta = max((delta for name, delta in deltas.items() if name != ALL), default=0.0) + deltas.get(ALL, 0.0)
    own = guarantee.delta if any(alone.values()) else 0.0  # a run that has released nothing has taken none of it
    return Others(runs, apart, total, own + most_delta, RULE)


def shown(epsilon: float | None, *, digits: int = 3) -> str:
    """An epsilon for print, rounded up: a promise is never rounded in our favour. None is no bound, as in JSON.

    >>> shown(2.0921), shown(1e-15), shown(float("inf"))
    ('2.093', '0.001', 'inf')
    """
    if epsilon is None or math.isinf(epsilon):
        return "inf"
    return str(Decimal(repr(float(epsilon))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, Context(prec=400)))


def shown_delta(delta: float) -> str:
    """A delta for print, rounded up to six digits; what binary fractions add in the thirteenth is not counted.

    >>> shown_delta(1e-5 * 0.1), shown_delta(1e-5 / 3)
    ('1e-06', '3.33334e-06')
    """
    exact = Context(prec=12).create_decimal(repr(float(delta)))
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).plus(exact)):g}"


def sentence(guarantee: Guarantee | None) -> str:
    """The guarantee in one sentence that a privacy officer can read."""
    if guarantee is None:
        return "No privacy is promised: nothing proves that whoever sees the updates cannot learn about single records."
    g = guarantee
    bound = f"the epsilon spent in this run is at most {shown(g.epsilon_max)} (smallest {shown(g.epsilon_min)}, median"
    said = _meaning(g, whom="every client", bound=f"{bound} {shown(g.epsilon_median)} over the clients)")
    said += f" {with_others(g.others, g.unit)}" if g.others else ""
    return said + "".join(f" {_otherwise(other)}" for other in g.also)


def with_others(others: Others, unit: Unit) -> str:
    """What the runs of one ledger come to together, and which of them are not included."""
    said = ""
    if others.runs:
        said = (
            f"Together with the {_runs(others.runs, 'other ')} of its ledger that promise{'s' * (others.runs == 1)} this per"
            f" {unit}, the epsilon is at most {shown(others.epsilon)} at delta = {shown_delta(others.delta)} ({others.rule})."
        )
    if others.apart:
        word = "client" if unit == "record" else "record"
        verb = "is" if others.apart == 1 else "are"
        said += (
            f"{' ' * bool(said)}Not included {verb} {_runs(others.apart, '')} of its ledger that promised per {word}."
        )
    return said


def _runs(count: int, word: str) -> str:
    return f"{count} {word}run{'s' * (count != 1)}"


def agreed(guarantee: Guarantee, *, client: str, epsilon: float) -> str:
    """What one client is promised before a run begins, for whoever signs for that client."""
    return _meaning(guarantee, whom=client, bound=f"the epsilon of the whole run is at most {shown(epsilon)}")


def _meaning(g: Guarantee, *, whom: str, bound: str) -> str:
    return (
        f"For {whom}, {g.unit}-level differential privacy: to {g.relation} changes the probability of anything that"
        f" {g.adversary} can observe by at most a factor of e^epsilon, except with probability delta = {shown_delta(g.delta)};"
        f" {bound}, computed by {g.accountant} for {g.sampler}, with noise drawn from {g.randomness}, provided that"
        f" {', that '.join(g.assumes)}."
    )


def _otherwise(g: Guarantee) -> str:
    """A second guarantee, against somebody who can see more, in one sentence."""
    return f"Against {g.adversary} there is {seen_by_more(g.epsilon_max, g.delta, g.unit, g.relation, g.sampler)}."


def seen_by_more(epsilon: float | None, delta: float, unit: Unit, relation: str, sampler: str) -> str:
    """What is left of a promise against somebody who can see more: as whole as the first one.

    >>> seen_by_more(27.0, 1e-5, "client", "empty one client", "single reports")
    'an epsilon per client of at most 27.000 at delta = 1e-05, to empty one client (single reports)'
    """
    if epsilon is None or math.isinf(epsilon):
        return f"no epsilon per {unit} that means anything at delta = {shown_delta(delta)}, to {relation} ({sampler})"
    return (
        f"an epsilon per {unit} of at most {shown(epsilon)} at delta = {shown_delta(delta)}, to {relation} ({sampler})"
    )
