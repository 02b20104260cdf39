"""`tacit report` behind the command line."""

import json
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit import check, plugin, store
from tacit.deploy.operate.site_page import is_site, write_site_page
from tacit.deploy.site.models import taken
from tacit.engine.queries import read_stats
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.compare.grid import ASKED
from tacit.lab.stats import stats
from tacit.predict import load
from tacit.privacy.queries.ranges import QUANTILES
from tacit.report.live import serve
from tacit.report.page import write_page
from tacit.report.predictions import predict_file


def command(folders: Sequence[Path], *, out: Path | None, live: bool, port: int | None, show: bool) -> None:
    """Makes the page of the folders, or serves it. Raises BadInput in one sentence."""
    folders = list(dict.fromkeys(folders))
    if any(is_site(folder) for folder in folders):
        _of_site(folders, out=out, live=live or port is not None, show=show)
        return
    if live:
        if out is not None:
            raise BadInput("--live serves the page and writes no file: leave out --out, or --live.")
        serve(folders, port=port or 0, ready=lambda url, page: _ready(url, page, show=show))
        typer.echo("Stopped.")
        return
    if port is not None:
        raise BadInput("--port is for --live: add --live, or leave it out.")
    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if path.is_dir():
        path = path / "report.html"
    write_page(folders, path)
    kind = "Comparison" if len(folders) == 1 and (folders[0] / ASKED).exists() else "Report"
    typer.echo(f"{kind}: {path}")
    if show:
        webbrowser.open(path.resolve().as_uri())


def _of_site(folders: Sequence[Path], *, out: Path | None, live: bool, show: bool) -> None:
    """A site's own page, alone, in its folder."""
    if len(folders) > 1:
        raise BadInput("A site's page shows that site alone, and stays in its folder: name one folder.")
    if live:
        raise BadInput("A site's page is a file in its folder: leave out --live and --port.")
    path = write_site_page(folders[0], out)
    typer.echo(f"Report: {path} (for this site alone: it stays in its folder)")
    if show:
        webbrowser.open(path.as_uri())


def _ready(url: str, page: Path, *, show: bool) -> None:
    typer.echo(f"The report is at {url} and follows the run; Ctrl-C ends it.")
    if show:
        webbrowser.open(page.resolve().as_uri())


# `tacit predict` behind the command line.


def command_predict(run: Path, rows: Path, *, out: Path | None, trust: bool, model: str | None = None) -> None:
    """Predicts a file and writes the whole result or nothing. Raises BadInput in one sentence."""
    if trust:
        plugin.search_here()
    if not rows.is_file():
        raise BadInput(f"{rows} is not a file: name a csv file with the rows to predict.")
    if out is not None and out.exists():
        raise BadInput(f"{out} exists already: choose another --out, or remove it.")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"{out.parent} is no folder: make it, or choose another --out.")
    check.one_of(("common", "own"), **{"--model": model or "own"})
    run, which = taken(run, model)
    predictor = load(run, trust=trust)
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        told = predict_file(predictor, rows, file)
        file.seek(0)
        if out is None:
            shutil.copyfileobj(file, sys.stdout)
        else:
            store.write(out, file.read().encode())
    for sentence in (*(which,) * bool(which), *told.sentences()):
        typer.echo(sentence, err=True)
    if out is not None:
        typer.echo(f"Predictions: {out}", err=True)


# `tacit stats`: prints what a federation's columns look like, and what that cost.

MOST_VALUES = 12  # of a column of words, in the table


def command_stats(
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
