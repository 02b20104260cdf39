"""`tacit report SITE`: a site's own page, in the site's folder, for its own people.

What it was promised run by run, what its own ledger has sealed against its own limit, and, where `site.toml` asks for own models,
what held-out and new rows say of staying alone, of the common model and of its own. Guarantee: it is written into the site's folder
and nowhere else, for its owner alone (0600); nothing is asked, charged or released, and no rows are opened. Every file is taken for
crafted until it is checked: exact types, bounded sizes."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit import store, wire
from tacit.deploy.site import layout
from tacit.deploy.site.layout import read_settings, wanted
from tacit.deploy.site.limits import Limits, read_limits
from tacit.errors import BadInput, TacitError
from tacit.parts import metrics
from tacit.privacy.ledger import reader
from tacit.report.collect import short
from tacit.report.page import BEGINS, for_page, render

NAME = "report.html"
MODELS, GAPS = ("alone", "common", "own"), ("own_less_alone", "own_less_common")
MOST_BYTES = 1 << 20  # of one file that is shown
MOST_RUNS = 200  # the newest are shown
MOST_METRICS = 20
MOST_NOTES = 20
MOST_FILES = 50  # of new rows: the last lines of evaluated.jsonl
MOST_ROWS = 10**9


def write_site_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the page into the site's folder, for its owner only. Raises: BadInput for another place, or a damaged file."""
    path = (out or folder / NAME).resolve()
    path = path / NAME if path.is_dir() else path
    if folder.resolve() not in path.parents:
        raise BadInput("A site's page stays in the site's folder: leave out --out, or name a file in it.")
    store.refuse_foreign(path, begins=BEGINS)
    content = render(site_data(folder)).encode()
    try:
        layout.write(path, content)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}): make room, or name another file there.") from None
    return path


def site_data(folder: Path) -> dict[str, Any]:
    """What the page shows. Raises: BadInput in one sentence, naming the file."""
    limits, settings = read_limits(folder), read_settings(folder)
    spent = _spent(folder, limits)
    try:
        personal = wanted(settings).kind
    except BadInput as error:
        personal = str(error)
    known = list(dict.fromkeys([*(one["run"] for one in spent["runs"]), *layout.runs(folder)]))
    agreed, shown = set(layout.runs(folder)), known[::-1][:MOST_RUNS]  # the newest first
    told = [_run(folder, run) for run in shown if run in agreed]
    data = {
        "kind": "site",
        "name": settings["name"],
        "folder": folder.resolve().name,
        "trial": limits.trial,
        "unit": limits.unit,
        "limit": limits.epsilon,
        "delta": limits.delta,
        "wanted": personal,
        **spent,
        "runs": [one | {"kept": one["run"] in agreed} for one in spent["runs"][::-1][:MOST_RUNS]],
        "known": len(agreed),
        "told": told,
        "sentence": next((one["promise"] for one in told if one["promise"]), ""),
    }
    return for_page(data)


def _spent(folder: Path, limits: Limits) -> dict[str, Any]:
    file = folder / layout.LEDGER
    accounts = reader.accounts(file) if file.is_file() and file.stat().st_size else []
    began: dict[str, str] = {}
    for entry in reader.entries(file) if accounts else ():
        began.setdefault(str(entry["run"]), str(entry["time"])[:16].replace("T", " "))
    sums = dict(sorted(reader.at_one_site(accounts).items()))
    own, delta = sums.pop(limits.unit, (0.0, 0.0))
    rows = [
        {
            "run": wire.text(one.run, what="A run of the ledger"),
            "unit": wire.text(one.unit, what="A unit of the ledger"),
            "began": began.get(one.run, ""),
            "sealed": short_up(one.sealed),
            "used": short_up(one.used),
            "releases": [one.releases, one.most],
            "purpose": one.purpose,
        }
        for one in accounts
    ]
    other = [{"unit": unit, "sealed": short_up(epsilon), "delta": at} for unit, (epsilon, at) in sums.items()]
    return {"runs": rows, "sealed": short_up(own), "sealed_delta": delta, "other_units": other}


