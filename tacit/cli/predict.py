"""`tacit predict` behind the command line."""

import shutil
import sys
import tempfile
from pathlib import Path

import typer

from tacit import check, plugin
from tacit.engine.folder import replace
from tacit.errors import BadInput
from tacit.federation.site.taken import taken
from tacit.predict.csv_predictions import predict_file
from tacit.predict.load import load


def command(run: Path, rows: Path, *, out: Path | None, trust: bool, model: str | None = None) -> None:
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
            replace(out, file.read().encode())
    for sentence in (*(which,) * bool(which), *told.sentences()):
        typer.echo(sentence, err=True)
    if out is not None:
        typer.echo(f"Predictions: {out}", err=True)
