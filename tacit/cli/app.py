"""The command line: parse, call, print. Every refusal is one sentence on standard error and exit code 2. `tacit run`, `compare` and
`tune` are here: one run, a grid of runs side by side, and a search whose best is released."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from click.exceptions import NoArgsIsHelpError, NoSuchCommand, UsageError

import tacit
from tacit import check, store
from tacit.cli import deploy, planning, program, report
from tacit.cli.program import EXPERIMENT, Program, Root
from tacit.errors import BadInput, TacitError, exit_code, stop_on_term
from tacit.experiment.file import homes

RUNS = 10
FEDERATION = "federation.toml"
LEDGER = "privacy.ledger="


def run_command(
    experiment: program.Source = None,
    settings: program.Settings = None,
    out: program.Out = None,
    resume: program.Resume = False,
    force: program.Force = False,
) -> None:
    """Train a federated model and keep the ledger."""
    program.check_resume(out, resume=resume, force=force)
    if resume and out and (out / FEDERATION).is_file():
        raise BadInput(f"{out} is a federation, whose run goes on with `tacit deploy up {out} --resume`.")
    if out:
        store.refuse_taken(out, resume=resume, force=force)
    chosen = program.load(out / "experiment.toml" if resume and out and experiment is None else experiment, settings)

    from tacit.report.closing import closing
    from tacit.report.progress import Display
    from tacit.simulation import new_folder

    folder, screen = out or Path(new_folder(chosen.name)), program.console()
    begun = (folder / "experiment.toml").exists
    with (
        program.stoppable(begun, lambda: f"go on with `tacit run --resume --out {folder}`"),
        Display(screen) as display,
    ):
        history = tacit.run(
            chosen, out=folder, resume=resume, force=force, observe=display.observe, ready=display.ready
        )
    if program.as_json():
        program.print_json(history.summary)
    else:
        closing(history, screen)


def compare_command(
    experiment: program.Source = None,
    vary: program.Vary = None,
    settings: program.Settings = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds each combination has; 3 if left out.")] = None,
    out: program.Out = None,
    resume: program.Resume = False,
    force: program.Force = False,
    jobs: program.Jobs = None,
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
) -> None:
    """Run every combination of settings with several seeds, and put the results side by side, with what they cost in total.
    With --set privacy.ledger=FILE all runs share one ledger. The exit code is 1 if a run failed; the others are in the
    table."""
    said = attack_options(having or [], attack)
    program.check_resume(out, resume=resume, force=False, what="comparison")
    named = [one.partition("=")[2] for one in settings or [] if one.startswith(LEDGER)]
    ledger = Path(named[-1]) if named and named[-1] else None  # its runs' parts of delta are known when the grid is
    settings = [one for one in settings or [] if not one.startswith(LEDGER)]
    if not resume and not vary:
        program.load(experiment, settings)  # what is mistyped is refused at once

    from rich.text import Text

    from tacit.lab.attacks import IN_RUNS, chosen, with_columns
    from tacit.lab.compare import table
    from tacit.lab.compare.grid import GRID
    from tacit.lab.grid import compare
    from tacit.lab.worker import Display
    from tacit.report.page import write_page
    from tacit.simulation import new_folder

    attacks = chosen(attack, said)
    if out is not None:
        GRID.refuse_taken(out, resume=resume, force=force)
    base, choices, count = _grid(experiment, vary or [], settings, seeds, known=out if resume else None)
    if IN_RUNS in attacks:
        base.setdefault("attack", {"kind": "replacement"})
    if not choices and not resume and seeds is None:
        raise BadInput(
            "Nothing is varied, so there is nothing to compare: add --vary aggregate.rule=mean,weighted (or another key and its "
            "values), give --seeds N to compare seeds alone, or use `tacit run`."
        )
    folder, screen = out or new_folder(f"{base.get('name', 'digits')}-compare"), program.console()
    words = [f" --attack {attack}"] * bool(attack) + [f" --with {word}" for word in having or ()]
    go_on = f"go on with `tacit compare --resume --out {folder}{''.join(words)}`"
    with program.stoppable((folder / GRID.file).exists, lambda: go_on):
        with Display(screen) as display:
            options: dict[str, Any] = {"resume": resume, "force": force, "jobs": jobs, "display": display}
            rows = compare(base, choices, seeds=count, out=folder, ledger=ledger, **options)
        if attacks and attacks != [IN_RUNS]:
            tell = partial(print, file=sys.stderr)
            rows = with_columns(rows, attacks, out=folder, jobs=jobs, tell=tell, options=said)
            table.write(folder, rows)
            write_page([folder], folder / "report.html")
    if program.as_json():
        program.print_json(table.record(rows))
    else:
        table.show(rows, screen)
        kinds = "report.html; table.md, .csv and .tex; differences.csv; compare.csv, rounds.csv"
        screen.print(Text(f"Files: {folder} ({kinds}; figures as .png, .svg and .pdf; runs/)"))
    raise typer.Exit(int(any(run.failure for row in rows for run in row.runs)))


def attack_options(words: Sequence[str], attack: str | None) -> dict[str, dict[str, Any]]:
    """The options of every attack, from NAME.key=value, or key=value where one attack is named. Raises BadInput.

    >>> attack_options(["classes=[3]", "property.looks=2"], "property")
    {'property': {'classes': [3], 'looks': 2}}
    """
    found: dict[str, dict[str, Any]] = {}
    only = "" if "," in (attack or "") else (attack or "").strip()
    for word in words:
        key, separator, text = word.partition("=")
        name, _, option = key.rpartition(".")
        if not (name or only):
            raise BadInput(f"Expected an option of one of the attacks as --with NAME.key=value, got {word!r}.")
        found.setdefault(name or only, {}).update(program.options_of([f"{option}{separator}{text}"]))
    return found


def _grid(
    experiment: str | None, vary: list[str], settings: list[str], seeds: int | None, *, known: Path | None
) -> tuple[dict[str, Any], dict[str, list[Any]], int]:
    """The base experiment, what varies, and the number of seeds; from the known folder where they are not said."""
    from tacit.lab.compare.grid import BASE, GRID, parse_vary, text
    from tacit.lab.grid import SEEDS, plain

    choices, count = parse_vary(vary), SEEDS if seeds is None else seeds
    source: str | Path | None = experiment
    if known is not None:
        _, before, seeds_before = GRID.read(known)
        choices, count = choices or before, seeds_before if seeds is None else seeds
        source = experiment or known / BASE
    try:
        return plain(program.load(source, settings)), choices, count
    except BadInput:  # a file may leave out what is varied: read it as the first cell has it
        first = [f"{key}={text(values[0])}" for key, values in choices.items()]
        return plain(program.load(source, [*settings, *first])), choices, count


def tune_command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file or a shipped experiment; with --price also the folder of a federation.",
            show_default=False,
        ),
    ] = None,
    vary: program.Vary = None,
    settings: program.Settings = None,
    runs: Annotated[
        int | None, typer.Option(help=f"How many runs, all of which are paid for; default: {RUNS}.")
    ] = None,
    out: program.Out = None,
    resume: program.Resume = False,
    force: program.Force = False,
    price: Annotated[bool, typer.Option("--price", help="Print what it would cost, and stop.")] = False,
) -> None:
    """Search for settings at a price that is known before it begins, and publish the best run."""
    if resume and (experiment or vary or settings or runs is not None):
        raise BadInput("--resume goes on with a search as it was asked for: give --out alone.")
    program.check_resume(out, resume=resume, force=False, what="search")
    count = RUNS if runs is None else runs
    if experiment is not None and (Path(experiment) / FEDERATION).is_file():
        named = {"--vary": vary, "--set": settings, "--out": out}
        _price_of_federation(Path(experiment), count, named | {"--force": force}, price=price)
        return
    chosen = None if resume else program.load(experiment, settings)

    from rich.text import Text

    from tacit.lab.compare.grid import SEARCH, parse_vary
    from tacit.lab.grid import plain
    from tacit.lab.tuning.search import BEST, price_of, prices, tune
    from tacit.simulation import new_folder

    screen = program.console()

    def announce(*priced: Any) -> None:
        for line in prices(*priced):
            screen.print(Text(line), soft_wrap=True)

    if chosen is None and out is not None:
        base, choices, count = SEARCH.read(out)
    else:
        base, choices = plain(chosen or {}), parse_vary(vary or [])
    if price:
        announce(*price_of(base, choices, runs=count))
        return
    path = out or new_folder(f"{base.get('name', 'experiment')}-tune")
    with program.stoppable((path / SEARCH.file).exists, lambda: f"go on with `tacit tune --resume --out {path}`"):
        found = tune(base, choices, runs=count, out=path, resume=resume, force=force, announce=announce)
    if program.as_json():
        program.print_json(found)
    else:
        _show_best(found, path / BEST)


def _show_best(found: dict[str, Any], best: Path) -> None:
    from rich.text import Text

    from tacit.engine.queries import in_words
    from tacit.parts.metrics import words
    from tacit.table import facts_table

    lines = {key: str(value) for key, value in found["settings"].items()}
    name, tested = words(found["metric"]), found[f"test_{found['metric']}"]
    if tested is not None:
        lines[f"{name} on public rows"] = f"{tested:.4f}"
    if "at_clients" in found:
        lines[f"{name} on rows held out by clients"] = in_words(found["at_clients"])
    screen, where = program.console(), f"The best run is in {best}: settings, model, score and promise."
    screen.print(facts_table(lines.items()))
    for text in (found["sentence"], f"{where} All others are paid for too."):
        screen.print(Text(text), soft_wrap=True)


def _price_of_federation(folder: Path, runs: int, named: dict[str, Any], *, price: bool) -> None:
    """What so many runs of a federation cost its sites. Raises BadInput for anything else that is asked of one."""
    from rich.text import Text

    from tacit.deploy.operate.layout import open_federation
    from tacit.deploy.operate.remaining import price_of_runs
    from tacit.privacy.guarantee import shown, shown_delta
    from tacit.table import Column, Kind, Table

    if not price:
        raise BadInput(
            f"The server of a deployment sees every run, so that a search is several runs whose prices add up at each site: `tacit"
            f" tune {folder} --runs {runs} --price` says what they cost, and docs/how-to-tune.md how to make them."
        )
    program.refuse_given(named, "{} is for a search in a simulation: of a federation give --runs and --price alone.")
    found = price_of_runs(open_federation(folder), runs=runs)
    if program.as_json():
        program.print_json(found)
        return
    epsilon = Kind(shown)
    table = Table(
        [
            Column("site", [one["site"] for one in found]),
            Column("epsilon of one run", [one["epsilon_of_one"] for one in found], epsilon),
            Column(f"of {runs} in total", [one["epsilon"] for one in found], epsilon),
            Column("at delta", [one["delta"] for one in found], Kind(shown_delta)),
            Column("budget", [f"{one['budget_epsilon']:g}, delta {one['budget_delta']:g}" for one in found]),
            Column("sealed", [one["sealed_epsilon"] for one in found], epsilon),
            Column("it pays for", [f"{one['pays_for']} of {runs}" for one in found]),
        ],
        title=f"{runs} runs of this federation, at every site",
    )
    screen = program.console()
    screen.print(table.terminal())
    lines = [
        f"Per {found[0]['unit']}, by basic composition of what each run seals, as every site's own ledger adds them."
    ]
    short = [one["site"] for one in found if one["pays_for"] < runs]
    if short:
        lines.append(
            f"The budget of {', '.join(short)} cannot pay for {runs} runs: agree on privacy.delta_share = {1 / runs:.3g} or less"
            " and a smaller privacy.epsilon at init, or on larger budgets in budget.toml, or on fewer runs."
        )
    for line in lines:
        screen.print(Text(line), soft_wrap=True)


# The whole program.

app = Program(
    name="tacit",
    cls=Root,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("run", json=True, epilog=EXPERIMENT)(run_command)
app.command("compare", json=True, epilog=EXPERIMENT)(compare_command)
app.command("tune", json=True, epilog=EXPERIMENT)(tune_command)
app.command("plan", json=True)(planning.plan_command)
app.command("data", json=True)(planning.data_command)
app.command("stats", json=True, epilog=EXPERIMENT)(planning.stats_command)
app.command("report")(report.report_command)
app.command("statement", json=True)(report.statement_command)
app.command("predict")(report.predict_command)
app.command("audit", json=True, epilog=planning.AUDIT)(planning.audit_command)
app.command("attack", json=True, epilog=EXPERIMENT)(planning.attack_command)
app.command("keys", json=True)(deploy.keys_command)
app.add_typer(report.ledger, name="ledger")
app.add_typer(deploy.app, name="deploy")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON; may stand behind the command.")] = False,
) -> None:
    """Federated learning with a privacy promise that holds."""
    del debug, json  # Root and main have read them, wherever they stand
    if version:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


def _usage(error: UsageError) -> str:
    """What was wrong with the command; where an option is really a setting, how settings are given. A command without settings
    says instead what it takes."""
    said = re.sub(r"(\s*Did you mean '[^']*'\?)\1+", r"\1", error.format_message().rstrip("."))
    name = str(getattr(error, "option_name", "") or "").lstrip("-").replace("-", "_")
    context = error.ctx
    if isinstance(error, NoSuchCommand) and context is not None and not said.endswith("?"):
        return f"{said}.{check.nearest(error.command_name, getattr(context.command, 'commands', ()))}".rstrip(".")
    if not name or context is None:
        return said
    if name == "json":
        return f"`{context.command_path.removeprefix('python -m ')}` prints no JSON: leave out --json"
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
