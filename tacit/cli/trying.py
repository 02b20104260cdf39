"""The commands that try to break a promise: `tacit audit` and `tacit attack`. What they call is loaded when they are called."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import plugin
from tacit.cli import early
from tacit.cli.options import EXPERIMENT, AsJson, Settings

AUDIT = (
    "tacit run digits --set privacy.epsilon=6 --set audit.canaries=2000 --out audited, then tacit audit audited: what the run's"
    " canaries show beside what its ledger promises. Several folders with the same promise are audited together; the folder of a"
    " site is audited by itself. Bugs to plant: noise=F, reuse, clip, layer, sampling, divisor, weights, share. Exit code 2: cannot"
    " be audited."
)


def add_to(app: typer.Typer) -> None:
    """Adds both commands."""
    app.command("audit", epilog=AUDIT)(audit_command)
    app.command("attack", epilog=EXPERIMENT)(attack_command)


def audit_command(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="The folders of runs (or of a site) with canaries; with --mechanism an experiment.", show_default=False
        ),
    ] = None,
    mechanism: Annotated[
        bool, typer.Option("--mechanism", help="Noise, clip and sampling rate as run, without training to the end.")
    ] = False,
    settings: Settings = None,
    plant: Annotated[
        str | None, typer.Option(help="Plant a known bug, which must be found: noise=0.95, reuse, clip, layer, ...")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(help="Audit with so many seeds: false alarms, or how often a bug is found.")
    ] = None,
    trainer: Annotated[
        list[str] | None, typer.Option(help="one by one, side by side, stacked or site; all if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the audit's own randomness.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Hold what is promised against what was released (a run with [audit] canaries) or what the code does (--mechanism).

    The exit code is 3 if a claim is rejected.
    """
    plugin.search_here()
    words: Any = {"plant": plant, "repeat": repeat, "trainers": trainer or [], "seed": seed}
    early.audit(experiments or [], settings or [], mechanism=mechanism, **words)
    from tacit.cli.audit import command  # loads what trains, which takes seconds

    raise typer.Exit(command(experiments or [], settings or [], mechanism=mechanism, as_json=as_json, **words))


def attack_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="membership, property, inversion or backdoor; or package.module:name.")
    ],
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file, a shipped experiment, or a run's folder.", show_default=False)
    ] = None,
    settings: Settings = None,
    chosen: Annotated[
        list[str] | None, typer.Option("--with", metavar="KEY=VALUE", help="An option of the attack; may be repeated.")
    ] = None,
    models: Annotated[
        int | None, typer.Option(help="Models that membership trains (even, 6 or more), or games that property plays.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Set an earlier finding in --out aside.")] = False,
    jobs: Annotated[int | None, typer.Option(help="How many runs go side by side; all cores if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Attack an experiment in a simulation: what somebody learns who sees models or updates. No epsilon covers the result."""
    plugin.search_here()
    early.attack(name, experiment, settings or [], chosen=chosen or [], jobs=jobs)
    from tacit.cli.attack import command  # loads what trains, which takes seconds

    words: Any = {"chosen": chosen or [], "models": models, "out": out, "force": force, "jobs": jobs}
    raise typer.Exit(command(name, experiment, settings or [], as_json=as_json, **words))
