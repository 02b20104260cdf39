"""Which sites have nothing left for another run, told before one is started: a finished run is set aside only for one that can be.

It is what a site itself refuses when it is asked to agree (`pay.refuse_spent`, `pay.refuse_unpaid_turns`, `pay.prepay`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.build.parts import Parts
from tacit.engine.history import asked_by
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.federation.operate.layout import Federation
from tacit.federation.operate.several import agreed_parts
from tacit.federation.site.layout import BUDGET, LEDGER
from tacit.federation.site.limits import Limits, read_limits
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger import before as ledgers
from tacit.privacy.ledger.filter import ROUNDING, Spent, most_releases
from tacit.types import Budget


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
    """A site's limits and what its runs have sealed; None where there was none, or its files cannot be read: `check` says why."""
    folder = federation.site(name)
    try:
        limits = read_limits(folder)
        before = ledgers.read(folder / LEDGER, unit=limits.unit)
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
    """Whether the epsilon that is left pays for as much as the site must be able to pay for when it agrees."""
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
