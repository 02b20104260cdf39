"""What a run left: its page (`tacit report`), its model's predictions (`tacit predict`), and who was charged (`tacit ledger`)."""

import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tacit import check, plugin, store
from tacit.cli.program import Program, Shows, as_json, print_json, refuse_given
from tacit.errors import BadInput

PAGE = "report.html"
SITE = "site.toml"


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of runs, comparisons, searches, attacks or federations; or one site's."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file; DIR/report.html if left out, report.html here for several folders."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on localhost and follow a run that goes on.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="The port for --live; any free one if left out.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Make the page of a run, a comparison, a search, a federation or a site again, or of several runs side by side."""
    folders = list(dict.fromkeys(folders))
    site = any((folder / SITE).is_file() for folder in folders)
    if site and len(folders) > 1:
        raise BadInput("A site's page shows that site alone, and stays in its folder: name one folder.")
    if site and (live or port is not None):
        raise BadInput("A site's page is a file in its folder: leave out --live and --port.")
    if live and out is not None:
        raise BadInput("--live serves the page and writes no file: leave out --out, or --live.")
    if port is not None and not live:
        raise BadInput("--port is for --live: add --live, or leave it out.")
    if live:
        _serve(folders, port=port or 0, show=show)
        return
    path = _write_site(folders[0], out) if site else _write(folders, out)
    if show:
        webbrowser.open(path.resolve().as_uri())


def _write(folders: Sequence[Path], out: Path | None) -> Path:
    from tacit.lab.compare.grid import GRID
    from tacit.report.page import write_page

    path = out or (folders[0] / PAGE if len(folders) == 1 else Path(PAGE))
    if path.is_dir():
        path = path / PAGE
    write_page(folders, path)
    kind = "Comparison" if len(folders) == 1 and (folders[0] / GRID.file).exists() else "Report"
    typer.echo(f"{kind}: {path}")
    return path


def _write_site(folder: Path, out: Path | None) -> Path:
    from tacit.deploy.operate.site_page import write_site_page

    path = write_site_page(folder, out)
    typer.echo(f"Report: {path} (for this site alone: it stays in its folder)")
    return path


def _serve(folders: Sequence[Path], *, port: int, show: bool) -> None:
    from tacit.report.live import serve

    def ready(url: str, page: Path) -> None:
        typer.echo(f"The report is at {url} and follows the run; Ctrl-C ends it.")
        if show:
            webbrowser.open(page.resolve().as_uri())

    serve(folders, port=port, ready=ready)
    typer.echo("Stopped.")


def statement_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, of a search, of a federation, or of a site.")
    ],
) -> None:
    """Write what is promised, as a registry takes it (statement.json) and as one page to sign (statement.html), into the folder."""
    from tacit.report import statement

    if (folder / SITE).is_file():
        from tacit.deploy.operate.site_statement import of_site

        stated = of_site(folder)
    else:
        stated = statement.of_folder(folder)
    if as_json():
        print_json(statement.record(stated))
        return
    for path in statement.write(folder, stated):
        typer.echo(f"Statement: {path}")
    typer.echo(f"Not for release: {'; '.join(stated.against)}." if stated.against else stated.sentence)


def predict_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that has ended, or of a deployed site.")
    ],
    rows: Annotated[
        Path, typer.Argument(metavar="CSV", help="New rows; their labels, if they have any, are compared.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The csv file; standard output if left out.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the model's own code, where the run names some.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Of a site: common, own or alone; the one that its held-out rows speak for unless said."
        ),
    ] = None,
) -> None:
    """Predict new rows with a run's model: a label and the probability of each class for every row."""
    if trust:
        plugin.search_here()
    if not rows.is_file():
        raise BadInput(f"{rows} is not a file: name a csv file with the rows to predict.")
    if out is not None and out.exists():
        raise BadInput(f"{out} exists already: choose another --out, or remove it.")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"{out.parent} is no folder: make it, or choose another --out.")
    check.one_of(("common", "own", "alone"), **{"--model": model or "own"})

    from tacit.deploy.site.models import taken
    from tacit.predict import load
    from tacit.report.predictions import predict_file

    run, which = taken(run, model)
    predictor = load(run, trust=trust)
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:  # the whole result or nothing
        found = predict_file(predictor, rows, file)
        file.seek(0)
        if out is None:
            sys.stdout.write(file.read())
        else:
            store.write(out, file.read().encode())
    lines = [*([which] if which else []), *found.sentences(), *([f"Predictions: {out}"] if out else [])]
    for line in lines:
        typer.echo(line, err=True)


