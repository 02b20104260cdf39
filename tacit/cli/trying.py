"""The commands that try to break a promise: `tacit audit` and `tacit attack`."""

import ast
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import check, plugin
from tacit.cli.program import (
    Force,
    Jobs,
    Out,
    Settings,
    With,
    as_json,
    console,
    load,
    options_of,
    print_json,
    refuse_given,
    stoppable,
)
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import shipped

ATTACKS = "tacit.lab.attacks"
DEPLOYED = ("federation.toml", "site.toml")
REJECTED = 3
PAGE = "report.html"
AUDIT = (
    "tacit run digits --set privacy.epsilon=6 --set audit.canaries=2000 --out audited, then tacit audit audited: what the run's"
    " canaries show beside what its ledger promises. Several folders with the same promise are audited in total; the folder of a"
    " site is audited alone. Bugs to plant: noise=F, reuse, clip, layer, sampling, divisor, weights, share. Exit code 2: cannot"
    " be audited."
)


def audit_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="The folders of runs (or of a site) with canaries; or an experiment.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    plant: Annotated[
        str | None,
        typer.Option(help="Of an experiment: plant a known bug, which must be found: noise=0.95, reuse, clip, layer."),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(help="Of an experiment: with so many seeds, for false alarms, or how often a bug is found."),
    ] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option(help="Of an experiment: one by one, side by side, stacked or site; all if left out."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the audit's own randomness.")] = 0,
) -> None:
    """Hold what is promised against what was released (a run's folder, with canaries) or what the code does (an experiment).

    An experiment's noise, clip and sampling rate are audited as run, without training to the end. The exit code is 3 if a claim is
    rejected.
    """
    names, options = what or [], {"set": settings, "plant": plant, "repeat": repeat, "trainer": trainer}
    experiments = [name for name in names if name in shipped() or Path(name).is_file()]
    if not experiments:
        raise typer.Exit(_audit_folders(names, options))
    if len(names) > 1:
        raise BadInput("The mechanism of one experiment is audited at a time: name one.")
    if repeat is not None:
        check.at_least(1, **{"--repeat": repeat})
    check.at_least(0, **{"--seed": seed})
    chosen = load(names[0], settings)
    raise typer.Exit(audit_mechanism(chosen, plant=plant, repeat=repeat, trainers=trainer or [], seed=seed))


def _audit_folders(names: Sequence[str], options: dict[str, Any]) -> int:
    """Audits the canaries of runs, or of one site."""
    for name in names:
        if not Path(name).is_dir():
            raise BadInput(
                f"There is no folder or experiment {name}: name the folder of a run or of a site with canaries, or an experiment."
            )
    if not names:
        raise BadInput(
            "Say what to audit: `tacit audit FOLDER` the canaries of a run or a site, or `tacit audit EXPERIMENT`"
            " noise, clip and rate as they would run."
        )
    named = {f"--{name}": value for name, value in options.items()}
    refuse_given(named, "A run is audited as it was: leave out {}, or name an experiment.")
    folders = [Path(name) for name in names]
    sites = [folder for folder in folders if (folder / "site.toml").exists()]
    if sites and len(folders) > 1:
        raise BadInput("A site audits itself, and alone: name one.")
    plugin.search_here()

    from tacit.lab.audit.found import of_run
    from tacit.lab.audit.run import audit_run, audit_site
    from tacit.report.page import write_page

    found = audit_site(*sites) if sites else audit_run(*folders)
    if not sites and len(folders) == 1:
        write_page(folders, folders[0] / PAGE)
    return _found(found, of_run(found))


def audit_mechanism(
    experiment: Experiment, *, plant: str | None, repeat: int | None, trainers: Sequence[str], seed: int
) -> int:
    """Audits an experiment as it would run, and prints what was found. Returns 3 where a claim is rejected, else 0."""
    from tacit.lab.audit import plants
    from tacit.lab.audit.found import fitting, repeated_show
    from tacit.lab.audit.mechanism import audit, prepared, repeated

    for trainer in trainers:
        check.one_of(plants.TRAINERS, **{"--trainer": trainer})
    if plant is not None:
        plants.noise_factor(plant)
    parts, screen = prepared(experiment), console()
    if repeat is None:
        found = audit(parts, seed=seed, plant=plant, trainers=trainers)
        return _found(found, fitting(found, width=screen.width))
    with screen.status("") as status:
        seeds = range(seed, seed + repeat)
        several = repeated(
            parts,
            seeds=seeds,
            plant=plant,
            trainers=trainers,
            observe=lambda done: status.update(f"{done} of {repeat}"),
        )
    return _found(several, repeated_show(several))


def _found(found: Any, shown: Any) -> int:
    if as_json():
        print_json(found.record())
    else:
        screen = console()
        screen.print(shown)
        for line in (*found.notes, found.sentence):
            screen.print(line, highlight=False, soft_wrap=True)
    return REJECTED if found.alarming else 0


def attack_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="membership, property, inversion or backdoor; or package.module:name.")
    ],
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file, a shipped experiment, or a run's folder.", show_default=False)
    ] = None,
    settings: Settings = None,
    having: With = None,
    out: Out = None,
    force: Force = False,
    jobs: Jobs = None,
) -> None:
    """Attack an experiment in a simulation: what somebody learns who sees models or updates. No epsilon covers the result.

    --with models=12 is how many models membership trains (even, 6 or more), or games that property plays.
    """
    plugin.refuse_unknown(ATTACKS, name, key="the attack")
    options = options_of(having or [])
    refuse_options(name, options)
    if jobs is not None:
        check.at_least(1, **{"--jobs": jobs})
    chosen = simulated(experiment or "digits", settings or [])

    from rich.text import Text

    from tacit.lab import attacks
    from tacit.report.page import write_page
    from tacit.simulation import new_folder

    attacks.load(name, **options)  # a wrong value is refused before anything is read
    folder, screen = out or new_folder(f"{chosen.name}-attack"), console()
    with stoppable(folder.exists, lambda: f"repeat the command with --out {folder}"), screen.status("") as status:

        def tell(words: str) -> None:
            status.update(words)
            if not screen.is_terminal:
                screen.print(words, highlight=False, soft_wrap=True)

        found = attacks.attack(name, chosen, out=folder, options=options, force=force, jobs=jobs, tell=tell)
    write_page([folder], folder / PAGE)
    if as_json():
        print_json(found.record())
        return
    table = found.table()
    screen.print(table.terminal())
    for line in table.notes:
        screen.print(line, highlight=False, soft_wrap=True)
    files = ("", PAGE, *found.files)
    screen.print(Text(f"Files: {folder} (attack-{name.replace(':', '-')}.json{', '.join(files)})"))


def refuse_options(name: str, options: Iterable[str]) -> None:
    """Refuses an option that a shipped attack has not, without importing it; of somebody's own the attack itself tells.

    >>> refuse_options("membership", ["model"])
    Traceback (most recent call last):
    tacit.errors.BadInput: Unknown key 'with.model'. Did you mean 'with.models'?
    """
    known = [] if ":" in name else _fields(name)
    for key in options:
        if known and key not in known:
            raise BadInput(check.unknown(key, known, where=["with"]))


def _fields(name: str) -> list[str]:
    """The options of a shipped attack, read off its file: the annotated names of its dataclass."""
    part, spec = name.replace("-", "_"), find_spec("tacit.lab")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        tree = ast.parse((Path(folder) / "attacks" / f"{part}.py").read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == part:
                lines = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
                return [target.id for target in lines if isinstance(target, ast.Name)]
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
            source = str(path / "experiment.toml")
    return load(source, settings)
