"""`tacit plan EXPERIMENT --gain`: prints what joining may be worth, what that rests on, and draws it."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from tacit.errors import BadInput
from tacit.experiment import Experiment


def asked(experiment: str | None, *, gain: bool, **about: Any) -> bool:
    """Whether the gain of joining is asked for. Raises BadInput for options that belong to it alone, and without an experiment."""
    given = [f"--{name}" for name, value in about.items() if value is not None]
    if given and not gain:
        raise BadInput(f"{', '.join(given)} belongs to --gain: say that too, or leave it out.")
    if gain and experiment is None:
        raise BadInput("--gain needs an experiment: `tacit plan digits --gain`.")
    return gain


def command(experiment: Experiment, *, as_json: bool, picture: Path | None, **about: Any) -> None:
    """Prints tables, the epsilon from which on it pays, and the assumptions; or all of it as JSON."""
    from tacit.report import gain as gains

    if picture is not None:
        gains.refuse_picture(picture)
    found = gains.of_experiment(experiment, **about)
    if picture is not None:
        gains.draw(picture, found)
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
        return
    console = Console()
    for table in gains.tables(found):
        console.print(table)
    lines = [*gains.pays(found), *(f"Assumes: {line}." for line in gains.assumptions(found))]
    for line in [*lines, *([f"Picture: {picture}"] if picture else [])]:
        console.print(Text(line), soft_wrap=True)
