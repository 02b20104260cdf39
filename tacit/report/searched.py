"""The page of a search (`tacit tune`): its best alone, from what is published of it, with the search's price.

Guarantee: it is made of `best` and of the grid that was asked for, which is public; how many runs there were, what others reached
and how long it took are not in these files, and so not on the page.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tacit.compare.values import text
from tacit.engine.run_files import SEARCHED, RunFiles
from tacit.engine.run_shapes import Searched
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.privacy.guarantee import SEEDED
from tacit.report.collect import metric_facts, settings, short

ASKED, BEST = "tune.toml", "best"  # as tacit/tuning/folder.py has them
PRICES = ("epsilon_of_one_run", "epsilon_of_the_best", "epsilon_composed")


def is_search(folder: Path) -> bool:
    """Whether a folder is a search's, or that of its best."""
    if (folder / ASKED).is_file():
        return True
    try:
        return SEARCHED in json.loads((folder / "summary.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def search_page(folder: Path) -> dict[str, Any]:
    """Everything on the page of a search. Raises BadInput for one that has not ended, or whose files are damaged."""
    best = folder / BEST if (folder / ASKED).is_file() else folder
    path = best / "summary.json"
    if not path.is_file():
        raise BadInput(f"The search in {folder} has not ended: nothing of it is shown before its best is released.")
    try:
        summary = json.loads(path.read_text("utf-8"))
        known = Searched(**summary)
        experiment = Experiment(**tomllib.loads((best / "experiment.toml").read_text("utf-8")))
    except (OSError, ValueError, TypeError, ValidationError, TacitError) as error:
        raise BadInput(f"{best} is damaged ({' '.join(str(error).split())[:200]}).") from None
    classes = [one["class"] for one in summary.get("per_class", [])]
    files = RunFiles(best, experiment, "", [], summary, {"classes": classes}, known.metric)
    return {
        "kind": "search",
        "name": known.name,
        "folder": folder.resolve().name,
        "finished": True,
        "seeded": (summary["guarantee"] or {}).get("randomness") == SEEDED,  # a hidden search's comes from a key
        "metric": metric_facts(files) | _answered(summary, known.metric),
        "by": "rows that clients held out, which they answer about with noise"
        if "at_clients" in summary
        else "public rows",
        "guarantee": summary["guarantee"],
        "sentence": known.sentence,
        "chosen": [[key, text(value)] for key, value in known.settings.items()],
        "asked": _asked(folder / ASKED),
        "prices": {key: short(summary[SEARCHED][key], up=True) for key in PRICES},
        "charged": known.search.charged,
        "candidates": known.search.candidates,
        "runs": str(known.search.runs),
        "settings": settings(experiment),
    }


def _answered(summary: dict[str, Any], metric: str) -> dict[str, Any]:
    """What clients answered about rows that they held out, where that chose the best: in the place of what test rows say."""
    if "at_clients" not in summary:
        return {}
    try:
        found = summary["at_clients"]["metrics"][metric]
        ends = found["interval"]
        return {"value": short(float(found["value"])), "interval": ends and [short(float(end)) for end in ends]}
    except (KeyError, TypeError, ValueError):
        raise BadInput("The summary of the search's best is damaged: what clients answered is not there.") from None


def _asked(path: Path) -> list[list[str]]:
    """The values that were searched among; nothing where only the best is here."""
    try:
        vary = tomllib.loads(path.read_text("utf-8"))["vary"] if path.is_file() else {}
        return [[str(key), ", ".join(text(value) for value in values)] for key, values in vary.items()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise BadInput(f"{path} is damaged.") from None
