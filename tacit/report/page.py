"""`report.html`: one self-contained file. Style, script and data are inline; it asks nobody for anything.

The data is a JSON block that the script puts into the page as text, never as markup, so a name cannot become an element;
the content policy allows the one style and the one script by their hashes and nothing else."""

import base64
import datetime
import hashlib
import html
import json
import math
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tacit
from tacit import store
from tacit.engine.run_files import SEARCHED, SEARCHED_BEST, RunFiles, intact, read, table
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.lab.compare import ledger
from tacit.lab.compare.findings import findings
from tacit.lab.compare.grid import GRID, SEARCH, text
from tacit.lab.compare.results import rows_of
from tacit.privacy.guarantee import SEEDED
from tacit.report import overlay
from tacit.report.collect import asset, figure_scripts, metric_facts, run_page, settings, short
from tacit.report.overlay import FEDERATION, RESULTS
from tacit.table import for_json

MOST_ROUNDS = 60  # of a site's strip: the last ones
MOST_ABSENCES = 200  # named with their reasons: the last ones
BEGINS = b"<!doctype html>"  # of every page
FIRST, LAST = "base.js", "live.js"


def write_page(folders: Sequence[Path], path: Path, *, quick: bool = False) -> None:
    """Makes the page of a run, a comparison, or several of them; `quick` leaves out prices that take long to compute. Raises:
    BadInput in one sentence, also where another file than a page lies there; then nothing is written."""
    store.refuse_foreign(path, begins=BEGINS)
    content = render(collect(folders, quick=quick)).encode()
    try:
        store.write(path, content)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}): name another file with --out.") from None


def write_matrix(
    path: Path, *, name: str, rows: Sequence[overlay.MatrixRow], metric: str, words: str, notes: Sequence[str]
) -> None:
    """Writes a page with nothing but a matrix of defences by attacks."""
    data = {"kind": "matrix", "name": name, "words": words, "matrix": overlay.matrix(rows, metric=metric)}
    store.write(path, render(for_page(data | {"notes": list(notes)})).encode())


def collect(folders: Sequence[Path], *, since: int = 0, live: bool = False, quick: bool = False) -> dict[str, Any]:
    """The page's data; a federation is shown by its results. Raises BadInput."""
    folders = [results_of(folder) for folder in folders]
    with intact(folders[0]):
        return for_page(_page_data(folders, since, live, quick), live=live)


def _page_data(folders: list[Path], since: int, live: bool, quick: bool) -> dict[str, Any]:
    only = folders[0] if len(folders) == 1 else None
    if only and is_search(only):
        return search_page(only)
    if only and not (only / GRID.file).exists():
        if not (only / "experiment.toml").exists() and any(only.glob("attack-*.json")):
            return overlay.attack_page(only)
        attacked = {} if live else {"findings": overlay.shown(findings(only))}
        files = read(only)
        data = run_page(files, since=since, live=live, quick=quick or live) | attacked
        return data | {"sites": sites_view(files), "folder": overlay.called(only)}
    found = overlay.entries(folders)
    name = only.resolve().name if only else f"{len(folders)} runs side by side"
    if only and found[0].runs:
        name = found[0].runs[0].experiment.name
    return overlay.several_page(found, name=name) | {"total": cost(only) if only else None}


def results_of(folder: Path) -> Path:
    """The folder of a run: of a federation, that of its results. Raises BadInput where nothing has run yet."""
    if not (folder / FEDERATION).is_file():
        return folder
    if not (folder / RESULTS / "experiment.toml").exists():
        raise BadInput(f"The federation in {folder} has not run yet: start it with `tacit deploy server` or `up`.")
    return folder / RESULTS


def for_page(data: dict[str, Any], *, live: bool = False) -> dict[str, Any]:
    """The data of a page without infinities, which JSON does not have: an epsilon that is no bound becomes the word "inf"."""
    whole = data | {"live": live, "tacit": tacit.__version__}
    return for_json(whole, infinite=lambda number: "inf" if number == math.inf else number)


