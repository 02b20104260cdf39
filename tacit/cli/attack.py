"""`tacit attack` behind the command line: from words to an attack, and its finding as a table."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit import attacks, plugin
from tacit.attacks import Estimate, Finding
from tacit.cli.early import simulated, wanted
from tacit.errors import BadInput
from tacit.report.page import write_page
from tacit.simulation.run import new_folder
from tacit.stopping import exit_code

PAGE = "report.html"


def command(
    name: str,
    source: str | None,
    settings: Sequence[str],
    *,
    chosen: Sequence[str],
    models: int | None,
    out: Path | None,
    force: bool,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Attacks an experiment and prints what was found. Returns 0, or 130 where it was stopped. Raises BadInput."""
    refuse_models(name, models)
    options = wanted(chosen) | ({} if models is None else {"models": models})
    attacks.load(name, **options)  # a wrong value is told before anything is read
    experiment = simulated(source or "digits", settings)
    folder = out or new_folder(f"{experiment.name}-attack")
    console = Console(stderr=as_json, quiet=as_json)
    try:
        with console.status("") as status:

            def tell(words: str) -> None:
                status.update(words)
                if not console.is_terminal:
                    console.print(words, highlight=False, soft_wrap=True)

            found = attacks.attack(name, experiment, out=folder, options=options, force=force, jobs=jobs, tell=tell)
    except KeyboardInterrupt as error:
        print(f"Stopped. What is finished is kept: repeat the command with --out {folder}.", file=sys.stderr)
        return exit_code(error)
    write_page([folder], folder / PAGE)
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        show(found, console)
        files = ("", PAGE, *found.files)
        console.print(Text(f"Files: {folder} (attack-{name.replace(':', '-')}.json{', '.join(files)})"))
    return 0


def refuse_models(name: str, models: int | None) -> None:
    """Refuses --models for an attack that trains none. Raises BadInput."""
    factory = attacks.find(name)
    if models is not None and "models" not in plugin.options(factory) and not plugin.takes_any(factory):
        raise BadInput(
            f"--models is for attacks that train models of their own, and {name} looks at a single run: leave it out."
        )


def show(found: Finding, console: Console) -> None:
    """Prints a finding: a row for each number, and what is to be known about them."""
    table = Table(title=f"{found.attack} on {found.experiment}: {found.attacked}", title_justify="left", box=None)
    table.add_column("of")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for estimate in found.estimates:
        table.add_row(estimate.of, estimate.name, f"{estimate.value:.3g}", interval(estimate))
    console.print(table)
    for line in (*found.notes, f"These numbers are {found.badge}: they were measured on real members of a simulation."):
        console.print(line, highlight=False, soft_wrap=True)


def interval(estimate: Estimate) -> str:
    """The interval of an estimate in words; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.3g} to {estimate.high:.3g}"
