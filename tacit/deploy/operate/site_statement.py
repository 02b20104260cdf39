"""`tacit statement SITE`: what a site was promised in all its runs, and what its own ledger has sealed of its own limit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.check import many
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.consent import read_experiment
from tacit.deploy.site.limits import read_limits
from tacit.engine.run_files import CLIENTS, intact, table
from tacit.errors import BadInput
from tacit.privacy.guarantee import SEEDED
from tacit.privacy.ledger import reader
from tacit.report.statement import NOTHING, UNKNOWN, Stated, sums

NO_RUN = "the site has agreed to no run that promises anything"
EACH = "whoever sees of each run no more than its own promise allows: "
OTHERS = "each other release promises no more than it was charged for"
MOST_RUNS = 5  # whose sentences are repeated: the last ones that were agreed


def of_site(folder: Path) -> Stated:
    """Its statement, which holds for everything that its ledger knows. Raises: BadInput or LedgerError in one sentence."""
    limits, settings, file = read_limits(folder), layout.read_settings(folder), folder / layout.LEDGER
    if not file.is_file():
        raise BadInput(f"{file} is missing, so nobody can say what was spent: put the ledger back.")
    rows = sums(file, limits.budget)
    mine = next(row for row in rows if row["unit"] == limits.unit)
    with intact(folder):
        words = {run: text for run, text in layout.promises(folder) if layout.RUN_NAME.fullmatch(run)}
        found = {run: table(layout.run_folder(folder, run) / layout.PROMISED, CLIENTS["guarantee?"]) for run in words}
        promises = [one for one in found.values() if one is not None and one["unit"] == limits.unit]
        agreed = {run: agreement.read(folder, run) for run in dict.fromkeys([*words, *layout.runs(folder)])}
        seeded = [
            run for run, one in agreed.items() if one and read_experiment(one.experiment).run.randomness == "seeded"
        ]
    charged = {one.run for one in (reader.accounts(file) if file.stat().st_size else []) if not one.purpose}
    kinds = sorted({str(json.loads(entry["event"])["event"]) for entry in reader.entries(file)})
    said = [f"Run {run[:8]}: {text}" for run, text in [*words.items()][-MOST_RUNS:]]
    earlier = len(words) - len(said)
    spent = {"epsilon": dict.fromkeys(("min", "median", "max"), mine["epsilon"]), "delta": mine["delta"]}
    return Stated(
        name=settings["name"],
        what=f"a site with {many(len(agreed), 'agreed run')} and {many(len(mine['releases']), 'other release')}",
        run=f"{limits.unit}s of {settings['name']}",
        promise=_of_all(promises, bool(mine["releases"])) | spent | {"whom": settings["name"]} if promises else None,
        sentence=" ".join([*said, *[f"Of {earlier} earlier runs each has its promise.txt."] * (earlier > 0)])
        or f"{NO_RUN[:1].upper()}{NO_RUN[1:]}.",
        experiment=None,
        against=[NO_RUN] * (not promises)
        + [f"run {run[:8]} draws its noise from {SEEDED}" for run in seeded]
        + [f"of run {run[:8]} {NOTHING}" for run, one in agreed.items() if one and not one.terms.event]
        + [f"what run {run[:8]} promised is not here any more" for run in sorted(charged) if found.get(run) is None],
        clients=[
            {"name": settings["name"], "epsilon": mine["epsilon"], "delta": mine["delta"], "limit": limits.epsilon}
        ],
        covers="all runs and other releases of its ledger, as they were sealed",
        noise=f"released: {', '.join(kinds) or 'nothing yet'}",
        ledger=rows,
        audit=UNKNOWN,
    )


def _of_all(promises: Sequence[dict[str, Any]], others: bool) -> dict[str, Any]:
    """What holds of all runs in total: the words of each, once."""

    def words(key: str) -> list[str]:
        return list(dict.fromkeys(str(one[key]) for one in promises))

    found = {key: "; or ".join(words(key)) for key in ("relation", "sampler", "accountant", "randomness", "adversary")}
    assumes = dict.fromkeys(text for one in promises for text in one["assumes"])
    more = {"adversary": EACH + found["adversary"]} if len(words("adversary")) > 1 else {}
    return promises[-1] | found | more | {"assumes": [*assumes, *[OTHERS] * others]}
