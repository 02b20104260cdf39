"""The promise of a run in words and numbers: what a privacy officer signs."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from tacit.privacy.accounting import price
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import RULE
from tacit.types import Guarantee, Others, Unit

if TYPE_CHECKING:
    from tacit.data.population import Population
    from tacit.experiment import Experiment
    from tacit.privacy.ledger.ledger import Ledger

UNPROTECTED = "of the clients' own records are test rows, for which nothing is promised"
SEEDED = "a seed (an experiment: whoever knows the seed can remove the noise)"
FROM_OS = "the operating system's entropy"
PUBLIC = ("the test set and all settings, their tuning included, are public",)
FOREIGN = "the code that privacy.kind names, which is not Tacit's, releases nothing but what it prices"
FLOATS = ("floating-point noise stands for real-valued noise",)
SMALL, TINY = (
    Decimal("0.1"),
    Decimal("0.0001"),
)  # below the one an epsilon keeps more places, below the other its exponent
# The changes of the data that an epsilon can be for, each in the only words that Tacit has for it (docs/glossary.md).
ONE_RECORD = "add or remove one record of one client"
ONE_PERSON = "add or remove one person at this client, with all rows"
UNITS = {"record": ONE_RECORD, "person": ONE_PERSON}  # that gradients are clipped by
RECORD_LEVEL = f"record level, {ONE_RECORD}, Poisson-sampled Gaussian"
ONE_CLIENT = "add or remove one client"
EMPTIED = "empty one client (its update is then zero)"
NOTHING_PROMISED = "nothing promised"  # in the place of an epsilon, where there is none
ACCOUNTANT = "the least of PLD, RDP and the closed form for Gaussians"
# A limit is no price: which of the accountant's bounds is the least is known when releases are charged (`spent_by`).
LIMIT = (
    "(the limit set before anything is released, which the ledger keeps to; what is spent can be less, and is named with the one"
    " bound that was taken for it)"
)
WHO = {
    "record": ("a record belongs to one client only", "each client's number of records is public"),
    "person": (
        "a person's rows are at one client only, and all under one id, which no program can check across sites",
        "each client's number of persons is public",
    ),
    "client": (
        "a person's data is with one client only",
        "the number of clients and their numbers of records are public",
    ),
}


@dataclass(frozen=True)
class Words:
    """What a kind of privacy says of itself. `adversary` is who may see
    the releases, `relation` the change that epsilon is for, `sampler` what was released of whom, and `assumes` what must
    hold beside what holds for every run: each the end of a sentence (`_meaning`)."""

    adversary: str
    relation: str
    sampler: str
    accountant: str = ACCOUNTANT
    assumes: tuple[str, ...] = FLOATS


def promise(experiment: "Experiment", words: Words) -> Guarantee:
    """The statement of a run before anything is spent: for whom, against whom, under which change. Guarantee: it names the
    randomness and the assumptions, and says of somebody else's kind that its code is not Tacit's."""
    privacy = experiment.privacy
    return Guarantee(
        unit=privacy.unit_kept,
        adversary=words.adversary,
        relation=words.relation,
        sampler=words.sampler,
        accountant=words.accountant,
        delta=privacy.run_delta,
        epsilon_min=0.0,
        epsilon_median=0.0,
        epsilon_max=0.0,
        randomness=SEEDED if experiment.run.randomness == "seeded" else FROM_OS,
        assumes=(*WHO[privacy.unit_kept], *PUBLIC, *words.assumes, *(FOREIGN,) * privacy.foreign),
    )


def _itself(event: DpEvent) -> DpEvent:
    return event


def spent_by(
    guarantee: Guarantee, ledger: "Ledger", population: "Population", *, seen: Callable[[DpEvent], DpEvent] = _itself
) -> Guarantee:
    """The statement with what this run spent, over all clients, and what it comes to with the other runs of its ledger.
    `seen` is what an event is to whom the statement is about. Guarantee: every epsilon is the price of what is on disk, at
    the statement's delta; with other runs, basic composition of what they sealed. Raises: BadInput for charges without a
    price."""
    unit, spent, bounds = guarantee.unit, np.zeros(len(population)), list[dict[str, str]]()
    compositions, shared = ledger.compositions(unit), ledger.composition(None, unit)
    for index, name in enumerate(population.names):
        if name in guarantee.unpromised:
            spent[index] = np.nan
            continue
        composition = price.compose((seen(event), count) for event, count in compositions.get(name, shared))
        spent[index] = price.epsilon(composition, delta=guarantee.delta)
        if composition:
            bounds.append(price.methods(composition, delta=guarantee.delta))
    alone = {name: one for name, one in zip(population.names, spent.tolist(), strict=True) if not math.isnan(one)}
    low, middle, high = (float(of([*alone.values()])) for of in (np.min, np.median, np.max))
    others = _others(guarantee, ledger, alone, seen)
    accountant = price.named(bounds) or guarantee.accountant
    ends = {"epsilon_min": low, "epsilon_median": middle, "epsilon_max": high}
    return replace(guarantee, accountant=accountant, **ends, others=others)


def _others(
    guarantee: Guarantee, ledger: "Ledger", alone: dict[str, float], seen: Callable[[DpEvent], DpEvent]
) -> Others | None:
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
    return Others(runs, apart, total, own + most_delta, RULE, ledger.other_releases(unit))


def shown(epsilon: float | None, *, digits: int = 3) -> str:
    """An epsilon for print, rounded up: a promise is never rounded in our favour. None is no bound, as in JSON. Below a tenth
    `digits` are counted from the first that is not zero: 0.0001 shown as 0.001 would look spent tenfold.

    >>> shown(2.0921), shown(0.05), shown(0.00012341), shown(1e-15), shown(float("inf"))
    ('2.093', '0.050', '0.000124', '1e-15', 'inf')
    """
    if epsilon is None or math.isinf(epsilon):
        return "inf"
    exact = Decimal(repr(float(epsilon)))
    if not 0 < exact < SMALL:
        return str(exact.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, Context(prec=400)))
    small = Context(prec=digits, rounding=ROUND_CEILING).plus(exact)
    return f"{small.normalize():f}".ljust(digits + 2, "0") if small >= TINY else f"{float(small):g}"


def shown_delta(delta: float) -> str:
    """A delta for print, rounded up to six digits; what binary fractions add in the thirteenth is not counted.

    >>> shown_delta(1e-5 * 0.1), shown_delta(1e-5 / 3)
    ('1e-06', '3.33334e-06')
    """
    exact = Context(prec=12).create_decimal(repr(float(delta)))
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).plus(exact)):g}"


def sentence(guarantee: Guarantee | None) -> str:
    """The guarantee in one sentence that a privacy officer can read; a second and third for other runs and for who sees more.
    Without a guarantee it says that nothing is promised."""
    if guarantee is None:
        return "No privacy is promised: nothing proves that whoever sees the updates cannot learn about single records."
    g = guarantee
    bound = f"the epsilon spent in this run is at most {shown(g.epsilon_max)} (smallest {shown(g.epsilon_min)}, median"
    text = _meaning(g, whom=g.whom, bound=f"{bound} {shown(g.epsilon_median)} over the clients)")
    text += f" {with_others(g.others, g.unit)}" if g.others else ""
    return text + "".join(f" {otherwise(other)}" for other in g.also)


def with_others(others: Others, unit: Unit) -> str:
    """What the runs of one ledger come to in total, and which are not included: those that promised per another unit."""
    this = "this" if unit == "record" else "something"
    seen = "" if unit == "record" else ", for whoever sees of each no more than its own promise allows"
    text = ""
    if others.runs:
        known = _runs(others.runs, "other ", others.releases)
        text = (
            f"Together with the {known} of its ledger that promise{'s' * (others.runs == 1)} {this} per {unit}, the epsilon is at"
            f" most {shown(others.epsilon)} at delta = {shown_delta(others.delta)} ({others.rule}){seen}."
        )
    if others.apart:
        verb = "is" if others.apart == 1 else "are"
        text += f"{' ' * bool(text)}Not included {verb} {_runs(others.apart, '')} of its ledger that promised per another unit."
    return text


def _runs(count: int, word: str, releases: int = 0) -> str:
    kinds = (count - releases, "run"), (releases, "release")
    known = [f"{many} {word}{kind}{'s' * (many != 1)}" for many, kind in kinds if many]
    return " and ".join(known)


def agreed(guarantee: Guarantee, *, client: str, epsilon: float) -> str:
    """What one client is promised before a run begins, for whoever signs for that client. Guarantee, of the ledger that is
    opened with this epsilon: the run costs the client no more, whatever happens in it."""
    return _meaning(guarantee, whom=client, bound=f"the epsilon of the whole run is at most {shown(epsilon)} {LIMIT}")


def _meaning(g: Guarantee, *, whom: str, bound: str) -> str:
    return (
        f"For {whom}, {g.unit}-level differential privacy: to {g.relation} changes the probability of anything that"
        f" {g.adversary} can observe by at most a factor of e^epsilon, except with probability delta = {shown_delta(g.delta)};"
        f" {bound}, computed by {g.accountant}, for {g.sampler}, with noise drawn from {g.randomness}, provided that"
        f" {', that '.join(g.assumes)}."
    )


def otherwise(g: Guarantee) -> str:
    """What is left of a promise against somebody who can see more, in one sentence."""
    return f"Against {g.adversary} there is {seen_by_more(g.epsilon_max, g.delta, g.unit, g.relation, g.sampler)}."


def seen_by_more(epsilon: float | None, delta: float, unit: Unit, relation: str, sampler: str) -> str:
    """What is left of a promise against somebody who can see more: as whole as the first one."""
    if epsilon is None or math.isinf(epsilon):
        return f"no epsilon per {unit} that means anything at delta = {shown_delta(delta)}, to {relation} ({sampler})"
    return (
        f"an epsilon per {unit} of at most {shown(epsilon)} at delta = {shown_delta(delta)}, to {relation} ({sampler})"
    )
