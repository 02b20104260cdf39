"""The words of `tacit compare`; what they come to is in tacit/cli/compare.py, which is loaded when they are said."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import plugin
from tacit.cli.options import AsJson, Settings


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
