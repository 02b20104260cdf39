"""`tacit audit` behind the command line."""

import json
from collections.abc import Sequence

import typer
from rich.console import Console

from tacit import check
from tacit.audit import show
from tacit.audit.mechanism import audit, prepared
from tacit.audit.repeat import repeated
from tacit.errors import BadInput
from tacit.experiment import Experiment

REJECTED = 3


def command(
    name: str | None,
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
        raise BadInput("Say what to audit: `tacit audit EXPERIMENT --mechanism` measures noise, clip and rate as run.")
    if repeat is not None:
        check.at_least(1, **{"--repeat": repeat})
    check.at_least(0, **{"--seed": seed})
    parts, console = prepared(Experiment.load(name or "digits", tuple(settings))), Console()
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
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        console.print(shown)
        for line in (*found.notes, found.sentence):
            console.print(line, highlight=False, soft_wrap=True)
    return REJECTED if found.alarming else 0
