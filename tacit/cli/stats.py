"""`tacit stats`: prints what a federation's columns look like, and what that cost."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.engine.describing import read_stats
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.queries.described import QUANTILES
from tacit.simulation.stats import stats

MOST_VALUES = 12  # of a column of words, in the table


def command(
    experiment: str, settings: tuple[str, ...], *, columns: tuple[str, ...], share: float, as_json: bool, **where: Any
) -> None:
    """Asks, or reads what a folder has, and prints a table or JSON."""
    if Path(experiment).is_dir():
        _show(_only(read_stats(Path(experiment)), columns), as_json=as_json)
        return
    chosen = Experiment.load(experiment, settings)
    told = stats(chosen, columns=columns, share=share, **where)
    if _show(told, as_json=as_json):
        return
    console = Console()
    console.print(Text(told["sentence"]), soft_wrap=True)
    console.print(Text(f"Files: {Path(told['out'])} (stats.json, queries.json)"))
    if told["guarantee"] is not None and chosen.privacy.ledger is None:
        console.print(
            "This was charged to a ledger of its own: set privacy.ledger and privacy.delta_share here and in training, or the two"
            " do not know of each other."
        )


def _only(told: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A folder's statistics of some columns; of all where none is named. Raises BadInput for one that was not asked for."""
    known = {column["column"]: column for column in told["columns"]}
    for name in names if known else ():  # without answers there is only the reason to show
        if name not in known:
            raise BadInput(f"{name} was not asked; this run has: {', '.join(known)}.")
    return told | {"columns": [known[name] for name in dict.fromkeys(names) if name in known] or told["columns"]}


def _show(told: dict[str, Any], *, as_json: bool) -> bool:
    """Prints statistics as JSON or as tables; whether it was JSON."""
    if as_json:
        typer.echo(json.dumps(told, indent=1))
        return True
    console = Console()
    for table in _tables(told):
        console.print(table)
    why = f" Not known: {told['unknown']}" if "unknown" in told else ""
    missing = "".join(f" Without {name}: {reason}." for name, reason in told.get("missing", {}).items())
    console.print(Text(f"{told['answered']} of {told['clients']} clients answered.{why}{missing}"))
    return False


def _tables(told: dict[str, Any]) -> list[Table]:
    heads = ["mean", *(f"{100 * q:g} %" for q in QUANTILES)]
    numbers = Table("column", "mean (95 %)", *heads[1:], title="numbers")
    words = Table("column", "value", "rows", title="words")
    for column in told["columns"]:
        if "values" in column:
            for value, count in list(zip(column["values"], column["counts"], strict=True))[:MOST_VALUES]:
                words.add_row(*map(Text, (column["column"], value, f"{count} ± {column['margin']:.0f}")))
            continue
        ends = column["mean"]["interval"]
        interval = f" ({ends[0]:.4g} to {ends[1]:.4g})" if ends else ""
        values = [_shown(column[head]["value"]) for head in heads]
        numbers.add_row(Text(column["column"]), f"{values[0]}{interval}", *values[1:])
    return [table for table in (numbers, words) if table.row_count]


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
