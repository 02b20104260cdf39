"""Before a run: `tacit plan` prices it, `tacit data` shows who has what, and `tacit stats` asks about columns at a price."""

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
    program.console().print(plan.table(rows))
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
    heads = {"client": "client", "examples": "examples", "labels": "most frequent labels", "epsilon": "epsilon"}
    columns = [Column(head, [row[key] for row in rows], kinds.get(key, TEXT)) for key, head in heads.items()]
    program.console().print(Table(columns, title=title).terminal(caption="; ".join(dataset.notes), wrap=True))


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
