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
from tacit.cli.deploy import app as deploy_app
from tacit.cli.keys import keys
from tacit.cli.ledger import app as ledger_app
from tacit.cli.options import EXPERIMENT, AsJson, Settings
from tacit.cli.program import Program
from tacit.errors import BadInput, TacitError
from tacit.experiment.file import shipped
from tacit.stopping import exit_code, stop_on_term

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


@app.command("run", epilog=EXPERIMENT)
def run_command(
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier run in --out aside (nothing is deleted) and start anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a federated model and keep the ledger."""
    from tacit.report.progress import Display, closing
    from tacit.simulation.run import new_folder

    plugin.search_here()
    if resume and force:
        raise BadInput("--resume goes on with a run and --force starts a new one: use one of them.")
    if resume and out is None:
        raise BadInput("--resume needs --out DIR, the folder of the run to go on with.")
    chosen = (
        _to_resume(experiment, settings, out)
        if resume and out
        else tacit.Experiment.load(experiment or "digits", tuple(settings or ()))
    )
    console = Console(stderr=as_json, quiet=as_json)
    folder = out or Path(chosen.run.out or new_folder(chosen.name))
    try:
        with Display(console) as display:
            history = tacit.run(
                chosen, out=folder, resume=resume, force=force, observe=display.observe, ready=display.ready
            )
    except KeyboardInterrupt as error:
        begun = (folder / "experiment.toml").exists()
        said = (
            f"Nothing is lost: go on with `tacit run --resume --out {folder}`." if begun else "Nothing had begun yet."
        )
        typer.echo(f"Stopped. {said}", err=True)
        raise typer.Exit(exit_code(error)) from None
    if as_json:
        typer.echo(json.dumps(history.summary, indent=2))
    else:
        closing(history, console)


@app.command("compare", epilog=EXPERIMENT)
def compare_command(
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="SECTION.KEY=VALUE,VALUE", help="Values to compare; all combinations are run."),
    ] = None,
    settings: Settings = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds each combination has; 3 if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison in --out; finished runs are kept.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier comparison in --out aside and start anew.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="How many runs go side by side; all cores if left out.")] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME", help="Attacks to try on every run, a column each: backdoor,membership,property."
        ),
    ] = None,
    having: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="NAME.KEY=VALUE", help="An option of an attack (property.classes=[3]); may be repeated."
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="One ledger for all runs, which others may share; the noise must be said."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of settings with several seeds, and put the results side by side, with what they cost together.

    The exit code is 1 if a run failed; the others are still in the table.
    """
    from tacit.cli.compare import command

    plugin.search_here()
    words: Any = {"vary": vary or [], "settings": settings or [], "seeds": seeds, "out": out, "jobs": jobs}
    words |= {"attack": attack, "having": having or [], "ledger": ledger}
    code = command(experiment, resume=resume, force=force, as_json=as_json, **words)
    raise typer.Exit(code)


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
    from tacit.cli.predict import command

    command(run, rows, out=out, trust=trust, model=model)


@app.command("plan")
def plan_command(
    experiment: Annotated[str | None, typer.Argument(help="An experiment to plan; or give the numbers below.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    delta: Annotated[float, typer.Option(help="The probability outside the promise.")] = 1e-5,
    sampling_rate: Annotated[float | None, typer.Option(help="Poisson rate of a step; 1 means all records.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many steps are released.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise standard deviation over clip.")] = None,
    accountant: Annotated[str, typer.Option(help="pld or rdp.")] = "pld",
    gain: Annotated[
        bool, typer.Option("--gain", help="What each client may expect of joining, and from which epsilon on it pays.")
    ] = False,
    tau: Annotated[
        float | None, typer.Option(help="With --gain: how much clients differ; three are shown if left out.")
    ] = None,
    tau_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="With --gain: how much they differed in a finished run.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="With --gain: every client's rows; none is read then, and no file need be there.")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="With --rows: how many features a row has, where the experiment does not say it.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="With --gain: whose gain is drawn against epsilon.")] = None,
    picture: Annotated[Path | None, typer.Option(help="With --gain: where the picture goes (.png or .svg).")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Price noise: leave out one of --epsilon, --noise-multiplier and --steps, and it is computed."""
    from tacit.cli import gain as gains
    from tacit.report import planned, plans

    plugin.search_here()
    about: Any = {"tau": tau, "tau_from": tau_from, "rows": rows, "columns": columns, "site": site, "picture": picture}
    numbers = {"epsilon": epsilon, "sampling_rate": sampling_rate, "steps": steps, "noise_multiplier": noise_multiplier}
    if gains.asked(experiment, gain=gain, **about):
        for name, value in numbers.items():
            if value is not None:
                raise BadInput(
                    f"--gain takes the noise from the experiment: say --set privacy.{name}=..., not --{name}."
                )
        gains.command(tacit.Experiment.load(str(experiment), tuple(settings or ())), as_json=as_json, **about)
        return
    if experiment is not None:
        given = [f"--{name.replace('_', '-')}" for name, value in numbers.items() if value is not None]
        if given:
            raise BadInput(f"An experiment has its own numbers: leave out {', '.join(given)} or use --set.")
        answer: Any = planned.of_experiment(tacit.Experiment.load(experiment, tuple(settings or ())))
    else:
        answer = plans.of_numbers(delta=delta, accountant=accountant, **numbers)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        Console().print(plans.table(answer))
        if isinstance(answer, list) and "note" in answer[0]:
            typer.echo(answer[0]["note"], err=True)


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
    from tacit.cli.stats import command

    plugin.search_here()
    where: Any = {"out": out, "resume": resume, "force": force}
    command(experiment, tuple(settings or ()), columns=tuple(columns or ()), share=share, as_json=as_json, **where)


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


def _to_resume(experiment: str | None, settings: list[str] | None, out: Path) -> tacit.Experiment:
    if not (out / "experiment.toml").exists():
        raise BadInput(f"There is no run to resume in {out}.")
    if experiment is not None:
        return tacit.Experiment.load(experiment, tuple(settings or ()))
    return tacit.Experiment.load(out / "experiment.toml", tuple(settings or ()))


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
