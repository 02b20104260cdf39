"""The commands that try to break a promise: `tacit audit` and `tacit attack`. What they call is loaded when they are called."""

import ast
import json
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tacit import check, plugin
from tacit.cli.running import EXPERIMENT, AsJson, Settings
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import parse_value, shipped
from tacit.lab import attacks
from tacit.lab.attacks import Estimate, Finding
from tacit.lab.audit import plants, show
from tacit.lab.audit.evidence import Audit
from tacit.lab.audit.found import RunAudit
from tacit.lab.audit.mechanism import audit, prepared
from tacit.lab.audit.run import audit_run, audit_site
from tacit.lab.audit.show import Repeated, repeated
from tacit.machine import exit_code
from tacit.report.page import write_page
from tacit.simulation import new_folder

# What `tacit attack` and `tacit audit` refuse at once, before anything that trains is loaded, which takes seconds.

ATTACKS = "tacit.lab.attacks"
DEPLOYED = ("federation.toml", "site.toml")


def attack(name: str, source: str | None, settings: Sequence[str], *, chosen: Sequence[str], jobs: int | None) -> None:
    """Refuses an attack that is none, options that it has not, and an experiment that cannot be read. Raises BadInput."""
    plugin.refuse_unknown(ATTACKS, name, key="the attack")
    refuse_options(name, wanted(chosen))
    if jobs is not None:
        check.at_least(1, **{"--jobs": jobs})
    simulated(source or "digits", settings)


def audit_early(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    mechanism: bool,
    plant: str | None,
    repeat: int | None,
    trainers: Sequence[str],
    seed: int,
) -> None:
    """Refuses what cannot be audited by its name, its options or its experiment. Raises BadInput."""
    if not mechanism:
        _folders(names, {"set": settings, "plant": plant, "repeat": repeat, "trainer": trainers})
        return
    if len(names) > 1:
        raise BadInput("The mechanism of one experiment is audited at a time: name one.")
    if repeat is not None:
        check.at_least(1, **{"--repeat": repeat})
    check.at_least(0, **{"--seed": seed})
    for trainer in trainers:
        check.one_of(plants.TRAINERS, **{"--trainer": trainer})
    if plant is not None:
        plants.noise_factor(plant)
    Experiment.load(*(names or ["digits"]), settings=tuple(settings))


def _folders(names: Sequence[str], options: dict[str, object]) -> None:
    """Refuses what is no folder of a run or of a site, and options that only a mechanism has."""
    for name in names:
        if name in shipped() or Path(name).is_file():
            raise BadInput(f"{name} is an experiment: add --mechanism, or name the folder of a run with canaries.")
        if not Path(name).is_dir():
            raise BadInput(f"There is no folder {name}: name that of a run or of a site with canaries.")
    if not names:
        raise BadInput(
            "Say what to audit: `tacit audit FOLDER` the canaries of a run or a site, or `tacit audit EXPERIMENT --mechanism`"
            " noise, clip and rate as they would run."
        )
    for flag, value in options.items():
        if value:
            raise BadInput(
                f"A run is audited as it was: leave out --{flag}, or add --mechanism to audit an experiment."
            )
    if len(names) > 1 and any((Path(name) / "site.toml").exists() for name in names):
        raise BadInput("A site audits itself, and by itself: name one.")


def refuse_options(name: str, options: Iterable[str]) -> None:
    """Refuses an option that a shipped attack has not; of somebody's own attack the attack itself tells. Raises BadInput.

    >>> refuse_options("membership", ["model"])
    Traceback (most recent call last):
    tacit.errors.BadInput: Unknown key 'with.model'. Did you mean 'with.models'?
    """
    if ":" in name:
        return
    known = _fields(name)
    for key in options:
        if known and key not in known:
            raise BadInput(plugin.unknown(key, table="with", known=known))