ledger = Program(cls=Shows, help="Who was charged what; and charge a release that is no run of Tacit's.")


@ledger.command("show")
def show_command(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A ledger, or the folder of a run or a site.", show_default=False)
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Look for damage, overspending, and answers that nobody was charged for; the exit code is 2 if there is any.",
        ),
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write every charge into a .csv or .json file; - prints CSV.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta at which epsilon is stated, where nothing else says it.")
    ] = None,
) -> None:
    """Print what every client was charged, and the last charges one by one; or verify it, or write every charge into a file.
    `tacit ledger PATH` is `tacit ledger show PATH`."""
    refuse_given({"--to": to if verify else None}, "{} writes charges and --verify looks for damage: use one of them.")

    from tacit.cli import ledger as books

    if verify:
        wrong = list(books.faults(path, delta=delta))
        for text in wrong:
            typer.echo(f"wrong: {text}", err=True)
        if wrong:
            raise typer.Exit(2)
        typer.echo(f"ok: {books.counted(path)}, each with a price and a time.")
    elif to is None:
        books.show(path, delta)
    elif str(to) == "-":
        typer.echo(books.as_csv(path), nl=False)
    else:
        books.export(path, to)
        typer.echo(f"Written: {to} ({books.counted(path)}).")


@ledger.command("charge", json=True)
def charge_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A site's folder; or another ledger, with --budget.")],
    purpose: Annotated[str, typer.Option("--for", help="What is released, as `ledger show` will name it.")],
    unit: Annotated[str, typer.Option(help="What may come or go: record, person or client.")],
    epsilon: Annotated[float | None, typer.Option(help="The epsilon of the release.")] = None,
    delta: Annotated[float, typer.Option(help="Its delta, or the one at which an event is priced.")] = 0.0,
    event: Annotated[
        Path | None, typer.Option(help="A JSON file with the event, as a ledger writes it, in the place of an epsilon.")
    ] = None,
    budget: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="EPSILON DELTA", help="What bounds a ledger that is no site's, which has a budget.toml."),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Whose rows, in a ledger that is no site's; of every client if left out.")
    ] = None,
) -> None:
    """Charge a ledger for a release that is no run of Tacit's, before it is made. It counts like a run: at its price, by basic
    composition, and nothing is charged where the budget does not pay for it."""
    from tacit.deploy.site import charges
    from tacit.privacy.guarantee import shown, shown_delta
    from tacit.types import Budget

    limit = budget and Budget(*budget, unit)  # type: ignore[arg-type]
    book = charges.Ledger(path, limit, client or "")
    known = None if event is None else charges.event_of(event)
    paid = book.charge(purpose=purpose, unit=unit, epsilon=epsilon, delta=delta, event=known)  # type: ignore[arg-type]
    left = book.left()
    if as_json():
        print_json(asdict(paid) | {"left": left._asdict()})
        return
    spent = book.spent()
    typer.echo(
        f"Charged: epsilon {shown(paid.epsilon)} and delta {shown_delta(paid.delta)} per {paid.unit} for {paid.purpose}. Sealed in"
        f" all: epsilon {shown(spent.epsilon)} of {book.limit.epsilon:g}, delta {shown_delta(spent.delta)} of {book.limit.delta:g}."
    )
