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
    given = [f"--{name.replace('_', '-')}" for name, value in about.items() if value is not None]
    if given and not gain:
        raise BadInput(f"{', '.join(given)} belongs to --gain: say that too, or leave it out.")
    if gain and experiment is None:
        raise BadInput("--gain needs an experiment: `tacit plan digits --gain`.")
    return gain


def command(
    experiment: Experiment, *, as_json: bool, picture: Path | None, tau_from: Path | None = None, **about: Any
) -> None:
    """Prints tables, the epsilon from which on it pays, and the assumptions; or all of it as JSON."""
    from tacit.report import gain as gains

    if picture is not None:
        gains.refuse_picture(picture)
    if tau_from is not None:
        from tacit.report.differ import tau_of

        if about.get("tau") is not None:
            raise BadInput("--tau says how much clients differ, and --tau-from takes it from a run: use one of them.")
        about["tau"] = tau_of(tau_from)
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
