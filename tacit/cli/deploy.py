"""The commands of `tacit deploy`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tacit.cli.program import Program
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
    from tacit.experiment import Experiment
    from tacit.federation.operate.init import init
    from tacit.federation.operate.inspect_keys import who_opens
    from tacit.federation.site.own_rows import OWN_FILES

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
    from tacit.federation.operate.show import trial

    only_installed()  # what sites will find, and not what lies here
    trial(folder, resume=resume, force=force, console=Console())


@app.command("check")
def check_command(folder: Folder) -> None:
    """Say what is wrong with a federation, or with one site's folder; the exit code is 2 if anything is."""
    from tacit.federation.operate.inspect import findings

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
    from tacit.federation.operate import metrics

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
    from tacit.federation.operate.serve import run_server

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
    publish_personal: Annotated[
        bool,
        typer.Option("--publish-personal", help="Do not join: train a noised own model, and pay for it."),
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="What a published model costs; all that is left unless said.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Which run's models; the newest unless said.")] = None,
) -> None:
    """Join the server as one site, and answer until stopped; or, with an option, work on the site's own models at home."""
    if adapt or evaluate is not None or publish_personal or epsilon is not None or run is not None:
        from tacit.cli.at_home import command

        command(folder, adapt=adapt, evaluate=evaluate, publish=publish_personal, epsilon=epsilon, run=run)
        return
    from tacit.federation.operate.lean import be_lean

    be_lean()  # before the imports that it spares
    from tacit.federation.operate.site_process import run_site

    run_site(folder)
