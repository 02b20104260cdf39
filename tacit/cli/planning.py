"""Before a run: `tacit plan` prices it, `tacit data` shows who has what, and `tacit stats` asks about columns at a price; and what
tries to break a promise, `tacit audit` and `tacit attack`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import check, plugin
from tacit.cli import program
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import parse_value, shipped

NUMBERS = {"epsilon": float, "delta": float, "sampling_rate": float, "steps": int, "noise_multiplier": float}
MOST_VALUES = 12  # of a column of words, in the table
MOST_ROWS = 40  # of `tacit data`: a longer table is cut in the middle; --json has all
MOST_LABELS = 3


def plan_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="An experiment; or numbers: epsilon=3 delta=1e-5 sampling_rate=0.05 steps=150 noise_multiplier=1.",
            show_default=False,
        ),
    ] = None,
    settings: program.Settings = None,
) -> None:
    """Price noise before anything runs: of an experiment, or of numbers. Of the numbers one of epsilon, noise_multiplier and
    steps is left out and computed."""
    words = what or []
    sources = [word for word in words if "=" not in word or Path(word).exists()]
    if len(sources) > 1:
        raise BadInput(f"One experiment is planned at a time, got {', '.join(sources)}.")
    numbers = dict(_number(word) for word in words if word not in sources)
    if not sources:
        program.refuse_given({"--set": settings}, "{} changes an experiment: name one, or give numbers alone.")
        from tacit.report.price import lines, of_numbers

        answer = of_numbers(**numbers)
        if program.as_json():
            program.print_json(answer)
            return
        named = lines(answer)
        wide = max(len(name) for name, _ in named)
        for name, text in named:
            typer.echo(f"  {name:{wide}}    {text}")
        return
    if numbers:
        raise BadInput(f"An experiment has its own numbers: leave out {', '.join(numbers)} or use --set.")
    experiment = program.load(sources[0], settings)

    from tacit.report import plan

    rows = plan.of_experiment(experiment)
    if program.as_json():
        program.print_json(rows)
        return
    program.show(plan.table(rows))
    if "note" in rows[0]:
        typer.echo(rows[0]["note"], err=True)


def _number(word: str) -> tuple[str, Any]:
    key, _, text = word.partition("=")
    key, value = key.lstrip("-").replace("-", "_"), parse_value(text)
    check.one_of(NUMBERS, **{"the number": key})
    wanted = NUMBERS.get(key)
    if wanted is not None and (isinstance(value, bool) or not isinstance(value, int | wanted)):
        raise BadInput(f"Expected {key} to be {'a whole number' if wanted is int else 'a number'}, got {text!r}.")
    return key, value if wanted is None else wanted(value)


def data_command(
    name: Annotated[str, typer.Argument(help="An experiment, a TOML file, or a data set such as mnist.")],
    settings: program.Settings = None,
) -> None:
    """Show who has what before a run: every client's rows, its most frequent labels and its epsilon."""
    plugin.search_here()
    experiment = _experiment_or_data(name, settings or [])

    import numpy as np

    from tacit.data.partition import label_counts
    from tacit.engine.assemble import clients
    from tacit.table import COUNT, TEXT, Column, Kind, Table

    dataset, shares, population = clients(experiment)
    counts, rows = label_counts(dataset.y.numpy(), shares, classes=dataset.classes), list[dict[str, Any]]()
    for client, limit, row in zip(population.names, population.epsilons, counts, strict=True):
        held = np.argsort(-row, kind="stable")[: np.count_nonzero(row)]
        labels = [f"{dataset.class_names[label]}: {row[label]}" for label in held[:MOST_LABELS]]
        labels += [f"{len(held) - MOST_LABELS} more"] if len(held) > MOST_LABELS else []
        epsilon = None if experiment.privacy.epsilon is None else float(limit)
        rows.append({"client": client, "examples": int(row.sum()), "labels": ", ".join(labels), "epsilon": epsilon})
    if program.as_json():
        classes, notes = list(dataset.class_names), list(dataset.notes)
        program.print_json({"name": experiment.name, "classes": classes, "clients": rows, "notes": notes})
        return
    title = f"{experiment.name}: {len(rows):,} clients, {int(counts.sum()):,} records"
    if cut := len(rows) - MOST_ROWS if len(rows) > MOST_ROWS else 0:
        gap = {"client": "...", "examples": f"{cut:,} more", "labels": "", "epsilon": ""}
        rows[MOST_ROWS // 2 : -MOST_ROWS // 2] = [gap]
    kinds = {"examples": COUNT, "epsilon": Kind("{:.3g}".format)}
    heads = {"client": "client", "examples": "examples", "labels": "most frequent labels"}
    heads["epsilon"] = "epsilon" if rows[0]["epsilon"] in (None, "") else f"epsilon per {population.unit}"
    columns = [Column(head, [row[key] for row in rows], kinds.get(key, TEXT)) for key, head in heads.items()]
    program.show(Table(columns, title=title).terminal(caption="; ".join(dataset.notes), wrap=True))


def _experiment_or_data(name: str, settings: list[str]) -> Experiment:
    if name in shipped() or Path(name).is_file():
        return program.load(name, settings)
    names = plugin.names("tacit.data.sources")
    if name in names:
        return program.load(
            "digits", ["privacy.epsilon=", "privacy.kind=none", f"name={name}", f"data.name={name}", *settings]
        )
    known = list(dict.fromkeys([*shipped(), *names]))
    raise BadInput(
        f"{name!r} is neither an experiment, a file nor a data set ({', '.join(known)}).{check.nearest(name, known)}"
    )


def stats_command(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file or a shipped experiment; or a folder whose statistics are shown.")
    ],
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="A column to describe; may be repeated; all if left out.")
    ] = None,
    share: Annotated[float, typer.Option(help="The share of what is left of every client's epsilon.")] = 0.1,
    settings: program.Settings = None,
    out: program.Out = None,
    resume: program.Resume = False,
    force: program.Force = False,
) -> None:
    """Describe a federation's columns at a price: counts, means and quantiles from noised histograms, charged to the ledger."""
    program.check_resume(out, resume=resume, force=force)
    chosen = None if Path(experiment).is_dir() else program.load(experiment, settings)

    from rich.text import Text

    from tacit.engine.queries import read_stats
    from tacit.lab.stats import stats

    names = tuple(columns or ())
    if chosen is None:
        found = read_stats(Path(experiment))
        known = {column["column"]: column for column in found["columns"]}
        for name in names if known else ():  # without answers there is only the reason to show
            if name not in known:
                raise BadInput(f"{name} was not asked; this run has: {', '.join(known)}.")
        show_stats(
            found | {"columns": [known[name] for name in dict.fromkeys(names) if name in known] or found["columns"]}
        )
        return
    found = stats(chosen, columns=names, share=share, out=out, resume=resume, force=force)
    show_stats(found)
    screen = program.console()  # it says nothing beside JSON
    screen.print(Text(found["sentence"]), soft_wrap=True)
    screen.print(Text(f"Files: {Path(found['out'])} (stats.json, queries.json)"))
    if found["guarantee"] is not None and chosen.privacy.ledger is None:
        screen.print(
            "This was charged to a ledger of its own: set privacy.ledger and privacy.delta_share here and in training, or the two"
            " do not know of each other."
        )


