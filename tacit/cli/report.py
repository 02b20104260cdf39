"""`tacit report` behind the command line."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

import typer

from tacit.compare.comparison_folder import ASKED
from tacit.errors import BadInput
from tacit.federation.operate.site_page import is_site, write_site_page
from tacit.report.live import serve
from tacit.report.page import write_page


def command(folders: Sequence[Path], *, out: Path | None, live: bool, port: int | None, show: bool) -> None:
    """Makes the page of the folders, or serves it. Raises BadInput in one sentence."""
    folders = list(dict.fromkeys(folders))
    if any(is_site(folder) for folder in folders):
        _of_site(folders, out=out, live=live or port is not None, show=show)
        return
    if live:
        if out is not None:
            raise BadInput("--live serves the page and writes no file: leave out --out, or --live.")
        serve(folders, port=port or 0, ready=lambda url: _ready(url, show=show))
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


def _ready(url: str, *, show: bool) -> None:
    typer.echo(f"The report is at {url} and follows the run; Ctrl-C ends it.")
    if show:
        webbrowser.open(url)