def short_up(value: float) -> float:
    """An epsilon for the page: rounded up, and infinite where it is no bound. Raises: BadInput for what is none."""
    if type(value) not in (int, float) or not value >= 0:  # NaN compares with nothing
        raise BadInput(
            f"The ledger says {wire.shown(value)} where an epsilon should stand: look at it with `tacit ledger SITE --verify`."
        )
    return value if math.isinf(value) else short(value, up=True)


def _run(folder: Path, run: str) -> dict[str, Any]:
    place = layout.run_folder(folder, run)
    promise, said = place / layout.PROMISE, place / layout.COMPARISON
    compared = _compared(said) if said.is_file() else None
    return {
        "run": run,
        "promise": " ".join(_text(promise).split()) if promise.is_file() else "",
        "compared": compared,
        "evaluated": list(_evaluated(place / layout.EVALUATED)) if compared else [],
    }


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise BadInput(f"{path} has more than {MOST_BYTES} bytes: it is nothing that a site writes.")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): restore it, or remove it.") from None


def _compared(path: Path) -> dict[str, Any]:
    try:
        found = wire.json_object(_text(path), what="It", finite=True)
        notes = wire.several(found.get("notes", []), what="Its notes", most=MOST_NOTES)
        return _judged(found) | {
            "kind": wire.text(found.get("kind"), what="Its kind"),
            "from": wire.text(found.get("from"), what="Its from"),
            "use": _place(found.get("use")),
            "because": wire.text(found.get("because"), what="Its because", most=1000),
            "trained_on": wire.whole(found.get("trained_on"), what="Its trained_on", most=MOST_ROWS),
            "notes": [wire.text(note, what="A note", most=1000) for note in notes],
        }
    except TacitError as error:
        raise BadInput(
            f"{path} is damaged ({error}): remove it, and `tacit deploy site --adapt` makes it anew."
        ) from None


def _place(use: object) -> int:
    if use not in MODELS:
        raise BadInput(f"Its use is none of {', '.join(MODELS)}.")
    return MODELS.index(str(use))


def _evaluated(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for line in _text(path).splitlines()[::-1][:MOST_FILES]:
        try:
            found = wire.json_object(line, what="It", finite=True)
            yield _judged(found) | {
                "file": wire.text(found.get("file"), what="Its file"),
                "seen": wire.whole(found.get("seen"), what="Its seen", most=MOST_ROWS),
            }
        except TacitError as error:
            raise BadInput(f"{path} has a damaged line ({error}): remove it.") from None


def _judged(found: Mapping[str, Any]) -> dict[str, Any]:
    by = found.get("metrics")
    if not isinstance(by, dict) or not 0 < len(by) <= MOST_METRICS:
        raise BadInput(f"Its metrics are not a table of at most {MOST_METRICS}.")
    measured = []
    for key, one in by.items():
        if not isinstance(one, dict):
            raise BadInput("A metric is no table.")
        values = [[_measured(one.get(name), name) for name in names] for names in (MODELS, GAPS) if "own" in one]
        measured.append([metrics.words(wire.text(key, what="A metric")), *(values or [None, None])])
    return {"rows": wire.whole(found.get("rows"), what="Its rows", most=MOST_ROWS), "metrics": measured}


def _measured(one: object, name: str) -> list[Any]:
    if not isinstance(one, dict):
        raise BadInput(f"{name} is not there.")
    value, ends = wire.real(one.get("value"), what=name), one.get("interval")
    if ends is None:
        return [short(value), []]
    if not isinstance(ends, list) or len(ends) != len(("low", "high")):
        raise BadInput(f"The interval of {name} does not have two ends.")
    return [short(value), [short(wire.real(end, what=f"An end of {name}")) for end in ends]]
