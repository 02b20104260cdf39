"""`tacit tune`: prints what a search costs, searches, and prints the best alone. What it calls is loaded when it is called."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit import plugin
from tacit.cli.running import EXPERIMENT, AsJson, Settings
from tacit.errors import BadInput

if TYPE_CHECKING:
    from tacit.deploy.operate.left import SitePrice
    from tacit.lab.tuning.price import Priced

RUNS = 10
FEDERATION = "federation.toml"


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("tune", epilog=EXPERIMENT)(tune_command)


def tune_command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file or a shipped experiment; with --price also the folder of a federation.",
            show_default=False,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="SECTION.KEY=VALUE,VALUE", help="Values to choose among; all combinations are candidates."
        ),
    ] = None,
    settings: Settings = None,
    runs: Annotated[
        int | None,
        typer.Option(help=f"How many runs: under central DP about so many, drawn and secret. {RUNS} if left out."),
    ] = None,
    shape: Annotated[
        float | None,
        typer.Option(help="Of the law of that number: 1 is geometric (if left out), 0 logarithmic and cheaper."),
    ] = None,
    losers: Annotated[
        str | None,
        typer.Option(
            metavar="hidden|seen",
            help="Under central DP: hidden (if left out), or seen, a fixed number of runs that are paid for together.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search in --out: nothing is drawn or charged again.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier search in --out aside and start anew.")
    ] = False,
    price_only: Annotated[bool, typer.Option("--price", help="Print what it would cost, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search for settings at a price that is known before it begins, and release the best run alone."""
    plugin.search_here()
    if resume and (experiment or vary or settings or runs is not None or shape is not None or losers):
        raise BadInput("--resume goes on with a search as it was asked for: give --out alone.")
    if resume and out is None:
        raise BadInput("--resume needs --out DIR, the folder of the search to go on with.")
    given: Any = {"runs": RUNS if runs is None else runs, "shape": 1.0 if shape is None else shape}
    given["losers"] = losers
    if experiment is not None and (Path(experiment) / FEDERATION).is_file():
        named = {
            "--vary": vary,
            "--set": settings,
            "--shape": shape,
            "--losers": losers,
            "--out": out,
            "--force": force,
        }
        _federation(
            Path(experiment), given["runs"], [name for name, said in named.items() if said], price_only, as_json
        )
        return
    command(
        experiment,
        vary or [],
        settings or [],
        given,
        out=out,
        resume=resume,
        force=force,
        price_only=price_only,
        as_json=as_json,
    )


def _federation(folder: Path, runs: int, said: list[str], price_only: bool, as_json: bool) -> None:
    """What so many runs of a federation cost its sites. Raises BadInput for anything else that is asked of one."""
    from tacit.deploy.operate.layout import open_federation
    from tacit.deploy.operate.left import price_of_runs
    from tacit.privacy.guarantee import shown, shown_delta

    if not price_only:
        raise BadInput(
            f"The server of a deployment sees every run, so that a search is several runs whose prices add up at each site: `tacit"
            f" tune {folder} --runs {runs} --price` says what they cost, and docs/how-to-tune.md how to make them."
        )
    if said:
        raise BadInput(
            f"{', '.join(said)} is for a search in a simulation: of a federation give --runs and --price alone."
        )
    found = price_of_runs(open_federation(folder), runs=runs)
    if as_json:
        typer.echo(json.dumps([one.record() for one in found], indent=2))
        return
    table = Table(title=f"{runs} runs of this federation, at every site")
    for head in ("site", "epsilon of one run", f"of {runs} together", "at delta", "budget", "sealed", "it pays for"):
        table.add_column(head)
    for one in found:
        budget = f"{one.limit:g}, delta {one.limit_delta:g}"
        costs = (shown(one.one), shown(one.together), shown_delta(runs * one.delta))
        table.add_row(Text(one.site), *costs, budget, shown(one.sealed.epsilon), f"{one.paid} of {runs}")
    console = Console()
    console.print(table)
    for line in _said_of(found, runs):
        console.print(Text(line), soft_wrap=True)


def _said_of(found: "list[SitePrice]", runs: int) -> list[str]:
    rule = f"Per {found[0].unit}, by basic composition of what each run seals, as every site's own ledger adds them."
    short = [one.site for one in found if one.paid < runs]
    if not short:
        return [rule]
    return [
        rule,
        f"The budget of {', '.join(short)} cannot pay for {runs} runs: agree on privacy.delta_share = {1 / runs:.3g} or less and a"
        " smaller privacy.epsilon at init, or on larger budgets in budget.toml, or on fewer runs.",
    ]


def command(
    experiment: str | None,
    vary: list[str],
    settings: list[str],
    given: dict[str, Any],
    *,
    out: Path | None,
    resume: bool,
    force: bool,
    price_only: bool,
    as_json: bool,
) -> None:
    """Asks for a search, or goes on with one; prints the price before it begins and the best at its end."""
    from tacit.experiment import Experiment
    from tacit.lab.compare.grid import parse_vary
    from tacit.lab.grid import plain
    from tacit.lab.tuning import folder as folders
    from tacit.lab.tuning.search import price_of, tune
    from tacit.machine import exit_code
    from tacit.simulation import new_folder

    console = Console(stderr=as_json, quiet=as_json)
    if resume and out is not None:
        base, choices, given = folders.asked(out)
    else:
        chosen = Experiment.load(experiment or "digits", tuple(settings))
        base, choices = plain(chosen), parse_vary(vary)
    if price_only:
        _announce(console, *price_of(base, choices, **given))
        return
    path = out or new_folder(f"{base.get('name', 'experiment')}-tune")
    try:
        # no bar and no count: how far it is would tell how many runs there are
        found = tune(
            base,
            choices,
            out=path,
            resume=resume,
            force=force,
            announce=lambda *said: _announce(console, *said),
            **given,
        )
    except KeyboardInterrupt as error:
        begun = (path / folders.ASKED).exists()
        said = f"Nothing is lost: go on with `tacit tune --resume --out {path}`." if begun else "Nothing had begun yet."
        typer.echo(f"Stopped. {said}", err=True)
        raise typer.Exit(exit_code(error)) from None
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _show(console, found, path / folders.BEST)


def _announce(console: Console, priced: "Priced", unit: str) -> None:
    from tacit.lab.tuning.words import prices

    for line in prices(priced, unit):
        console.print(Text(line), soft_wrap=True)


def _show(console: Console, found: dict[str, Any], best: Path) -> None:
    from tacit.engine.queries import in_words
    from tacit.parts.metrics import words

    table = Table(title="the best", show_header=False)
    for key, value in found["settings"].items():
        table.add_row(Text(key), Text(str(value)))
    name, tested = words(found["metric"]), found[f"test_{found['metric']}"]
    if tested is not None:
        table.add_row(f"{name} on public rows", f"{tested:.4f}")
    if "at_clients" in found:
        table.add_row(f"{name} on rows held out by clients", Text(in_words(found["at_clients"])))
    console.print(table)
    console.print(Text(found["sentence"]), soft_wrap=True)
    console.print(
        Text(f"Publish {best} (settings, model, score and promise), and nothing else of its folder."), soft_wrap=True
    )
