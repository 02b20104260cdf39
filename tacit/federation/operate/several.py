"""What several runs of a federation cost each of its sites together, before any of them: a search in a deployment is that.

The server of a deployment sees every run, so that nothing is won by showing the best alone: prices add up, as every site's own
ledger will add them (basic composition of what each run seals).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit import check
from tacit.build.parts import Parts, assemble
from tacit.engine.history import asked_by
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.federation.operate.layout import Federation
from tacit.federation.site.consent import refuse_beyond
from tacit.federation.site.greeting import declaration
from tacit.federation.site.layout import LEDGER
from tacit.federation.site.limits import Limits, read_limits
from tacit.federation.site.own_rows import public_rows, shape
from tacit.federation.site.reading import read_rows
from tacit.federation.site.roster import Roster
from tacit.federation.site.site import Site
from tacit.privacy.ledger import before as ledgers
from tacit.privacy.ledger.filter import ROUNDING, Spent, most_releases, seal
from tacit.types import Budget


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
    parts = assemble(_unsealed(experiment), rows, _population(experiment, known, shape(rows)), elsewhere=True)
    return parts, limits


def _priced(parts: Parts, index: int, own: Limits, federation: Federation, runs: int) -> SitePrice:
    """One site's price, by the plan that everybody computes from the same declarations."""
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
    before = ledgers.read(federation.site(client.id) / LEDGER, unit=own.unit).of(client.id)
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
    """The experiment without encryption, which changes whom its noise is against and not what it costs."""
    return experiment.model_copy(update={"protect": experiment.protect.model_copy(update={"kind": "none"})})
