"""The commands of `tacit ledger`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tacit.cli.program import Program

app = Program(help="Who was charged what, when and for what.", no_args_is_help=True)

Place = Annotated[
    Path, typer.Argument(metavar="PATH", help="A ledger, or the folder of a run or a site.", show_default=False)
]
WIDE = 130
Delta = Annotated[float | None, typer.Option(help="The delta at which epsilon is stated, where nothing else says it.")]


@app.command("show")
def show_command(path: Place, delta: Delta = None) -> None:
    """Print what every client was charged, and the last charges one by one."""
    from tacit.cli import ledgers
    from tacit.federation.site.layout import promises

    console = Console()
    console.width = max(console.width, WIDE)  # rather a wrapped line than half a number
    console.print(ledgers.by_client(path, delta=delta))
    console.print(ledgers.by_run(path))
    console.print(ledgers.by_charge(path))
    for run, promise in promises(path):
        console.print(Text(f"Promised in run {run[:8]}: {promise}"))


@app.command("export")
def export_command(
    path: Place,
    to: Annotated[Path | None, typer.Option("--to", help="A .csv or .json file; otherwise CSV is printed.")] = None,
) -> None:
    """Write every charge as CSV or JSON."""
    from tacit.cli import ledgers
    from tacit.errors import BadInput

    if to is None:
        typer.echo(ledgers.as_csv(path), nl=False)
    elif to.suffix not in (".csv", ".json"):
        raise BadInput(f"Expected --to to end in .csv or .json, got {to}.")
    elif to.exists():
        raise BadInput(f"{to} exists already: choose another name.")
    else:
        to.write_text(ledgers.as_json(path) if to.suffix == ".json" else ledgers.as_csv(path), "utf-8")
        typer.echo(f"Written: {to} ({_charges(ledgers.summary(path))}).")


@app.command("verify")
def verify_command(path: Place, delta: Delta = None) -> None:
    """Look for damage, overspending, and answers that nobody was charged for; the exit code is 2 if there is any."""
    from tacit.cli import ledgers

    wrong = list(ledgers.verify(path, delta=delta))
    for text in wrong:
        typer.echo(f"wrong: {text}", err=True)
    if wrong:
        raise typer.Exit(2)
    typer.echo(f"ok: {_charges(ledgers.summary(path))}, each with a price and a time.")


def _charges(looked: dict[str, Any]) -> str:
    return f"{looked['charges']} charges of {looked['clients']} client{'s' * (looked['clients'] != 1)}"
