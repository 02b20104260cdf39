"""What is left of the sites' budgets, told before a run is started: what runs would cost, and who has nothing left for another.

It is what a site itself refuses when it is asked to agree. A finished run is set aside only for one that can be paid."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import check
from tacit.deploy.operate.layout import Federation
from tacit.deploy.site.agreement import declaration
from tacit.deploy.site.layout import BUDGET, LEDGER, read_settings
from tacit.deploy.site.limits import Demand, Limits, hold, read_limits
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.rows import public_rows, read_rows, shape
from tacit.engine.assemble import Parts, assemble
from tacit.engine.evaluate import evaluate
from tacit.engine.ledgers import asked_by
from tacit.engine.queries import columns_asked, judged_by
from tacit.engine.run_files import read
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.privacy import Unprotected
from tacit.parts import metrics
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger import reader as ledgers
from tacit.privacy.ledger.ledger import ROUNDING, Spent, most_releases, seal
from tacit.types import Budget

SOME = 1000  # rows of a site, where nobody knows how many it has
MOST_NAMED = 5  # sites in one sentence
NO_PRICE = "This federation promises nothing, so that its runs have no price."


def price_of_runs(federation: Federation, *, runs: int) -> list[dict[str, Any]]:
    """What `runs` runs of a federation's experiment cost each site in total. Nothing is written, and no server is asked.

    Guarantee: each price is what the site's ledger seals when a run begins: its planned rounds, the spare ones and its queries.
    Raises: BadInput for what has no price, and a site whose folder is not here; and as the sites themselves refuse the experiment.
    """
    check.at_least(1, runs=runs)
    experiment = Experiment.load(experiment_file(federation))
    if not experiment.privacy.promises:
        raise BadInput(NO_PRICE)
    parts, limits = agreed_parts(federation, experiment)
    return [_priced(parts, index, limits[name], federation, runs) for index, name in enumerate(federation.sites)]


def agreed_parts(federation: Federation, experiment: Experiment) -> tuple[Parts, dict[str, Limits]]:
    """The plan that everybody computes from the same declarations, and every site's limits. Raises: as `price_of_runs`."""
    roster, limits = declared_roster(federation, experiment)
    rows = public_rows(experiment)
    # encryption changes whom its noise is against, and not what it costs
    unsealed = experiment.model_copy(update={"protect": Unprotected()})
    return assemble(unsealed, rows, roster.population(shape(rows)), place="server"), limits


class Unmade:
    """Seals of keys that nobody has made yet."""

    def seal(self, plan: Any, number: int, word: str, clients: Sequence[str], everybody: Sequence[str]) -> None: ...