def scripts() -> list[str]:
    """The page's scripts in their order: a file that lies in html/ or in html/figures/ is in the page."""
    home = resources.files("tacit.report") / "html"
    found = [*sorted(one.name for one in home.iterdir() if one.name.endswith(".js")), *figure_scripts()]
    return [FIRST, *(name for name in found if name not in (FIRST, LAST)), LAST]


def render(data: dict[str, Any]) -> str:
    """The page as text."""
    style, script = asset("page.css"), "\n".join(asset(name) for name in scripts())

    def hashed(content: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    connect = "connect-src 'self'; " if data["live"] else ""
    policy = (
        f"default-src 'none'; style-src '{hashed(style)}'; script-src '{hashed(script)}'; {connect}"
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(data["name"]),
        "sentence": html.escape(data.get("sentence") or ""),
        "style": style,
        "script": script,
        "data": as_json(data),
    }
    # one pass over the template: what is put in is never looked at again
    pieces = asset("page.html").split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def as_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def cost(folder: Path) -> dict[str, Any]:
    """What a comparison's runs cost in total: a sum for every promise that they make, and what is in no sum, in words. Raises:
    BadInput where a file of the comparison is damaged."""
    rows = rows_of(overlay.grid_of(folder)[1], {})
    sums = ledger.totals(rows)
    said = {one.sentence for one in sums}
    found = [one.record() | {"epsilon": one.bare, "sentence": one.sentence} for one in sums]
    return {"sums": found, "notes": [note for note in ledger.notes(rows) if note not in said]}


# A deployment, as its server sees it.


def sites_view(files: RunFiles) -> dict[str, Any] | None:
    """What the page shows of a deployment; None for a simulation."""
    status = files.status
    if status is None:
        return None
    known = files.clients or {}
    names = [str(name) for name in known.get("names") or status.get("sites") or []]
    limits = dict(zip(names, known.get("limits") or [], strict=False))  # None: none
    spent = status.get("spent") or (files.summary or {}).get("sites", {}).get("epsilon", {})
    away, asked = [_absent(record) for record in files.rounds], status.get("asked")
    absences = [[number + 1, name, why] for number, round in enumerate(away) for name, why in round.items()]
    try:
        moment = f"{datetime.datetime.fromtimestamp(status['time'], datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        moment = "an unknown time"
    return {
        "state": status["state"],
        "text": status["text"],
        "time": moment,
        "round": asked["round"] + 1 if asked else len(files.rounds),
        "first": max(0, len(away) - MOST_ROUNDS) + 1,
        "last": len(away),
        "drawn": bool(known.get("all_pay")),  # chance decides who is asked
        "sites": [
            {
                "name": name,
                **_state(name, files, status),
                "limit": limits.get(name),
                "declared": name in limits,
                "spent": short(spent.get(name), up=True),
                "missed": sum(name in round for round in away),
                "rounds": [int(name not in round) for round in away[-MOST_ROUNDS:]],
            }
            for name in names
        ],
        "absences": {"count": len(absences), "some": absences[-MOST_ABSENCES:]},
    }


def _state(name: str, files: RunFiles, status: dict[str, Any]) -> dict[str, str]:
    """A word for a site's state, and why: by the round that goes on, else by the last that ended."""
    asked, last = status.get("asked"), _absent(files.rounds[-1]) if files.rounds else {}
    if status["state"] == "waiting":
        return {"state": "awaited" if name in status.get("missing", []) else "here", "why": ""}
    for state in ("answered", "refused", "silent"):
        if asked and name in asked[state]:
            word = state if state != "silent" else "out" if asked["over"] else "awaited"
            return {"state": word, "why": "" if state == "answered" else asked[state][name]}
    ran_out = any(name in (record.get("dropped") or []) for record in files.rounds)
    if ran_out and len(files.rounds) < files.experiment.train.rounds:
        return {"state": "out of budget", "why": last.get(name, "it can pay for no further round")}
    if name in last:
        return {"state": "absent", "why": last[name]}
    # who was drawn stays a secret
    answered = "no absence" if (files.clients or {}).get("all_pay") else "has taken part"
    return {"state": "not asked" if asked else answered if files.rounds else "not asked yet", "why": ""}


def _absent(record: dict[str, Any]) -> dict[str, str]:
    found = record.get("absent")
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


# The page of a search (`tacit tune`): its best, and all runs, which are paid for.

BEST, RUNS = "best", "runs"  # as tacit/lab/tuning/search.py has them
MOST_RUNS = 500  # that are shown
DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, TacitError)


