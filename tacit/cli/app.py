"""The command line: parse, call, print. Every refusal is one sentence on standard error and exit code 2."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from click.exceptions import NoArgsIsHelpError, UsageError
from rich.console import Console

import tacit
from tacit import check, plugin
from tacit.cli import trying, tune
from tacit.cli.comparing import compare_command
from tacit.cli.deploy import app as deploy_app
from tacit.cli.keys import keys
from tacit.cli.ledger import app as ledger_app
from tacit.cli.running import EXPERIMENT, AsJson, Program, Settings, plan_command, run_command
from tacit.errors import BadInput, TacitError
from tacit.experiment.file import shipped
from tacit.machine import exit_code, stop_on_term

app = Program(
    name="tacit", add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
)
app.add_typer(keys)
app.add_typer(deploy_app, name="deploy")
app.add_typer(ledger_app, name="ledger")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Federated learning with a privacy promise that holds."""
    del debug  # read in main, before parsing can fail
    if version:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


app.command("run", epilog=EXPERIMENT)(run_command)
app.command("compare", epilog=EXPERIMENT)(compare_command)


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of runs, comparisons, searches, attacks or federations; or one site's."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file; DIR/report.html if left out, report.html here for several folders."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on localhost and follow a run that goes on.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="The port for --live; any free one if left out.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Make the page of a run, a comparison, a search, a federation or a site again, or of several runs side by side."""
    from tacit.cli.report import command

    command(folders, out=out, live=live, port=port, show=show)


@app.command("predict")
def predict_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that has ended, or of a deployed site.")
    ],
    rows: Annotated[
        Path, typer.Argument(metavar="CSV", help="New rows; their labels, if they have any, are compared.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The csv file; standard output if left out.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the model's own code, where the run names some.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Of a site: common or own; the better by its held-out rows unless said."),
    ] = None,
) -> None:
    """Predict new rows with a run's model: a label and the probability of each class for every row."""
    from tacit.cli.report import command_predict

    command_predict(run, rows, out=out, trust=trust, model=model)


app.command("plan")(plan_command)
trying.add_to(app)
tune.add_to(app)


@app.command("stats", epilog=EXPERIMENT)
def stats_command(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file or a shipped experiment; or a folder whose statistics are shown.")
    ],
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="A column to describe; may be repeated; all if left out.")
    ] = None,
    share: Annotated[float, typer.Option(help="The share of what is left of every client's epsilon.")] = 0.1,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Show what is in --out, or go on where it was stopped.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Set what is in --out aside and ask anew.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a federation's columns at a price: counts, means and quantiles from noised histograms, charged to the ledger."""
    from tacit.cli.report import command_stats

    plugin.search_here()
    where: Any = {"out": out, "resume": resume, "force": force}
    command_stats(
        experiment, tuple(settings or ()), columns=tuple(columns or ()), share=share, as_json=as_json, **where
    )


@app.command("data")
def data_command(
    name: Annotated[str, typer.Argument(help="An experiment, a TOML file, or a data set such as mnist.")],
    settings: Settings = None,
    picture: Annotated[Path | None, typer.Option(help="Where the picture goes (.png or .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who has what: a table, and a picture of labels by clients with every client's epsilon."""
    from tacit.report import data_view as holdings

    plugin.search_here()
    shown = holdings.of(_experiment_or_data(name, tuple(settings or ())))
    path = picture or Path(f"{shown.name}-clients.png")
    shown.draw(path)
    if as_json:
        typer.echo(json.dumps(shown.record(), indent=2))
        return
    console = Console()
    console.print(shown.table())
    console.print(f"Picture: {path}", highlight=False)


def _experiment_or_data(name: str, settings: tuple[str, ...]) -> tacit.Experiment:
    from tacit.data.load import names

    if name in shipped() or Path(name).is_file():
        return tacit.Experiment.load(name, settings)
    if name in names():
        return tacit.Experiment.load(
            "digits", ("privacy.epsilon=", "privacy.kind=none", f"name={name}", f"data.name={name}", *settings)
        )
    known = [*shipped(), *names()]
    raise BadInput(
        f"{name!r} is neither an experiment, a file nor a data set ({', '.join(dict.fromkeys(known))}).{check.nearest(name, known)}"
    )


def _usage(error: UsageError) -> str:
    """What was wrong with the command; an option that is really a setting is told how settings are given, where they can be.

    A command without settings says instead what it takes.
    """
    from tacit.experiment.file import homes

    said = re.sub(r"(\s*Did you mean '[^']*'\?)\1+", r"\1", error.format_message().rstrip("."))
    name = str(getattr(error, "option_name", "") or "").lstrip("-").replace("-", "_")
    context = error.ctx
    if not name or context is None:
        return said
    if any("--set" in each.opts for each in context.command.params):
        keys = list(homes(name))
        return f"There is no option --{name}: write `--set {keys[0]}=VALUE`" if keys else said
    if said.endswith("?"):  # it has the nearest option already
        return said
    path = context.command_path.removeprefix("python -m ")
    words = " ".join((path, *context.command.collect_usage_pieces(context)))
    return f"There is no option --{name.replace('_', '-')}: the command is `{words}`"


def main() -> None:
    """The console script."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        stop_on_term()
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError:  # the help has been printed
        sys.exit(2)
    except UsageError as error:
        said = _usage(error)
        typer.echo(f"{said}{'' if said.endswith('?') else '.'} Try `tacit --help`.", err=True)
        sys.exit(2)
    except TacitError as error:
        if debug:
            raise
        typer.echo(str(error), err=True)
        sys.exit(2)
    except KeyboardInterrupt as error:
        typer.echo("Stopped.", err=True)
        sys.exit(exit_code(error))
