"""`tacit plan`: noise, epsilon or rounds from the other two, the plan of an experiment, and what joining may be worth."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import tacit
from tacit import plugin
from tacit.cli.options import AsJson, Settings
from tacit.errors import BadInput


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