def show_stats(found: dict[str, Any]) -> None:
    """Prints statistics: a table of columns of numbers, one of words, and who did not answer."""
    if program.as_json():
        program.print_json(found)
        return

    from rich.text import Text

    from tacit.privacy.queries.ranges import QUANTILES
    from tacit.table import Column, Kind, Table, of_rows

    words = [
        (column["column"], str(value), f"{count} ± {column['margin']:.0f}")
        for column in found["columns"]
        if "values" in column
        for value, count in list(zip(column["values"], column["counts"], strict=True))[:MOST_VALUES]
    ]
    counted, number = [column for column in found["columns"] if "values" not in column], Kind("{:.4g}".format)
    ends = [column["mean"]["interval"] for column in counted]
    means = [Column("column", [column["column"] for column in counted])]
    for head in ("mean", *(f"{100 * q:g} %" for q in QUANTILES)):
        values = [column[head]["value"] for column in counted]
        means.append(Column(head, ["not known" if value is None else value for value in values], number))
    means.insert(2, Column("95 %", [f"{one[0]:.4g} to {one[1]:.4g}" if one else None for one in ends]))
    screen = program.console()
    if counted:
        screen.print(Table(means, title="numbers").terminal())
    if words:
        screen.print(of_rows(("column", "value", "rows"), words, title="words").terminal())
    why = f" Not known: {found['unknown']}" if "unknown" in found else ""
    missing = "".join(f" Without {name}: {reason}." for name, reason in found.get("missing", {}).items())
    screen.print(Text(f"{found['answered']} of {found['clients']} clients answered.{why}{missing}"))


# What tries to break a promise.

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
