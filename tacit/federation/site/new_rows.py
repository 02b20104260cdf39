"""`tacit deploy site SITE --evaluate FILE`: what new rows say of a run's models at a site, for its own people alone."""

import json
from pathlib import Path
from typing import Any

from tacit.data.row_hashes import row_hashes
from tacit.errors import BadInput
from tacit.experiment.asking import read_with
from tacit.federation.site import layout, store
from tacit.federation.site.at_home import AtHome, at_home, newest
from tacit.federation.site.own_models import judged
from tacit.federation.site.own_rows import OWN_FILES, file_rows
from tacit.federation.site.ranged import bound
from tacit.personal import one


def evaluate(folder: Path, file: Path, *, run: str | None = None) -> dict[str, Any]:
    """Compares alone, common and own on the rows of a file, adds a line to the run's `evaluated.jsonl`, and returns it.

    Guarantee: no model changes, nor does which of them `tacit predict` takes; nothing is charged, and nothing leaves the folder.

    Raises: BadInput where there are no own models, for a file that is none, and for data that no file has; BadData for its rows.
    """
    home = at_home(folder, newest(folder, run))
    if home.experiment.data.name not in OWN_FILES:
        raise BadInput(
            f"The rows of {home.experiment.data.name} are dealt out for a trial: --evaluate is for a site with a csv or npz file."
        )
    if not file.is_file():
        raise BadInput(f"{file} is not a file: name one with new rows, such as new.csv.")
    data = read_with(home.experiment.data, bound(folder, home.run))
    rows = file_rows(home.experiment.model_copy(update={"data": data}), str(file))
    told = judged(home, rows.x, rows.y) | {"run": home.run, "file": file.name, "seen": _seen(home, rows.x, rows.y)}
    store.append(layout.run_folder(folder, home.run) / layout.EVALUATED, json.dumps(told))
    return told


def in_words(told: dict[str, Any]) -> list[tuple[str, str]]:
    """What new rows say, a line for each metric, and how many of them are not new."""
    lines = [
        one.lines(metric, key, kind="new rows") if "own" in metric else (key, "not known: these rows have one class")
        for key, metric in told["metrics"].items()
    ]
    seen = f"; {told['seen']} of them are among those that the site trains on, and flatter" if told["seen"] else ""
    return [*lines, ("rows", f"{told['rows']} of {told['file']}{seen}")]


def _seen(home: AtHome, x: Any, y: Any) -> int:
    """How many rows the site trains on as well."""
    trained = set(row_hashes(home.dataset.x, home.dataset.y))
    return sum(row in trained for row in row_hashes(x, y))
