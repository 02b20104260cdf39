"""`tacit audit SITE`: what became of the canaries that a site planted in what it released, held against its own ledger."""

import re
from pathlib import Path

from tacit.audit import power
from tacit.audit.levels import share
from tacit.audit.of_run import LEVEL, RunAudit, Seen, against_whom, charges, judged
from tacit.audit.priced import charged_for
from tacit.canaries.algorithms import everywhere
from tacit.canaries.sight import FOLDER, read_sight
from tacit.errors import BadInput
from tacit.federation.site import agreement, layout
from tacit.federation.site.join import read_experiment, read_settings
from tacit.federation.site.own_canaries import own_canaries
from tacit.privacy.local.words import promised

ROUND = re.compile(r"round-([0-9]{5,9})\.npz")


USUAL = 500  # canaries


def _first(site: Path) -> str:
    """How a site can be audited that never planted canaries, by the last run it agreed to."""
    how, names = "Set canaries = {} in its site.toml before a run", layout.runs(site)
    newest = max(names, key=lambda name: (layout.run_folder(site, name) / layout.AGREEMENT).stat().st_mtime, default="")
    last = agreement.read(site, newest) if newest else None
    if last is None:
        return power.first(USUAL, {}, usual=USUAL, how=how, level=LEVEL)
    privacy, terms = read_experiment(last.experiment).privacy, last.terms
    if not terms.event:  # it promised nothing
        return power.first(USUAL, {}, usual=USUAL, how=how, level=LEVEL)
    most, level = terms.parameters, LEVEL * share([(str(site), len(names) + 1)])  # that of the next run
    charged = charged_for(terms.event, terms.rounds, delta=privacy.run_delta, accountant=privacy.accountant)
    return power.first(most, {charged: most}, usual=USUAL, how=how, level=level)


def audit_site(site: Path, *, run: str | None = None, level: float = LEVEL) -> RunAudit:
    """Audits the last run in which a site planted canaries, or the one that is named.

    Guarantee: it reads the site's own files and nothing else, and changes none but the count of looks.

    Raises: BadInput where there is no such run, where its coins are not those committed to, or for files that are damaged.
    """
    known = [name for name in layout.runs(site) if (layout.run_folder(site, name) / layout.CANARIES).exists()]
    if not known or (run is not None and run not in known):
        raise BadInput(f"{site} has no run with canaries. {_first(site)}")
    run = run or max(known, key=lambda name: (layout.run_folder(site, name) / layout.CANARIES).stat().st_mtime)
    folder, agreed = layout.run_folder(site, run), agreement.read(site, run)
    if agreed is None:
        raise BadInput(f"The site has no agreement on run {run}.")
    canaries, name = own_canaries(site, run), str(read_settings(site)["name"])
    experiment = read_experiment(agreed.experiment)
    privacy = experiment.privacy
    paid, place = charges(site / layout.LEDGER, run, delta=privacy.run_delta, accountant=privacy.accountant)
    named = (ROUND.fullmatch(file.name) for file in (folder / FOLDER).glob("round-*.npz"))
    rounds = sorted(r for one in named if one and (r := int(one[1])) < agreed.terms.rounds)
    seen = read_sight(folder, rounds, everywhere(canaries)[1])
    about = (f"{experiment.name} at {name}", experiment.privacy.unit_kept)
    said = promised(privacy.unit_kept)
    against = against_whom(said.relation, said.adversary)
    names = dict.fromkeys(paid, canaries.only or 0)
    own = Seen(folder, *about, canaries, names, paid, seen, str(site.resolve()), place, against)
    return judged([own], level=level)
