"""Paying for a search: once, all of it, before anything is run."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

from tacit.build.parts import Parts
from tacit.build.release import package
from tacit.digest import mark
from tacit.engine.folder import Folder
from tacit.engine.neighbours import SEARCH
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment import Experiment
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger.before import NOTHING, Before, noted, read
from tacit.privacy.ledger.filter import ROUNDING, Spent, most_releases
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.tables import ALL
from tacit.tuning.price import Priced, hidden, unsaid


def before_of(path: Path, values: Mapping[str, Any], *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when the search began. Nothing is written."""
    privacy = values.get("privacy", {})
    if not privacy.get("ledger"):
        return NOTHING
    unit = Experiment(**values).privacy.unit_kept
    return noted(path / SEARCH) if resume else read(Path(privacy["ledger"]), unit=unit)


def refuse_dear(priced: Priced, parts: Parts) -> None:
    """Raises BudgetExhausted for a search that a client cannot pay for, with what would be enough. Nothing is written."""
    privacy, population = parts.experiment.privacy, parts.population
    limits = {"total_delta": privacy.delta, "rounds": 1, "accountant": privacy.accountant, "hint": 1, "spare": False}
    together = ALL in priced.events
    for index, name in enumerate(population.names[:1] if together else population.names):
        who, budget = ALL if together else name, population[index].budget
        before = parts.before.of(who)
        if most_releases(budget, priced.events[who], before=before, asked=priced.asked.get(who, {}), **limits) < 1:
            short_of_delta = before.delta + budget.delta > privacy.delta * (1 + ROUNDING)
            said = _too_little_delta(parts, name, before) if short_of_delta else _too_dear(priced, parts, index, before)
            raise BudgetExhausted(f"{said} Nothing was written.")


def _too_little_delta(parts: Parts, name: str, before: Spent) -> str:
    privacy, left = parts.experiment.privacy, max(0.0, parts.experiment.privacy.delta - before.delta)
    return (
        f"The search takes delta {privacy.run_delta:g}, and other runs of the ledger have left {left:g} of the {privacy.delta:g} of"
        f" {name}: lower privacy.delta_share."
    )


def _too_dear(priced: Priced, parts: Parts, index: int, before: Spent) -> str:
    name, has = parts.population.names[index], parts.population[index].budget.epsilon
    left, cost = max(0.0, has - before.epsilon), priced.epsilon
    finite = math.isfinite(cost)
    costs = f"costs epsilon {shown(cost)}" if finite else "has no finite epsilon with this noise"
    raised = f"an epsilon of {shown(before.epsilon + cost)} would be enough, or " if finite else ""
    noise = _enough_noise(priced, parts)
    more = f"{noise} would be enough" if noise else "raise the noise"
    return (
        f"The search {costs} at delta {priced.delta:g}, and {name} has {left:.4g} left: {raised}{more}, or leave the noise out and"
        " it follows from epsilon; or ask for fewer --runs."
    )


def _enough_noise(priced: Priced, parts: Parts) -> str:
    """The noise with which the best alone can be paid for, as a setting; empty where none can, or where all runs are seen."""
    if not priced.hidden:
        return ""
    try:
        sized = hidden([unsaid(run) for run in priced.runs], parts.population, priced.repetitions)
    except BadInput:
        return ""
    most = max(run.experiment.privacy.noise_multiplier or 0.0 for run in sized.runs)
    return (
        f"privacy.noise_multiplier = {Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(most)).normalize():f}"
    )


def pay(ledger: Ledger, folder: Folder, parts: Parts, priced: Priced, key: str) -> None:
    """Charges the whole search, the answers that score its runs included, once: the same search that goes on is not charged again,
    and no other is let in under its name.

    Raises: LedgerError or BudgetExhausted; then nothing may be run.
    """
    texts = [candidate.experiment.toml() for candidate in priced.runs]
    attempt = mark("search", key, parts.population.digest(), package(), *texts)
    ledger.open_round(0, attempt)
    again = ledger.knows(0)
    if ALL in priced.events:
        paid = ledger.admit_everybody(parts.population[0].budget, priced.events[ALL])
    else:
        everybody = [parts.population[index] for index in range(len(parts.population))]
        paid = len(ledger.admit(everybody, lambda client: priced.events[client.id])) == len(everybody)
        for query in sorted({name for asked in priced.asked.values() for name in asked}):
            answering = (
                ledger.answer(query, attempt, everybody, lambda client: priced.events[client.id]) if paid else []
            )
            paid = len(answering) == len(everybody)
    if not paid and again:
        raise LedgerError(
            f"The search in {folder.path} was paid for with other rows, settings or code: put them back, or start another one."
        )
    if not paid:
        raise BudgetExhausted("Other runs of the ledger have taken what this search needs; nothing was run.")
