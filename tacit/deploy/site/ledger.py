"""A site's own ledger, opened for one run, and held against the answers that lie beside it.

A ledger that was lost, replaced or restored from an old copy would sell the same budget twice. Four things lie beside it that it
must not contradict: its mark (`tacit.privacy.ledger.reader`), its population, the site's name, and every answer that the site
still keeps."""

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tacit.data.population import Population
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.agreement import Agreement
from tacit.deploy.site.limits import Limits
from tacit.deploy.site.rows import OWN_FILES
from tacit.engine.assemble import Parts
from tacit.engine.ledgers import asked_by, population_id
from tacit.errors import LedgerError
from tacit.experiment import Experiment
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.ledger import Ledger

# Copies of a site: two folders that both answer are two ledgers on one budget, of which neither can know the other's
# charges.

KEY, SITES = "node.pub", "sites"
SAME_PLACE, FEDERATIONS = f"*/{KEY}", f"*/{SITES}/*/{KEY}"


def refuse_charged_twin(folder: Path, lacks: Callable[[Path], bool]) -> None:
    """Refuses a site of which a copy was charged for what its own ledger does not know; `lacks` says so of the copy's mark.

    Raises: LedgerError, naming the copy.
    """
    for twin in twins(folder):
        if lacks(twin / reader.NAME):
            raise LedgerError(
                f"{twin} has this site's node key, so one of the two is a copy, and it was charged for what this ledger does not"
                " know: both together would spend one budget twice. Go on with that one, or delete it if it never answered"
                " anybody. Nothing was released."
            )


def twins(folder: Path) -> Iterator[Path]:
    """The folders of the same owner, beside a site or its federation, that have its node key; those in no particular order."""
    mine, here = _read(folder / KEY), folder.resolve()
    if not mine:
        return
    places = [here.parent, here.parents[2]] if here.parent.name == SITES and len(here.parents) > 2 else [here.parent]
    found = {path.parent.resolve() for place in places for way in (SAME_PLACE, FEDERATIONS) for path in place.glob(way)}
    for other in sorted(found - {here}):
        # whoever else has a folder there knows the public half of a key, and may not keep the site from answering
        if _read(other / KEY) == mine and other.stat().st_uid == here.stat().st_uid == os.getuid():
            yield other


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def own_ledger(
    folder: Path, parts: Parts, limits: Limits, agreed: Agreement, settings: dict[str, Any]
) -> Ledger | None:
    """The site's ledger for one run; None where the experiment promises nothing and so charges nothing.

    Guarantee: over all its runs it pays at most the delta of the budget file, and for this one at most the epsilon of its terms,
    be it less than the site's people allow. Its population is named by the data file as `site.toml` has it, not by its absolute
    path, so that a folder can move with its ledger.

    Raises: LedgerError for a ledger that is gone, older than its mark, of another population, charged under another name, or
    that knows no charge for an answer beside it, and where a copy of the site was charged.
    """
    if not parts.plan.priced:
        return None
    experiment = parts.experiment
    ledger = Ledger(
        folder / layout.LEDGER,
        population=population_of(experiment, settings, parts.population, is_deployed=parts.is_deployed),
        run=agreed.run,
        delta=limits.delta,
        rounds=parts.plan.sampler.turns(None, rounds=experiment.train.rounds),
        most_epsilon=agreed.terms.epsilon,
        accountant=experiment.privacy.accountant,
        asked=asked_by(parts),
        marks=(folder / reader.NAME,),
        conditions=[parts.start.under],
        refuse_copies=partial(refuse_twin, folder),
    )
    refuse_contradicted(folder, ledger, settings["name"])
    return ledger


def refuse_contradicted(folder: Path, ledger: Ledger, name: str) -> None:
    """Refuses a site's ledger that its name, the answers beside it or a copy of the site contradict. Raises LedgerError."""
    refuse_renamed(ledger.path, ledger.charged(), name)
    refuse_forgotten(folder, ledger)
    ledger.refuse_copies()


def refuse_twin(folder: Path, ledger: Ledger) -> None:
    """Refuses a ledger that does not know what a copy of the site beside it was charged for. Raises LedgerError."""
    refuse_charged_twin(folder, lambda mark: reader.lacking(ledger, mark) is not None)


def population_of(
    experiment: Experiment, settings: dict[str, Any], population: Population, *, is_deployed: bool
) -> str:
    """What the site's ledger belongs to: its own data file, or its share of data that is dealt out."""
    if experiment.data.name in OWN_FILES:
        return f"{experiment.data.name}:{settings.get('data')}"
    return population_id(experiment, population, is_deployed=is_deployed)


def refuse_renamed(ledger: Path, charged: Collection[str], name: str) -> None:
    """Refuses a ledger that was charged for somebody of another name: under a new one the same rows would have their budget again.

    Raises: LedgerError, naming both.
    """
    others = sorted(set(charged) - {name})
    if others:
        raise LedgerError(
            f"{ledger} was charged for {', '.join(others)}, and site.toml calls the site {name}: the same rows would have their"
            " budget once more. Put the name back; other rows have a folder and a ledger of their own. Nothing was released."
        )


def refuse_forgotten(folder: Path, ledger: Ledger) -> None:
    """Refuses a ledger beside answers of any run that it knows no charge for: another one, or one that went back.

    A question without an answer is nothing to know: it may have been refused for want of budget.

    Raises: LedgerError, naming run and round; BadInput where that run's agreement is damaged.
    """
    for run, what in unpaid(folder, lambda run, what: ledger.knows(what, run=run)):
        raise LedgerError(
            f"{folder} holds the answer to {in_words(what)} of run {run}, and {ledger.path} knows no charge for it: restore the"
            f" newest copy of the ledger and of {reader.NAME}; nothing was released."
        )


def in_words(what: int | str) -> str:
    """What an answer was to: a round, or a query."""
    return f"the query {what}" if isinstance(what, str) else f"round {what + 1}"


def unpaid(folder: Path, charged: Callable[[str, int | str], bool]) -> Iterator[tuple[str, int | str]]:
    """(run, round), or (run, query), of every answer on a site's disk for which `charged` is False and should not be.

    A run that promised nothing charges nothing, by its agreement; an answer whose agreement is gone counts as one that was to be
    paid for. Raises: BadInput for an agreement that is damaged.
    """
    for run, what in (*layout.answers(folder), *layout.counted(folder)):
        if not charged(run, what):
            known = agreement.read(folder, run)
            if known is None or known.terms.event:
                yield run, what
