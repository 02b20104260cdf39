"""The commands of `tacit deploy`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tacit.cli.running import Program
from tacit.deploy.operate.site_page import write_site_page
from tacit.deploy.site.at_home import compared, due, newest, wanted
from tacit.deploy.site.join import read_settings
from tacit.errors import BadInput
from tacit.plugin import only_installed

app = Program(help="Run an experiment across machines, on Flower.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.", show_default=False)]
PORT = 8443


@app.command("init")
def init_command(
    folder: Folder,
    sites: Annotated[
        str, typer.Option(help="How many sites; or their names, north,coast, where each has its own rows.")
    ] = "3",
    experiment: Annotated[str, typer.Option(help="A shipped experiment or a TOML file.")] = "digits",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(help="The name or address under which sites reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's port.")] = PORT,
    trial: Annotated[
        bool, typer.Option("--trial", help="Keep seeded noise, to compare with a simulation. It protects nothing.")
    ] = False,
) -> None:
    """Write everything a federation needs: certificates, keys, a folder per site, the Flower app and a README."""
    from tacit.deploy.operate.init import init
    from tacit.deploy.operate.inspect import who_opens
    from tacit.deploy.site.rows import OWN_FILES
    from tacit.experiment import Experiment

    chosen = Experiment.load(experiment, tuple(settings or ()))
    console = Console()
    with Console(stderr=True).status("Making keys; the safe primes of a key that is split can take a minute"):
        made = init(folder, sites=sites, experiment=chosen, host=host, port=port, trial=trial)
    console.print(
        f"[bold]{made.name}[/]: {len(made.sites)} sites ({', '.join(made.sites)}), server {made.address}.",
        highlight=False,
    )
    for finding in who_opens(made, Experiment.load(made.app / "tacit_app" / "experiment.toml")):
        console.print(f"{escape(finding.text)}.", highlight=False)
    if chosen.data.name in OWN_FILES:
        rows = f"sites/NAME/records.{chosen.data.name}"
        console.print(f"Every site puts its rows into {folder / rows} first.", highlight=False, soft_wrap=True)
    console.print(
        f"Read {folder / 'README.md'}; a trial on this machine is `tacit deploy up {folder}`.",
        highlight=False,
        soft_wrap=True,
    )


@app.command("up")
def up_command(
    folder: Folder,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in results/.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier run aside and start anew; budgets stay spent.")
    ] = False,
) -> None:
    """Start the server and all sites on this machine, run the experiment, and stop everything."""
    from tacit.deploy.operate.serve import trial

    only_installed()  # what sites will find, and not what lies here
    trial(folder, resume=resume, force=force, console=Console())


@app.command("check")
def check_command(folder: Folder) -> None:
    """Say what is wrong with a federation, or with one site's folder; the exit code is 2 if anything is."""
    from tacit.deploy.operate.inspect import findings

    only_installed()
    console, wrong = Console(), 0
    for finding in findings(folder):
        wrong += finding.wrong
        mark = "[red]wrong[/]" if finding.wrong else "[yellow]note[/] " if finding.note else "[green]ok[/]   "
        console.print(f"{mark}  {escape(finding.text)}", highlight=False, soft_wrap=True)
    if wrong:
        raise typer.Exit(2)


@app.command("metrics")
def metrics_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The federation's folder, or one site's.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file, for its owner only; standard output if left out.")
    ] = None,
) -> None:
    """Say in Prometheus's text how a server's run or a site's ledger stands. Nothing is asked, started or read from rows."""
    from tacit.deploy.operate import metrics

    if out is None:
        typer.echo(metrics.text_of(folder), nl=False)
    else:
        metrics.write(folder, out)


@app.command("server")
def server_command(
    folder: Folder,
    listen: Annotated[
        str | None,
        typer.Option(help="The address to listen on; all of this machine's if left out.", show_default=False),
    ] = None,
) -> None:
    """Start the server that sites reach, and serve until stopped. Only sites' requests pass; runs are started from here."""
    from tacit.deploy.operate.serve import run_server

    run_server(folder, listen=listen, tell=lambda text: Console().print(text, highlight=False, soft_wrap=True))


@app.command("site")
def site_command(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.", show_default=False)],
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Do not join: make the site's own models that are due, and compare.")
    ] = False,
    evaluate: Annotated[
        Path | None, typer.Option("--evaluate", metavar="FILE", help="Do not join: compare its models on new rows.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Which run's models; the newest unless said.")] = None,
) -> None:
    """Join the server as one site, and answer until stopped; or, with an option, work on the site's own models at home."""
    if adapt or evaluate is not None or run is not None:
        command(folder, adapt=adapt, evaluate=evaluate, run=run)
        return
    from tacit.deploy.operate.site_process import run_site

    run_site(folder)


# `tacit deploy site SITE --adapt | --evaluate FILE`: a site's own models, for its own people.


def command(folder: Path, *, adapt: bool, evaluate: Path | None, run: str | None) -> None:
    """Does the one thing that was asked for, and prints what came of it. Raises BadInput in one sentence."""
    only_installed()
    if adapt == (evaluate is not None):
        raise BadInput("Say one of --adapt and --evaluate FILE; --run goes with them.")
    from tacit.deploy.site import models  # code that the process that answers never loads

    console = Console()
    if evaluate is not None:
        _show(models.in_words_new_rows(models.evaluate(folder, evaluate, run=run)), console)
    else:
        _adapt(folder, run, console)
    console.print(Text(f"Report: {write_site_page(folder)} (for this site alone)"), soft_wrap=True)


def _adapt(folder: Path, run: str | None, console: Console) -> None:
    """Makes what is due, and prints the comparison of the newest run, or of the one that is named."""
    if wanted(read_settings(folder)).kind is None:
        raise BadInput(
            'site.toml asks for no own models: add held_out = 0.2 and, below it, [personal] with kind = "mean-regularised".'
        )
    from tacit.deploy.site import models

    meant = newest(folder, run)
    for one in [meant] if run else due(folder):
        models.adapt(folder, one)
    told = compared(folder, meant)
    if told is not None:
        _show(models.in_words(told), console)


def _show(lines: Iterable[tuple[str, str]], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, text in lines:
        table.add_row(Text(name, style="dim"), Text(text))
    console.print(table)
