"""`tacit run`: its words, one run, and what is said at its end. What trains is loaded when it is called."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import tacit
from tacit import plugin
from tacit.cli.options import AsJson, Settings
from tacit.errors import BadInput
from tacit.stopping import exit_code


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
    from tacit.report.closing import closing
    from tacit.report.progress import Display
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


def _to_resume(experiment: str | None, settings: list[str] | None, out: Path) -> tacit.Experiment:
    if (out / "federation.toml").is_file():
        raise BadInput(f"{out} is a federation, whose run goes on with `tacit deploy up {out} --resume`.")
    if not (out / "experiment.toml").exists():
        raise BadInput(f"There is no run to resume in {out}.")
    if experiment is not None:
        return tacit.Experiment.load(experiment, tuple(settings or ()))
    return tacit.Experiment.load(out / "experiment.toml", tuple(settings or ()))