def _fields(name: str) -> list[str]:
    """The options of a shipped attack, read off its file: the annotated names of its dataclass."""
    part = name.replace("-", "_")
    spec = find_spec(ATTACKS)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        tree = ast.parse((Path(folder) / f"{part}.py").read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == part:
                return [
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                ]
    return []


def simulated(source: str, settings: Sequence[str]) -> Experiment:
    """The experiment of a name, a TOML file or a run's folder. Raises BadInput for one that belongs to a deployment."""
    path = Path(source)
    if path.exists():
        for place in (path, *path.resolve().parents):
            for file in DEPLOYED:
                if (place / file).is_file():
                    raise BadInput(
                        f"{source} belongs to a deployment ({place / file}): attacks look at clients' rows, which only a simulation"
                        " has; name a simulation's experiment."
                    )
        if (path / "experiment.toml").is_file():
            path = path / "experiment.toml"
            source = str(path)
    return Experiment.load(source, tuple(settings))


def wanted(words: Sequence[str]) -> dict[str, Any]:
    """The options of an attack, from KEY=VALUE. Raises BadInput.

    >>> wanted(["models=8", "classes=[0, 1]"])
    {'models': 8, 'classes': [0, 1]}
    """
    options = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key.isidentifier() or not text:
            raise BadInput(f"Expected an option of the attack as --with key=value, got {word!r}.")
        options[key] = parse_value(text)
    return options


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
    audit_early(experiments or [], settings or [], mechanism=mechanism, **words)
    # loads what trains, which takes seconds

    raise typer.Exit(command_audit(experiments or [], settings or [], mechanism=mechanism, as_json=as_json, **words))


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
    attack(name, experiment, settings or [], chosen=chosen or [], jobs=jobs)
    # loads what trains, which takes seconds

    words: Any = {"chosen": chosen or [], "models": models, "out": out, "force": force, "jobs": jobs}
    raise typer.Exit(command(name, experiment, settings or [], as_json=as_json, **words))


# `tacit attack` behind the command line: from words to an attack, and its finding as a table.

PAGE = "report.html"


def command(
    name: str,
    source: str | None,
    settings: Sequence[str],
    *,
    chosen: Sequence[str],
    models: int | None,
    out: Path | None,
    force: bool,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Attacks an experiment and prints what was found. Returns 0, or 130 where it was stopped. Raises BadInput."""
    refuse_models(name, models)
    options = wanted(chosen) | ({} if models is None else {"models": models})
    attacks.load(name, **options)  # a wrong value is told before anything is read
    experiment = simulated(source or "digits", settings)
    folder = out or new_folder(f"{experiment.name}-attack")
    console = Console(stderr=as_json, quiet=as_json)
    try:
        with console.status("") as status:

            def tell(words: str) -> None:
                status.update(words)
                if not console.is_terminal:
                    console.print(words, highlight=False, soft_wrap=True)

            found = attacks.attack(name, experiment, out=folder, options=options, force=force, jobs=jobs, tell=tell)
    except KeyboardInterrupt as error:
        print(f"Stopped. What is finished is kept: repeat the command with --out {folder}.", file=sys.stderr)
        return exit_code(error)
    write_page([folder], folder / PAGE)
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        show_attack(found, console)
        files = ("", PAGE, *found.files)
        console.print(Text(f"Files: {folder} (attack-{name.replace(':', '-')}.json{', '.join(files)})"))
    return 0


def refuse_models(name: str, models: int | None) -> None:
    """Refuses --models for an attack that trains none. Raises BadInput."""
    factory = attacks.find(name)
    if models is not None and "models" not in plugin.options(factory) and not plugin.takes_any(factory):
        raise BadInput(
            f"--models is for attacks that train models of their own, and {name} looks at a single run: leave it out."
        )


def show_attack(found: Finding, console: Console) -> None:
    """Prints a finding: a row for each number, and what is to be known about them."""
    table = Table(title=f"{found.attack} on {found.experiment}: {found.attacked}", title_justify="left", box=None)
    table.add_column("of")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for estimate in found.estimates:
        table.add_row(estimate.of, estimate.name, f"{estimate.value:.3g}", interval(estimate))
    console.print(table)
    for line in (*found.notes, f"These numbers are {found.badge}: they were measured on real members of a simulation."):
        console.print(line, highlight=False, soft_wrap=True)


def interval(estimate: Estimate) -> str:
    """The interval of an estimate in words; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.3g} to {estimate.high:.3g}"


# `tacit audit` behind the command line.

REJECTED = 3


def command_audit(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    mechanism: bool,
    plant: str | None,
    repeat: int | None,
    trainers: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Audits an experiment and prints what was found. Returns 3 where a claim is rejected, else 0. Raises BadInput."""
    audit_early(names, settings, mechanism=mechanism, plant=plant, repeat=repeat, trainers=trainers, seed=seed)
    if not mechanism:
        return _run([Path(name) for name in names], as_json=as_json)
    parts, console = prepared(Experiment.load(*(names or ["digits"]), settings=tuple(settings))), Console()
    if repeat is not None:
        with console.status("") as status:
            found = repeated(
                parts,
                seeds=range(seed, seed + repeat),
                plant=plant,
                trainers=trainers,
                observe=lambda done: status.update(f"{done} of {repeat}"),
            )
        shown = show.repeated_show(found)
    else:
        found = audit(parts, seed=seed, plant=plant, trainers=trainers)
        shown = show.fitting(found, width=console.width)
    return _told(found, shown, as_json=as_json)


def _run(folders: Sequence[Path], *, as_json: bool) -> int:
    """Audits the canaries of a run, of several together, or of a site."""
    sites = [folder for folder in folders if (folder / "site.toml").exists()]
    found = audit_site(*sites) if sites else audit_run(*folders)
    for folder in folders if not sites and len(folders) == 1 else ():
        write_page([folder], folder / "report.html")
    return _told(found, show.of_run(found), as_json=as_json)


def _told(found: Audit | Repeated | RunAudit, shown: Table | Group, *, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        console = Console()
        console.print(shown)
        for line in (*found.notes, found.sentence):
            console.print(line, highlight=False, soft_wrap=True)
    return REJECTED if found.alarming else 0
