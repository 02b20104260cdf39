"""Which sites have nothing left for another run, told before one is started: a finished run is set aside only for one that can be.

It is what a site itself refuses when it is asked to agree (`pay.refuse_spent`, `pay.refuse_unpaid_turns`, `pay.prepay`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import check
from tacit.deploy.operate.layout import Federation
from tacit.deploy.site.consent import refuse_beyond
from tacit.deploy.site.join import read_rows
from tacit.deploy.site.layout import BUDGET, LEDGER
from tacit.deploy.site.limits import Limits, Roster, read_limits
from tacit.deploy.site.rows import public_rows, shape
from tacit.deploy.site.schedule import declaration
from tacit.deploy.site.site import Site
from tacit.engine.assemble import Parts, assemble
from tacit.engine.ledgers import asked_by
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.privacy import Unprotected
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger import reader as ledgers
from tacit.privacy.ledger.filter import ROUNDING, Spent, most_releases, seal
from tacit.types import Budget

# What several runs of a federation cost each of its sites together, before any of them: a search in a deployment is
# that.


@dataclass(frozen=True)
class SitePrice:
    """What runs of one experiment cost a site: one, and so many together; what its budget allows, and what earlier runs sealed."""

    site: str
    unit: str
    runs: int
    one: float
    delta: float  # of one run
    limit: float
    limit_delta: float
    sealed: Spent

    @property
    def together(self) -> float:
        """The epsilon of all of them, which holds at `runs` times `delta`."""
        return self.runs * self.one

    @property
    def paid(self) -> int:
        """How many such runs what is left of the budget pays for, at most as many as are asked about."""
        by_epsilon = (self.limit - self.sealed.epsilon) * (1 + ROUNDING) / self.one
        by_delta = (self.limit_delta - self.sealed.delta) * (1 + ROUNDING) / self.delta
        return int(max(0, min(self.runs, by_epsilon, by_delta)))

    def record(self) -> dict[str, Any]:
        """As plain values."""
        numbers = {"epsilon_of_one": self.one, "epsilon": self.together, "delta_of_one": self.delta}
        numbers |= {"delta": self.runs * self.delta, "budget_epsilon": self.limit, "budget_delta": self.limit_delta}
        sealed = {"sealed_epsilon": self.sealed.epsilon, "sealed_delta": self.sealed.delta}
        return {"site": self.site, "unit": self.unit, "runs": self.runs, "pays_for": self.paid, **numbers, **sealed}


def price_of_runs(federation: Federation, *, runs: int) -> list[SitePrice]:
    """What `runs` runs of a federation's experiment cost each site. Nothing is written, and no server is asked.

    Guarantee: each price is what the site's ledger seals when a run begins: its planned rounds, the spare ones and its queries.

    Raises: BadInput for a number below 1, an experiment that promises nothing, and a site whose folder is not here; and as the
    sites themselves refuse the experiment.
    """
    check.at_least(1, runs=runs)
    experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    if not experiment.privacy.promises:
        raise BadInput("This federation promises nothing, so that its runs have no price.")
    parts, limits = agreed_parts(federation, experiment)
    return [_priced(parts, index, limits[name], federation, runs) for index, name in enumerate(federation.sites)]


def agreed_parts(federation: Federation, experiment: Experiment) -> tuple[Parts, dict[str, Limits]]:
    """The plan that everybody computes from the same declarations, and every site's limits. Nothing is written.

    Raises: BadInput for a site whose folder is not here; and as the sites themselves refuse the experiment.
    """
    limits = {name: _limits(federation, experiment, name) for name in federation.sites}
    known = {name: _declared(federation, experiment, name, limits[name]) for name in federation.sites}
    rows = public_rows(experiment)
    parts = assemble(_unsealed(experiment), rows, _population(experiment, known, shape(rows)), place="server")
    return parts, limits


def _priced(parts: Parts, index: int, own: Limits, federation: Federation, runs: int) -> SitePrice:
    client, privacy = parts.population[index], parts.experiment.privacy
    event, asked = parts.algorithm.cost(client), asked_by(parts)(client.id)
    if event is None:
        raise BadInput("This federation promises nothing, so that its runs have no price.")
    budget = Budget(client.budget.epsilon, privacy.run_delta, own.unit)
    turns = parts.plan.turns(None, rounds=parts.experiment.train.rounds)
    how = {"accountant": privacy.accountant, "asked": asked}
    most = most_releases(
        budget, event, before=Spent(), total_delta=own.delta, rounds=turns, hint=parts.plan.participations, **how
    )
    if most == 0:
        raise BadInput(
            f"{client.id}: its budget does not pay for one round of one run, or has too little delta for it."
        )
    one = seal(budget, event, most=most, **how).epsilon
    before = ledgers.read_before(federation.site(client.id) / LEDGER, unit=own.unit).of(client.id)
    return SitePrice(client.id, own.unit, runs, one, budget.delta, own.epsilon, own.delta, before)


def _limits(federation: Federation, experiment: Experiment, name: str) -> Limits:
    folder = federation.site(name)
    if not folder.exists():
        raise BadInput(f"{name}: its folder is not here, and its rows and budget decide what a run costs it.")
    limits = read_limits(folder)
    refuse_beyond(limits, experiment)
    return limits


def _declared(federation: Federation, experiment: Experiment, name: str, limits: Limits) -> Mapping[str, Any]:
    folder = federation.site(name)
    rows = read_rows(folder, experiment, Site(folder).settings, local=None)
    return declaration(experiment, limits, name=name, rows=rows)


def _population(experiment: Experiment, known: Mapping[str, Mapping[str, Any]], row: tuple[int, ...]) -> Any:
    epsilons = [float(one["epsilon"]) for one in known.values()]
    epsilons = [min(epsilons)] * len(epsilons) if experiment.privacy.level == "minimum" else epsilons
    sizes = tuple(int(one["examples"]) for one in known.values())
    privacy = experiment.privacy
    return Roster(tuple(known), sizes, tuple(epsilons), privacy.run_delta, privacy.unit_kept).population(row)


def _unsealed(experiment: Experiment) -> Experiment:
    return experiment.model_copy(update={"protect": Unprotected()})


@dataclass(frozen=True)
class Short:
    """A site whose earlier runs have left too little for another one, and the keys of its budget file that would have to grow."""

    site: str
    file: Path
    keys: tuple[str, ...]
    limits: Limits
    sealed: Spent

    @property
    def text(self) -> str:
        """For whoever is about to start a run."""
        sealed = f"epsilon {shown(self.sealed.epsilon)} and delta {shown_delta(self.sealed.delta)}"
        allowed = f"epsilon {self.limits.epsilon:g} and delta {self.limits.delta:g} per {self.limits.unit}"
        return (
            f"{self.site}: its budget does not pay for another run: earlier ones have sealed {sealed} of {allowed}; only a larger"
            f" {' and a larger '.join(self.keys)} in {self.file} allows one, and that is its own people's decision"
        )


def short_sites(federation: Federation, experiment: Experiment | None) -> list[Short]:
    """The sites whose folders are here and whose ledgers leave too little for another run of the experiment. Nothing is written.

    Guarantee: whoever is named would be refused by its own site. Where other sites' folders are elsewhere, or cannot be used,
    the price of a round is not known, and only those are named who have no epsilon at all left, or too little delta for a run.
    """
    if experiment is None or not experiment.privacy.promises:
        return []
    known = {name: found for name in federation.sites if (found := _sealed(federation, name)) is not None}
    if not known:
        return []
    parts = _parts(federation, experiment)
    found = [_short(federation, experiment, parts, name, *known[name]) for name in known]
    return [one for one in found if one is not None]


def _sealed(federation: Federation, name: str) -> tuple[Limits, Spent] | None:
    folder = federation.site(name)
    try:
        limits = read_limits(folder)
        before = ledgers.read_before(folder / LEDGER, unit=limits.unit)
    except TacitError:
        return None
    return (limits, before.of(name)) if before.runs else None


def _parts(federation: Federation, experiment: Experiment) -> Parts | None:
    try:
        return agreed_parts(federation, experiment)[0]
    except TacitError:
        return None  # the sites' own lines say what is wrong, or that a folder is elsewhere


def _short(
    federation: Federation, experiment: Experiment, parts: Parts | None, name: str, limits: Limits, sealed: Spent
) -> Short | None:
    lacks: Mapping[str, bool] = {
        "epsilon": not _pays(experiment, parts, federation.sites.index(name), limits, sealed),
        "delta": sealed.delta + experiment.privacy.run_delta > limits.delta * (1 + ROUNDING),
    }
    keys = tuple(key for key, short in lacks.items() if short)
    return Short(name, federation.site(name) / BUDGET, keys, limits, sealed) if keys else None


def _pays(experiment: Experiment, parts: Parts | None, index: int, limits: Limits, sealed: Spent) -> bool:
    client = None if parts is None else parts.population[index]
    event = None if parts is None or client is None else parts.algorithm.cost(client)
    if parts is None or client is None or event is None:
        return sealed.epsilon < limits.epsilon
    plan, rounds = parts.plan, experiment.train.rounds
    needed = rounds if plan.together else plan.turns(index, rounds=rounds) if plan.scheduled(0) is not None else 1
    left = most_releases(
        Budget(limits.epsilon, experiment.privacy.run_delta, limits.unit),
        event,
        before=sealed,
        total_delta=math.inf,  # it is asked about apart
        rounds=plan.turns(None, rounds=rounds),
        accountant=experiment.privacy.accountant,
        hint=needed,
        most_epsilon=client.budget.epsilon,
        asked=asked_by(parts)(client.id),
    )
    return left >= needed
