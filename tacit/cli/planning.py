"""Before a run: `tacit plan` prices it, `tacit data` shows who has what, and `tacit stats` asks about columns at a price."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit import check, plugin
from tacit.cli.program import (
    Force,
    Out,
    Resume,
    Settings,
    as_json,
    check_resume,
    console,
    load,
    print_json,
    refuse_given,
)
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import parse_value, shipped

if TYPE_CHECKING:
    from rich.table import Table as Drawn

NUMBERS = {"epsilon": float, "delta": float, "sampling_rate": float, "steps": int, "noise_multiplier": float}
MOST_VALUES = 12  # of a column of words, in the table


def plan_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="An experiment; or numbers: epsilon=3 delta=1e-5 sampling_rate=0.05 steps=150 noise_multiplier=1.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Price noise before anything runs: of an experiment, or of numbers.

    Of the numbers one of epsilon, noise_multiplier and steps is left out and computed.
    """
    words = what or []
    sources = [word for word in words if "=" not in word or Path(word).exists()]
    if len(sources) > 1:
        raise BadInput(f"One experiment is planned at a time, got {', '.join(sources)}.")
    numbers = _numbers([word for word in words if word not in sources])
    if not sources:
        refuse_given({"--set": settings}, "{} changes an experiment: name one, or give numbers alone.")
        _plan_numbers(numbers)
        return
    if numbers:
        raise BadInput(f"An experiment has its own numbers: leave out {', '.join(numbers)} or use --set.")
    _plan_experiment(load(sources[0], settings))


def _numbers(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        key, value = key.lstrip("-").replace("-", "_"), parse_value(text)
        check.one_of(NUMBERS, **{"the number": key})
        wanted = NUMBERS.get(key)
        if wanted is not None and (isinstance(value, bool) or not isinstance(value, int | wanted)):
            raise BadInput(f"Expected {key} to be {'a whole number' if wanted is int else 'a number'}, got {text!r}.")
        found[key] = value if wanted is None else wanted(value)
    return found


def _plan_numbers(numbers: dict[str, Any]) -> None:
    from tacit.report.price import lines, of_numbers

    answer = of_numbers(**numbers)
    if as_json():
        print_json(answer)
        return
    named = lines(answer)
    wide = max(len(name) for name, _ in named)
    for name, text in named:
        typer.echo(f"  {name:{wide}}    {text}")


def _plan_experiment(experiment: Experiment) -> None:
    from tacit.report import plan

    rows = plan.of_experiment(experiment)
    if as_json():
        print_json(rows)
        return
    console().print(plan.table(rows))
    if "note" in rows[0]:
        typer.echo(rows[0]["note"], err=True)


def data_command(
    name: Annotated[str, typer.Argument(help="An experiment, a TOML file, or a data set such as mnist.")],
    settings: Settings = None,
    picture: Annotated[Path | None, typer.Option(help="Where the picture goes (.png or .svg).")] = None,
) -> None:
    """Show who has what: a table, and a picture of labels by clients with every client's epsilon."""
    plugin.search_here()
    experiment = _experiment_or_data(name, settings or [])

    from tacit.report import data_view

    shown = data_view.of(experiment)
    path = picture or Path(f"{shown.name}-clients.png")
    shown.draw(path)
    if as_json():
        print_json(shown.record())
        return
    screen = console()
    screen.print(shown.table())
    screen.print(f"Picture: {path}", highlight=False)


def _experiment_or_data(name: str, settings: list[str]) -> Experiment:
    if name in shipped() or Path(name).is_file():
        return load(name, settings)
    names = plugin.names("tacit.data.sources")
    if name in names:
        return load("digits", ["privacy.epsilon=", "privacy.kind=none", f"name={name}", f"data.name={name}", *settings])
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
    settings: Settings = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Describe a federation's columns at a price: counts, means and quantiles from noised histograms, charged to the ledger."""
    check_resume(out, resume=resume, force=force)
    chosen = None if Path(experiment).is_dir() else load(experiment, settings)

    from rich.text import Text

    from tacit.engine.queries import read_stats
    from tacit.lab.stats import stats

    named = tuple(columns or ())
    if chosen is None:
        _show_stats(_only(read_stats(Path(experiment)), named))
        return
    found = stats(chosen, columns=named, share=share, out=out, resume=resume, force=force)
    _show_stats(found)
    if as_json():
        return
    screen = console()
    screen.print(Text(found["sentence"]), soft_wrap=True)
    screen.print(Text(f"Files: {Path(found['out'])} (stats.json, queries.json)"))
    if found["guarantee"] is not None and chosen.privacy.ledger is None:
        screen.print(
            "This was charged to a ledger of its own: set privacy.ledger and privacy.delta_share here and in training, or the two"
            " do not know of each other."
        )


def _only(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A folder's statistics of some columns; of all where none is named. Raises BadInput for one that was not asked for."""
    known = {column["column"]: column for column in found["columns"]}
    for name in names if known else ():  # without answers there is only the reason to show
        if name not in known:
            raise BadInput(f"{name} was not asked; this run has: {', '.join(known)}.")
    return found | {"columns": [known[name] for name in dict.fromkeys(names) if name in known] or found["columns"]}


def _show_stats(found: dict[str, Any]) -> None:
    from rich.text import Text

    if as_json():
        print_json(found)
        return
    screen = console()
    for table in _stats_tables(found):
        screen.print(table)
    why = f" Not known: {found['unknown']}" if "unknown" in found else ""
    missing = "".join(f" Without {name}: {reason}." for name, reason in found.get("missing", {}).items())
    screen.print(Text(f"{found['answered']} of {found['clients']} clients answered.{why}{missing}"))


def _stats_tables(found: dict[str, Any]) -> "list[Drawn]":
    from tacit.privacy.queries.ranges import QUANTILES
    from tacit.table import Column, Kind, Table

    heads, number = [f"{100 * q:g} %" for q in QUANTILES], Kind("{:.4g}".format)
    values = [
        (column["column"], str(value), f"{count} ± {column['margin']:.0f}")
        for column in found["columns"]
        if "values" in column
        for value, count in list(zip(column["values"], column["counts"], strict=True))[:MOST_VALUES]
    ]
    counted = [column for column in found["columns"] if "values" not in column]
    ends = [column["mean"]["interval"] for column in counted]
    means = [Column("column", [column["column"] for column in counted])]
    for head in ("mean", *heads):
        means.append(Column(head, [_known(column[head]["value"]) for column in counted], number))
    means.insert(2, Column("95 %", [f"{one[0]:.4g} to {one[1]:.4g}" if one else None for one in ends]))
    words = [Column(head, [row[place] for row in values]) for place, head in enumerate(("column", "value", "rows"))]
    tables = (Table(means, title="numbers") if counted else None, Table(words, title="words") if values else None)
    return [table.terminal() for table in tables if table]


def _known(value: float | None) -> float | str:
    return "not known" if value is None else value
