"""`tacit attack` behind the command line: from words to an attack, and its finding as a table."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit import attacks
from tacit.attacks import Estimate, Finding
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.toml import parse_value
from tacit.report.page import write_page
from tacit.simulation.run import new_folder
from tacit.stopping import exit_code

PAGE = "report.html"
DEPLOYED = ("federation.toml", "site.toml")


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
    options = wanted(chosen) | ({} if models is None else {"models": models})
    attacks.load(name, **options)  # a wrong word is told before anything is read
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


def simulated(source: str, settings: Sequence[str]) -> Experiment:
    """The experiment of a name, a TOML file or a run's folder. Raises BadInput for one that belongs to a deployment."""
    path = Path(source)
    if path.exists():
        for place in (path, *path.resolve().parents):
            for file in DEPLOYED:
                if (place / file).is_file():
                    raise BadInput(
                        f"{source} belongs to a deployment ({place / file}): attacks look at clients' rows, which only a simulation"
                        " has; name a simulation's experiment."
                    )
        if (path / "experiment.toml").is_file():
            path = path / "experiment.toml"
            source = str(path)
    return Experiment.load(source, tuple(settings))


def wanted(words: Sequence[str]) -> dict[str, Any]:
    """The options of an attack, from KEY=VALUE. Raises BadInput.

    >>> wanted(["models=8", "classes=[0, 1]"])
    {'models': 8, 'classes': [0, 1]}
    """
    options = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key.isidentifier() or not text:
            raise BadInput(f"Expected an option of the attack as --with key=value, got {word!r}.")
        options[key] = parse_value(text)
    return options


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