def refuse_unbuildable(experiment: Experiment, epsilons: Mapping[str, float]) -> None:
    """Refuses before anything is written, or agreed to, what server and sites would refuse when they start: by the parts that they
    would make, where every site has as many rows as there are public ones, or `SOME`. Raises: BadInput, BadData."""
    rows, privacy = public_rows(experiment), experiment.privacy
    size = max(SOME, len(rows.test_y), len(rows.y) // len(epsilons))
    roster = Roster(
        tuple(epsilons), (size,) * len(epsilons), tuple(epsilons.values()), privacy.run_delta, privacy.unit_kept
    )
    parts = assemble(experiment, rows, roster.population(shape(rows)), place="server", seals=Unmade())
    parts.algorithm.init(parts.params)
    metrics.load(parts.metric)
    judged_by(experiment, rows)
    columns_asked(experiment, rows)
    if len(rows.test_y):
        evaluate(parts, parts.params)


def declared_roster(federation: Federation, experiment: Experiment) -> tuple[Roster, dict[str, Limits]]:
    """What the sites would declare, and their limits. Raises: as `price_of_runs`."""
    limits, known = dict[str, Limits](), list[dict[str, Any]]()
    for name in federation.sites:
        folder = federation.site(name)
        if not folder.exists():
            raise BadInput(f"{name}: its folder is not here, and its rows and budget decide what a run costs it.")
        limits[name] = read_limits(folder)
        hold(limits[name], Demand(experiment=experiment))
        rows, *_ = read_rows(folder, experiment, read_settings(folder), local=None)
        known.append(declaration(experiment, limits[name], name=name, rows=rows))
    privacy, epsilons = experiment.privacy, [float(one["epsilon"]) for one in known]
    epsilons = [min(epsilons)] * len(epsilons) if privacy.level == "minimum" else epsilons
    sizes = tuple(int(one["examples"]) for one in known)
    return Roster(federation.sites, sizes, tuple(epsilons), privacy.run_delta, privacy.unit_kept), limits


def _priced(parts: Parts, index: int, own: Limits, federation: Federation, runs: int) -> dict[str, Any]:
    client, privacy = parts.population[index], parts.experiment.privacy
    event = parts.algorithm.cost(client)
    if event is None:
        raise BadInput(NO_PRICE)
    budget = Budget(client.budget.epsilon, privacy.run_delta, own.unit)
    turns = parts.plan.sampler.slots(None, rounds=parts.experiment.train.rounds)
    queries = asked_by(parts)(client.id)
    most = most_releases(
        budget,
        event,
        before=Spent(),
        total_delta=own.delta,
        rounds=turns,
        hint=parts.plan.participations,
        queries=queries,
    )
    if most == 0:
        raise BadInput(
            f"{client.id}: its budget does not pay for one round of one run, or has too little delta for it."
        )
    one = seal(budget, event, most=most, queries=queries).epsilon
    before = ledgers.read_before(federation.site(client.id) / LEDGER, unit=own.unit).of(client.id)
    by_epsilon = (own.epsilon - before.epsilon) * (1 + ROUNDING) / one
    by_delta = (own.delta - before.delta) * (1 + ROUNDING) / budget.delta
    paid = int(max(0, min(runs, by_epsilon, by_delta)))  # of the runs that are asked about
    price = {"epsilon_of_one": one, "epsilon": runs * one, "delta_of_one": budget.delta, "delta": runs * budget.delta}
    allowed = {"budget_epsilon": own.epsilon, "budget_delta": own.delta}
    sealed = {"sealed_epsilon": before.epsilon, "sealed_delta": before.delta}
    return {"site": client.id, "unit": own.unit, "runs": runs, "pays_for": paid} | price | allowed | sealed


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
        sealed = f"epsilon {shown(self.sealed.epsilon)} and delta {shown_delta(self.sealed.delta)}"
        allowed = f"epsilon {self.limits.epsilon:g} and delta {self.limits.delta:g} per {self.limits.unit}"
        return (
            f"{self.site}: its budget does not pay for another run: earlier ones have sealed {sealed} of {allowed}; only a larger"
            f" {' and a larger '.join(self.keys)} in {self.file} allows one, and that is its own people's decision"
        )


def short_sites(federation: Federation, experiment: Experiment | None) -> list[Short]:
    """The sites whose folders are here and whose ledgers leave too little for another run: each would be refused by its own
    site. Where another site's folder cannot be used, only those are named who have no epsilon at all left, or too little delta.
    """
    if experiment is None or not experiment.privacy.promises:
        return []
    begun: dict[str, tuple[Limits, Spent]] = {}
    for name in federation.sites:
        try:
            limits = read_limits(federation.site(name))
            before = ledgers.read_before(federation.site(name) / LEDGER, unit=limits.unit)
        except TacitError:
            continue  # `check` says what is wrong with its files
        if before.runs:
            begun[name] = limits, before.of(name)
    if not begun:
        return []
    try:
        parts = agreed_parts(federation, experiment)[0]
    except TacitError:
        parts = None  # the sites' own lines say what is wrong, or that a folder is elsewhere
    short = []
    for name, (limits, sealed) in begun.items():
        pays = _pays(experiment, parts, federation.sites.index(name), limits, sealed)
        delta = sealed.delta + experiment.privacy.run_delta <= limits.delta * (1 + ROUNDING)
        if keys := ("epsilon",) * (not pays) + ("delta",) * (not delta):
            short.append(Short(name, federation.site(name) / BUDGET, keys, limits, sealed))
    return short


def _pays(experiment: Experiment, parts: Parts | None, index: int, limits: Limits, sealed: Spent) -> bool:
    client = None if parts is None else parts.population[index]
    event = None if parts is None or client is None else parts.algorithm.cost(client)
    if parts is None or client is None or event is None:
        return sealed.epsilon < limits.epsilon
    plan, rounds = parts.plan, experiment.train.rounds
    takes_turns = plan.sampler.scheduled(0) is not None
    turns = plan.sampler.slots(index, rounds=rounds) if takes_turns else 1
    needed = rounds if plan.sampler.charges_all else turns
    left = most_releases(
        Budget(limits.epsilon, experiment.privacy.run_delta, limits.unit),
        event,
        before=sealed,
        total_delta=math.inf,  # it is asked about apart
        rounds=plan.sampler.slots(None, rounds=rounds),
        hint=needed,
        most_epsilon=client.budget.epsilon,
        queries=asked_by(parts)(client.id),
    )
    return left >= needed


def experiment_file(federation: Federation) -> Path:
    return federation.app / "tacit_app" / "experiment.toml"


def experiment_of(federation: Federation) -> Experiment | None:
    """The federation's experiment; None where it cannot be read, of which the app's own line in `check` says why."""
    try:
        return Experiment.load(experiment_file(federation))
    except TacitError:
        return None


def holds_run(federation: Federation) -> bool:
    return (federation.results / "experiment.toml").exists()


def finished(results: Path) -> dict[str, Any] | None:
    """The summary of a run that did all its rounds, else None: one that ran out of budget may go on once a site allows more."""
    summary = read(results).summary if (results / "summary.json").exists() else None
    return summary if summary and summary.get("stopped") == "rounds" else None


def anew(federation: Federation, short: Sequence[Short]) -> str:
    again = "`--force` sets it aside and starts anew (what it spent stays spent)"
    return unpaid(federation, short) if short else again


def unpaid(federation: Federation, short: Sequence[Short]) -> str:
    names = [one.site for one in short[:MOST_NAMED]] + [f"{len(short) - MOST_NAMED} others"] * (len(short) > MOST_NAMED)
    who = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    says = f"`tacit deploy check {federation.folder}` says for each what would allow one"
    return f"another run is refused while {who} cannot pay for it: {says}"
