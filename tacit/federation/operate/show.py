"""What the operator of a trial sees."""

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.federation.operate.inspect import anew, finished, refuse_wrong
from tacit.federation.operate.layout import open_federation
from tacit.federation.operate.left import short_sites
from tacit.federation.operate.up import up
from tacit.privacy.guarantee import shown
from tacit.report.closing import facts, say_constant, say_stats, show_promise
from tacit.report.progress import round_line
from tacit.stopping import exit_code


def trial(folder: Path, *, resume: bool, force: bool, console: Console) -> None:
    """`tacit deploy up`: checks the federation, runs it on this machine, and prints rounds and summary.

    A run that has done all its rounds is not started again by `resume`: its summary is printed. After Ctrl-C or SIGTERM nothing
    is left running, and the exit code says which it was.

    Raises: BadInput for what is wrong before it starts, TacitError for a run that fails, typer.Exit where it is stopped.
    """
    if resume and force:
        raise BadInput("--resume goes on with a run and --force starts a new one: use one of them.")
    federation = open_federation(folder)
    done = finished(federation.results) if resume else None
    if done is not None:
        experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
        more = anew(federation, short_sites(federation, experiment))
        console.print(Text(f"The run is finished, so nothing was started; {more}."), soft_wrap=True)
        closing(done, federation.results, console)
        return
    refuse_wrong(federation, resume=resume, force=force)
    experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    started = time.monotonic()

    def tell(text: str) -> None:
        console.print(Text(f"{time.monotonic() - started:5.1f} s", style="dim"), Text(text), sep="  ", highlight=False)

    def observe(record: dict[str, Any]) -> None:
        tell(round_line(record, experiment))

    try:
        summary = up(federation, resume=resume, force=force, tell=tell, observe=observe)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped. Nothing is lost: go on with `tacit deploy up {folder} --resume`.", err=True)
        raise typer.Exit(exit_code(error)) from None
    closing(summary, federation.results, console)


def closing(summary: dict[str, Any], results: Path, console: Console) -> None:
    """Prints the table, the guarantee, what every site's own ledger says, and where the files are.

    Whatever a site said is text, never markup; where nothing was promised, what one says of its ledger is not believed.
    """
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in facts(summary).items():
        table.add_row(Text(name, style="dim"), Text(value))
    promise = summary["guarantee"]
    for name, epsilon in summary["sites"]["epsilon"].items() if promise else ():
        text = f"epsilon per {promise['unit']} {shown(epsilon)} over all runs of this ledger"
        table.add_row(Text(f"ledger of {name}", style="dim"), Text(text))
    console.print(table)
    show_promise(summary, console, results)
    say_constant(summary, console)
    console.print(Text(f"Files: {results}"))
    say_stats(results, console)
    page = results / "report.html"
    if page.is_file():
        console.print(Text(f"Report: {page}"))
    sites = Text(f"A site's own page, which stays in its folder: tacit report {results.parent / 'sites' / 'NAME'}")
    console.print(sites, soft_wrap=True)
