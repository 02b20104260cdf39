"""The page of a search (`tacit tune`): its best, from what is published of it, with the search's price; and all runs where all are
paid for.

Guarantee: where the best alone is charged, it is made of `best` and of the grid that was asked for, which is public; how many runs
there were, what others reached and how long it took are not in these files, and so not on the page. `runs` is opened only where the
best's own summary says that the composition of all runs was charged; of a run its settings and its score are read, no round.
"""

import hashlib
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

ASKED, BEST, RUNS = "tune.toml", "best", "runs"  # as tacit/tuning/folder.py has them
COMPOSED = "composed"  # what is charged where all runs may be seen
MOST_RUNS = 500  # that are shown
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
        "tried": _tried(folder, best, known) if known.search.charged == COMPOSED else [],
        "settings": settings(experiment),
    }


def _tried(folder: Path, best: Path, known: Searched) -> list[dict[str, Any]]:
    """Every run of a search whose runs are all seen: number, settings and score, None where it has none; nothing beside `best`."""
    released = _mark(best)
    return [
        _run(place, known) | {"best": _mark(place) == released}
        for place in sorted((folder / RUNS).glob("[0-9]*"))[:MOST_RUNS]
    ]


def _run(place: Path, known: Searched) -> dict[str, Any]:
    """One run. Raises BadInput where its files are not what a run leaves."""
    try:
        experiment = Experiment(**tomllib.loads((place / "experiment.toml").read_text("utf-8")))
        values = [_said(experiment, key) for key in known.settings]
        path = place / "summary.json"  # a run that diverged left none
        found = _score(json.loads(path.read_text("utf-8")), known.metric) if path.is_file() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ValidationError, TacitError) as error:
        raise BadInput(f"{place} is damaged ({' '.join(str(error).split())[:200]}).") from None
    return {"number": int(place.name), "settings": values, "score": found}


def _said(experiment: Experiment, key: str) -> str:
    section, _, name = key.partition(".")
    value = getattr(getattr(experiment, section), name, None)
    return "–" if value is None else text(value)


def _score(summary: dict[str, Any], metric: str) -> Any:
    """What the run was ranked by: what clients answered where they were asked, or else the public rows."""
    if "at_clients" in summary:
        value = summary["at_clients"].get("metrics", {}).get(metric, {}).get("value")
    else:
        value = summary.get(f"test_{metric}")
    return None if value is None else short(float(value))


def _mark(place: Path) -> bytes | None:
    """What a run released, by a hash; None where it ended without a model."""
    try:
        said = [(place / name).read_bytes() for name in ("model.safetensors", "experiment.toml")]
    except OSError:
        return None
    return hashlib.blake2b(b"".join(hashlib.blake2b(each).digest() for each in said)).digest()


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
