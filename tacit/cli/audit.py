"""`tacit audit` behind the command line."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from tacit import check
from tacit.audit import show
from tacit.audit.found import RunAudit
from tacit.audit.mechanism import audit, prepared
from tacit.audit.of_run import audit_run
from tacit.audit.of_site import audit_site
from tacit.audit.repeat import Repeated, repeated
from tacit.audit.verdict import Audit
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import shipped
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
    if not mechanism:
        return _run(names, settings, plant=plant, repeat=repeat, trainers=trainers, as_json=as_json)
    if len(names) > 1:
        raise BadInput("The mechanism of one experiment is audited at a time: name one.")
    if repeat is not None:
        check.at_least(1, **{"--repeat": repeat})
    check.at_least(0, **{"--seed": seed})
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
        shown = show.audit(found)
    return _told(found, shown, as_json=as_json)


def _run(names: Sequence[str], settings: Sequence[str], *, as_json: bool, **others: object) -> int:
    """Audits the canaries of a run, of several together, or of a site."""
    folders = [Path(name) for name in names]
    for folder in folders:
        if str(folder) in shipped() or folder.is_file():
            raise BadInput(f"{folder} is an experiment: add --mechanism, or name the folder of a run with canaries.")
        if not folder.is_dir():
            raise BadInput(f"There is no folder {folder}: name that of a run or of a site with canaries.")
    if not folders:
        raise BadInput(
            "Say what to audit: `tacit audit FOLDER` the canaries of a run or a site, or `tacit audit EXPERIMENT --mechanism`"
            " noise, clip and rate as they would run."
        )
    for option, value in {"set": settings, **others}.items():
        if value:
            flag = "trainer" if option == "trainers" else option
            raise BadInput(
                f"A run is audited as it was: leave out --{flag}, or add --mechanism to audit an experiment."
            )
    sites = [folder for folder in folders if (folder / "site.toml").exists()]
    if sites and len(folders) > 1:
        raise BadInput("A site audits itself, and by itself: name one.")
    found = audit_site(*sites) if sites else audit_run(*folders)
    for folder in folders if not sites and len(folders) == 1 else ():
        write_page([folder], folder / "report.html")
    return _told(found, show.of_run(found), as_json=as_json)


def _told(found: Audit | Repeated | RunAudit, shown: Table, *, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        console = Console()
        console.print(shown)
        for line in (*found.notes, found.sentence):
            console.print(line, highlight=False, soft_wrap=True)
    return REJECTED if found.alarming else 0
