"""`tacit run`: its words, one run, and what is said at its end. What trains is loaded when it is called."""

import inspect
import json
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

import tacit
from tacit import plugin
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import shipped
from tacit.machine import exit_code

# Options that several commands have.

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]
EXPERIMENT = f"EXPERIMENT is a TOML file, or one that ships with Tacit: {', '.join(shipped())}; digits if left out."
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


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
    from tacit.simulation import new_folder

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


# `tacit plan`: noise, epsilon or rounds from the other two, the plan of an experiment, and what joining may be worth.


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

    from tacit.report import plan

    plugin.search_here()
    about: Any = {"tau": tau, "tau_from": tau_from, "rows": rows, "columns": columns, "site": site, "picture": picture}
    numbers = {"epsilon": epsilon, "sampling_rate": sampling_rate, "steps": steps, "noise_multiplier": noise_multiplier}
    if asked(experiment, gain=gain, **about):
        for name, value in numbers.items():
            if value is not None:
                raise BadInput(
                    f"--gain takes the noise from the experiment: say --set privacy.{name}=..., not --{name}."
                )
        command(tacit.Experiment.load(str(experiment), tuple(settings or ())), as_json=as_json, **about)
        return
    if experiment is not None:
        given = [f"--{name.replace('_', '-')}" for name, value in numbers.items() if value is not None]
        if given:
            raise BadInput(f"An experiment has its own numbers: leave out {', '.join(given)} or use --set.")
        answer: Any = plan.of_experiment(tacit.Experiment.load(experiment, tuple(settings or ())))
    else:
        answer = plan.of_numbers(delta=delta, accountant=accountant, **numbers)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        Console().print(plan.table(answer))
        if isinstance(answer, list) and "note" in answer[0]:
            typer.echo(answer[0]["note"], err=True)


# `tacit plan EXPERIMENT --gain`: prints what joining may be worth, what that rests on, and draws it.


def asked(experiment: str | None, *, gain: bool, **about: Any) -> bool:
    """Whether the gain of joining is asked for. Raises BadInput for options that belong to it alone, and without an experiment."""
    given = [f"--{name.replace('_', '-')}" for name, value in about.items() if value is not None]
    if given and not gain:
        raise BadInput(f"{', '.join(given)} belongs to --gain: say that too, or leave it out.")
    if gain and experiment is None:
        raise BadInput("--gain needs an experiment: `tacit plan digits --gain`.")
    return gain


def command(
    experiment: Experiment, *, as_json: bool, picture: Path | None, tau_from: Path | None = None, **about: Any
) -> None:
    """Prints tables, the epsilon from which on it pays, and the assumptions; or all of it as JSON."""
    from tacit.report import gain as gains

    if picture is not None:
        gains.refuse_picture(picture)
    if tau_from is not None:
        from tacit.report.gain import tau_of

        if about.get("tau") is not None:
            raise BadInput("--tau says how much clients differ, and --tau-from takes it from a run: use one of them.")
        about["tau"] = tau_of(tau_from)
    found = gains.of_experiment(experiment, **about)
    if picture is not None:
        gains.draw(picture, found)
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
        return
    console = Console()
    for table in gains.tables(found):
        console.print(table)
    lines = [*gains.pays(found), *(f"Assumes: {line}." for line in gains.assumptions(found))]
    for line in [*lines, *([f"Picture: {picture}"] if picture else [])]:
        console.print(Text(line), soft_wrap=True)


# Commands whose help says what their arguments are, whatever click is installed.


class Command(TyperCommand):
    """A command that says of its arguments what its function does."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        told = _told(self.callback) if self.callback else {}
        for one in self.params:
            if isinstance(one, TyperArgument) and one.help is None:
                one.help = told.get(str(one.name))


class Program(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, *, epilog: str | None = None, **more: Any) -> Any:
        """As typer's, with this kind of command."""
        return super().command(name, cls=Command, epilog=epilog, **more)


def _told(function: Any) -> dict[str, str | None]:
    """What a function says of its arguments, by name."""
    found = {}
    for name, hint in get_type_hints(inspect.unwrap(function), include_extras=True).items():
        for said in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(said, ArgumentInfo):
                found[name] = said.help
    return found
