"""`tacit audit` behind the command line."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console, Group
from rich.table import Table

from tacit.audit import show
from tacit.audit.found import RunAudit
from tacit.audit.mechanism import audit, prepared
from tacit.audit.of_run import audit_run
from tacit.audit.of_site import audit_site
from tacit.audit.repeat import Repeated, repeated
from tacit.audit.verdict import Audit
from tacit.cli import early
from tacit.experiment import Experiment
from tacit.report.page import write_page

REJECTED = 3


def command(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    mechanism: bool,
    plant: str | None,
    repeat: int | None,
    trainers: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Audits an experiment and prints what was found. Returns 3 where a claim is rejected, else 0. Raises BadInput."""
    early.audit(names, settings, mechanism=mechanism, plant=plant, repeat=repeat, trainers=trainers, seed=seed)
    if not mechanism:
        return _run([Path(name) for name in names], as_json=as_json)
    parts, console = prepared(Experiment.load(*(names or ["digits"]), settings=tuple(settings))), Console()
    if repeat is not None:
        with console.status("") as status:
            found = repeated(
                parts,
                seeds=range(seed, seed + repeat),
                plant=plant,
                trainers=trainers,
                observe=lambda done: status.update(f"{done} of {repeat}"),
            )
        shown = show.repeated(found)
    else:
        found = audit(parts, seed=seed, plant=plant, trainers=trainers)
        shown = show.fitting(found, width=console.width)
    return _told(found, shown, as_json=as_json)


def _run(folders: Sequence[Path], *, as_json: bool) -> int:
    """Audits the canaries of a run, of several together, or of a site."""
    sites = [folder for folder in folders if (folder / "site.toml").exists()]
    found = audit_site(*sites) if sites else audit_run(*folders)
    for folder in folders if not sites and len(folders) == 1 else ():
        write_page([folder], folder / "report.html")
    return _told(found, show.of_run(found), as_json=as_json)


def _told(found: Audit | Repeated | RunAudit, shown: Table | Group, *, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        console = Console()
        console.print(shown)
        for line in (*found.notes, found.sentence):
            console.print(line, highlight=False, soft_wrap=True)
    return REJECTED if found.alarming else 0
