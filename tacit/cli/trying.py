"""The commands that try to break a promise: `tacit audit` and `tacit attack`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import check, plugin
from tacit.cli import program
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import shipped

DEPLOYED = ("federation.toml", "site.toml")
REJECTED = 3
PAGE = "report.html"
AS_IT_WAS = "A run is audited as it was: leave out {}, or name an experiment."
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
    settings: program.Settings = None,
    plant: Annotated[
        str | None,
        typer.Option(help="Of an experiment: plant a known bug, which must be found: noise=0.95, reuse, clip, layer."),
    ] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option(help="Of an experiment: one by one, side by side, stacked or site; all if left out."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the audit's own randomness.")] = 0,
) -> None:
    """Hold what is promised against what was released (a run's folder, with canaries) or what the code does (an experiment). An
    experiment's noise, clip and sampling rate are audited as run, without training to the end. The exit code is 3 if a claim is
    rejected."""
    names = what or []
    experiments = [name for name in names if name in shipped() or Path(name).is_file()]
    if not experiments:
        program.refuse_given({"--set": settings, "--plant": plant, "--trainer": trainer}, AS_IT_WAS)
        raise typer.Exit(_audit_folders([Path(name) for name in names]))
    if len(names) > 1:
        raise BadInput("The mechanism of one experiment is audited at a time: name one.")
    check.at_least(0, **{"--seed": seed})
    chosen = program.load(names[0], settings)

    from tacit.lab.audit.bugs import noise_factor
    from tacit.lab.audit.mechanism import audit, prepared
    from tacit.lab.audit.report import by_trainer
    from tacit.lab.audit.trainers import TRAINERS

    for name in trainer or []:
        check.one_of(tuple(TRAINERS), **{"--trainer": name})
    if plant is not None:
        noise_factor(plant)  # a wrong name is refused before anything is read
    report = audit(prepared(chosen), seed=seed, plant=plant, trainers=trainer or [])
    raise typer.Exit(_print(report, by_trainer(report)))


def _audit_folders(folders: Sequence[Path]) -> int:
    if not folders:
        raise BadInput(
            "Say what to audit: `tacit audit FOLDER` the canaries of a run or a site, or `tacit audit EXPERIMENT`"
            " noise, clip and rate as they would run."
        )
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(
                f"There is no folder or experiment {folder}: name the folder of a run or of a site with canaries, or an experiment."
            )
    sites = [folder for folder in folders if (folder / "site.toml").exists()]
    if sites and len(folders) > 1:
        raise BadInput("A site audits itself, and alone: name one.")
    plugin.search_here()

    from tacit.lab.audit.run import audit_run, audit_site
    from tacit.report.page import write_page

    report = audit_site(*sites) if sites else audit_run(*folders)
    if not sites and len(folders) == 1:
        write_page(folders, folders[0] / PAGE)
    return _print(report, report.table())


def _print(report: Any, table: Any) -> int:
    if program.as_json():
        program.print_json(report.record())
    else:
        screen = program.console()
        screen.print(table)
        for line in (*report.notes, report.sentence):
            screen.print(line, highlight=False, soft_wrap=True)
    return REJECTED if report.alarming else 0


def attack_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="membership, property, inversion or backdoor; or package.module:name.")
    ],
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file, a shipped experiment, or a run's folder.", show_default=False)
    ] = None,
    settings: program.Settings = None,
    having: program.With = None,
    out: program.Out = None,
    force: program.Force = False,
    jobs: program.Jobs = None,
) -> None:
    """Attack an experiment in a simulation: what somebody learns who sees models or updates. No epsilon covers the result.
    --with models=12 is how many models membership trains (even, 6 or more), or games that property plays."""
    plugin.refuse_unknown("tacit.lab.attacks", name, key="the attack")
    options = program.options_of(having or [])
    if jobs is not None:
        check.at_least(1, **{"--jobs": jobs})
    chosen = simulated(experiment or program.DIGITS, settings or [])

    from rich.text import Text

    from tacit.lab import attacks
    from tacit.report.page import write_page
    from tacit.simulation import new_folder

    attacks.load(name, **options)  # a wrong word is refused before anything is read
    folder, screen = out or new_folder(f"{chosen.name}-attack"), program.console()
    with (
        program.stoppable(folder.exists, lambda: f"repeat the command with --out {folder}"),
        screen.status("") as status,
    ):

        def tell(words: str) -> None:
            status.update(words)
            if not screen.is_terminal:
                screen.print(words, highlight=False, soft_wrap=True)

        finding = attacks.attack(name, chosen, out=folder, options=options, force=force, jobs=jobs, tell=tell)
    write_page([folder], folder / PAGE)
    if program.as_json():
        program.print_json(finding.record())
        return
    table = finding.table()
    screen.print(table.terminal())
    for line in table.notes:
        screen.print(line, highlight=False, soft_wrap=True)
    screen.print(Text(f"Files: {folder} (attack-{name.replace(':', '-')}.json, {PAGE})"))


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
    return program.load(source, settings)