def is_search(folder: Path) -> bool:
    """Whether a folder is a search's, or that of its best."""
    if (folder / SEARCH.file).is_file():
        return True
    try:
        return SEARCHED in json.loads((folder / "summary.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def search_page(folder: Path) -> dict[str, Any]:
    """Everything on the page of a search. Raises BadInput for one that has not ended, or whose files are damaged."""
    whole = (folder / SEARCH.file).is_file()
    best = folder / BEST if whole else folder
    path = best / "summary.json"
    if not path.is_file():
        raise BadInput(f"The search in {folder} has not ended: nothing of it is shown before its best is released.")
    with intact(best):
        summary: Any = table(path, SEARCHED_BEST)
        experiment = _experiment(best)
    asked = SEARCH.read(folder)[1] if whole else {}
    found, answered = summary[SEARCHED], {}
    classes = [one["class"] for one in summary.get("per_class", [])]
    files = RunFiles(best, experiment, "", [], summary, {"classes": classes}, summary["metric"])
    if "at_clients" in summary:  # what chose the best stands in the place of the test rows' metric
        try:
            known = summary["at_clients"]["metrics"][summary["metric"]]
            ends = known["interval"] and [short(float(end)) for end in known["interval"]]
            answered = {"value": short(float(known["value"])), "interval": ends}
        except (KeyError, TypeError, ValueError):
            raise BadInput("The summary of the search's best is damaged: what clients answered is not there.") from None
    by = "rows that clients held out, which they answer about with noise" if answered else "public rows"
    return {
        "kind": "search",
        "name": summary["name"],
        "folder": folder.resolve().name,
        "finished": True,
        "seeded": (summary["guarantee"] or {}).get("randomness") == SEEDED,
        "metric": metric_facts(files) | answered,
        "by": by,
        "guarantee": summary["guarantee"],
        "sentence": summary["sentence"],
        "chosen": [[key, text(value)] for key, value in summary["settings"].items()],
        "asked": [[key, ", ".join(map(text, values))] for key, values in asked.items()],
        "one": short(found["epsilon_of_one_run"], up=True),
        "candidates": found["candidates"],
        "runs": found["runs"],
        "tried": _tried(folder, best, summary),
        "settings": settings(experiment),
    }


def _experiment(place: Path) -> Experiment:
    return Experiment(**tomllib.loads((place / "experiment.toml").read_text("utf-8")))


def _tried(folder: Path, best: Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Every run of a search: number, settings and score (None where it has none); nothing where only `best` is here."""
    released, found = _released(best), []
    for place in sorted((folder / RUNS).glob("[0-9]*"))[:MOST_RUNS]:
        try:
            experiment, path = _experiment(place), place / "summary.json"  # a run that diverged left none
            score = _score(json.loads(path.read_text("utf-8")), summary["metric"]) if path.is_file() else None
            sections = [key.partition(".") for key in summary["settings"]]
            values = [getattr(getattr(experiment, section), name, None) for section, _, name in sections]
        except DAMAGED as error:
            raise BadInput(f"{place} is damaged ({' '.join(str(error).split())[:200]}).") from None
        said = ["–" if value is None else text(value) for value in values]
        found.append(
            {"number": int(place.name), "settings": said, "score": score, "best": _released(place) == released}
        )
    return found


def _score(summary: dict[str, Any], metric: str) -> Any:
    """What the run was ranked by: what clients answered where they were asked, or else the public rows."""
    if "at_clients" in summary:
        value = summary["at_clients"].get("metrics", {}).get(metric, {}).get("value")
    else:
        value = summary.get(f"test_{metric}")
    return None if value is None else short(float(value))


def _released(place: Path) -> bytes | None:
    """A digest of what a run released; None where it ended without a model."""
    try:
        parts = [(place / name).read_bytes() for name in ("model.safetensors", "experiment.toml")]
    except OSError:
        return None
    return hashlib.blake2b(b"".join(hashlib.blake2b(part).digest() for part in parts)).digest()
