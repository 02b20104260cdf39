"""From a run's files to what its page shows: plain values, few enough for a small file. Every number is rounded for the eye, an
epsilon up. Numbers computed from raw data are marked by the page."""

import datetime
import json
import math
from collections.abc import Sequence
from importlib import resources
from itertools import accumulate
from typing import Any

from tacit import store
from tacit.engine.evaluate import STAGES
from tacit.engine.run_files import RunFiles
from tacit.experiment import Experiment
from tacit.experiment.file import dumps
from tacit.parts import metrics
from tacit.privacy.guarantee import NOTHING_PROMISED, sentence, shown
from tacit.report import spending
from tacit.report.closing import facts, not_better
from tacit.types import Guarantee

MOST_POINTS = 1000  # of a curve: more are thinned, the last is kept
MOST_CLIENTS = 3000  # rows of the table of clients
MOST_REFUSED = 100  # messages named that a server refused
LIVE_PRICES = 48  # while a run goes on, what everybody has spent is priced only if it takes few prices
NOT_YET = "What is promised is not computed yet: the run has not come to its clients."
MODELS, GAPS = ("alone", "common", "own"), ("own_less_alone", "own_less_common")


def asset(name: str) -> str:
    """A file of the page."""
    return (resources.files("tacit.report") / "html" / name).read_text("utf-8")


def figure_scripts() -> list[str]:
    """The figures of the page: every script in html/figures/."""
    home = resources.files("tacit.report") / "html" / "figures"
    return sorted(f"figures/{one.name}" for one in home.iterdir() if one.name.endswith(".js"))


def run_page(files: RunFiles, *, since: int = 0, live: bool = False, quick: bool = False) -> dict[str, Any]:
    """Everything on the page of one run. With `live` no round is left out, and only those from `since` on are told; with `quick`
    what everybody has spent is left out of an unfinished run's page where it takes many prices."""
    summary, known, done = files.summary, files.clients or {}, len(files.rounds)
    up = accumulate(record["uplink_bytes"] for record in files.rounds)  # summed before a curve is thinned
    down = accumulate(record["downlink_bytes"] for record in files.rounds)
    totals = zip(files.rounds, up, down, strict=True)
    every = [record | {"uplink_total": sent, "downlink_total": received} for record, sent, received in totals]
    places = range(done) if live else shown_places([record["score"] is not None for record in every])
    promise, privacy = privacy_of(files, quick=quick)
    refusing = [(r["round"] + 1, r["refused"]) for r in files.rounds if isinstance(r.get("refused"), dict)]
    refused = [(number, str(name), str(why)) for number, each in refusing for name, why in each.items()]
    return {
        "kind": "run",
        "metric": metric_facts(files),
        "name": files.experiment.name,
        "folder": files.folder.resolve().name,
        "finished": summary is not None,
        "stopped": summary["stopped"] if summary else None,
        "planned": files.experiment.train.rounds,
        "done": done,
        "since": since,
        "thinned": 1 if live else -(-done // MOST_POINTS),
        "rounds": columns([every[i] for i in places if i >= since]),
        "stages": stages(files.rounds),
        "settings": settings(files.experiment),
        "guarantee": promise,
        "sentence": sentence_of(files, promise),
        "seeded": files.seeded,
        "known": bool(summary or known),
        "made": None if summary else f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        **privacy,
        "per_client": None if live else _per_client(files),
        "personal": None if live else personal(files),
        "labels": {key: known[key] for key in ("classes", "together")} | {"counts": known["labels"]}
        if known.get("labels")
        else None,
        "weights": weights(known),
        "refused": {"count": len(refused), "some": refused[:MOST_REFUSED]},
        "audit": None if live else files.audit,
        "central": bool(known.get("all_pay")),
        "final": facts(summary) if summary else {},
        "notes": list((summary or known).get("notes") or []),
        "not_better": not_better(summary) if summary else "",
    }


def weights(known: dict[str, Any]) -> dict[str, Any] | None:
    """Whose records count how much, from those drawn least often on: each client's share of all records and of a round's batch.
    None where all are drawn alike, or where there are other numbers than clients."""
    sizes, shares = known.get("records") or [], known.get("batch_shares") or []
    if not sizes or len(shares) != len(sizes) or not sum(sizes):
        return None
    all_, names = sum(sizes), map(str, known["names"])
    each = [(batch / max(1, n), n / all_, batch, name) for n, batch, name in zip(sizes, shares, names, strict=True)]
    each = sorted(each)[:: -(-len(each) // MOST_POINTS)]
    _, rows, batch, named = zip(*each, strict=True)
    return {"rows": [*map(short, rows)], "batch": [*map(short, batch)], "names": named}


def metric_facts(files: RunFiles) -> dict[str, Any]:
    """The metric that stands for a run, for the page: its name for people, whether it is a share of 1, and what is known of it."""
    known, summary = files.measured, files.summary or {}
    tested = [record["score"] for record in files.rounds if record["score"] is not None]  # of a run that goes on
    value, ends = measured(known)
    return {
        "name": metrics.words(files.metric),
        "share": metrics.is_share(files.metric),
        "value": short(tested[-1]) if "value" not in known and tested else value,
        "baseline": short(known.get("baseline")),
        "interval": ends or None,
        "all": [
            [metrics.words(key), *measured(one), short(one.get("baseline"))]
            for key, one in summary.get("metrics", {}).items()
        ],
        "confusion": summary.get("confusion"),
        "per_class": [
            [one["class"], one["rows"], *(measured(one[key]) for key in ("recall", "precision", "f1"))]
            for one in summary.get("per_class", [])
        ],
        "classes": (files.clients or {}).get("classes", []),
    }


def shown_places(tested: Sequence[bool]) -> list[int]:
    """Which rounds of a long run are drawn: evenly spaced ones, the last, and, where not all were tested, as many that were.

    >>> shown_places([False, True, False, True, False])
    [0, 1, 2, 3, 4]
    >>> places = shown_places([number % 10 == 9 for number in range(5000)])
    >>> len(places), 9 in places, 4999 in places
    (1500, True, True)
    """
    done, known = len(tested), [place for place, one in enumerate(tested) if one]
    found = {*range(0, done, -(-done // MOST_POINTS) or 1), *range(done)[-1:]}
    return sorted(found | {*known[:: -(-len(known) // MOST_POINTS) or 1]} if len(known) < done else found)


def measured(one: dict[str, Any] | None) -> list[Any]:
    """A value and the ends of its interval, for the page."""
    known = one or {}
    return [short(known.get("value")), [short(end) for end in known.get("interval") or ()]]


def _per_client(files: RunFiles) -> dict[str, Any] | None:
    """Clients from the one that the model serves worst to the one it serves best, where a run measured them."""
    found = files.per_client
    if found is None:
        return None
    each = zip(found["clients"], found["values"], found["intervals"], strict=True)
    known = [(value, name, ends or (value, value)) for name, value, ends in each if value is not None]
    known.sort(key=lambda one: one[0], reverse=files.measured.get("better") == "lower")
    known = known[:: -(-len(known) // MOST_POINTS) or 1]
    return {
        "metric": metrics.words(found["metric"]),
        "untold": sum(value is None for value in found["values"]),
        "kept": files.experiment.data.own_share is not None,
        "names": [name for _, name, _ in known],
        "values": [short(value) for value, _, _ in known],
        "low": [short(ends[0]) for *_, ends in known],
        "high": [short(ends[1]) for *_, ends in known],
    }


def personal(files: RunFiles) -> dict[str, Any] | None:
    """What every client got alone, from the common model and from its own, by its epsilon; where a run measured it."""
    found = files.personal
    if found is None:
        return None
    told = []
    for key, mean in found["metrics"].items():
        known = [one for one in found["clients"] if one["metrics"][key]]
        known.sort(key=lambda one: (one["epsilon"] is None, one["epsilon"] or 0.0, one["client"]))
        shown = known[:MOST_CLIENTS]
        told.append(
            {
                "metric": metrics.words(key),
                "share": metrics.is_share(key),
                "clients": [[one["client"], short(one["epsilon"]), one["trained_on"], one["rows"]] for one in shown],
                "models": [[measured(one["metrics"][key][model]) for model in MODELS] for one in shown],
                "means": [measured(mean[name]) for name in (*MODELS, *GAPS)] if known else [],
            }
        )
    return {
        "kind": found["kind"],
        "told": told,
        "untold": found["untold"],
        "seconds": short(found["adapt_seconds"]),
        "stay": found["stay_alone"],
        "use": [found["use"][model] for model in MODELS],
        "during": found.get("when") == "during",
        "promised": found.get("promised", True),
    }


def columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Every number of the records as a column under its name, so that a figure needs nothing but its script."""
    found: dict[str, list[Any]] = {"round": [record["round"] + 1 for record in records]}
    for key in dict.fromkeys(key for record in records for key in record if key != "round"):
        values = [short(record.get(key), up=key.startswith("epsilon")) for record in records]
        if any(value is not None for value in values):
            found[key] = values
    return found


def short(value: Any, *, up: bool = False) -> Any:
    """A number for the page: five digits, up where it is a promise; None for what is not a finite number.

    >>> short(0.123456), short(1.00001, up=True), short(float("inf")), short("x")
    (0.12346, 1.0001, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if up:
        return float(shown(value, digits=4))
    return value if isinstance(value, int) else float(f"{value:.5g}")


def stages(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds by stage over the whole run; empty for a run that did not measure them."""
    if not records or "seconds_train" not in records[0]:
        return {}
    return {stage: short(math.fsum(record.get(f"seconds_{stage}", 0.0) for record in records)) for stage in STAGES}


def settings(experiment: Experiment) -> list[list[Any]]:
    """Sections of [key, value as it stands in the file but without quotes, whether it is the default's], resolved."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) else dumps({"x": [value]}).strip()[len("x = [") : -1]

    usual = Experiment().model_dump()
    return [
        [name, [[key, text(one), (usual[name] or {}).get(key) == one] for key, one in table.items() if one is not None]]
        for name, table in experiment.model_dump().items()
        if isinstance(table, dict)
    ]


def privacy_of(files: RunFiles, *, quick: bool) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The promise with what was spent so far; and the curves, the table of clients, and who ran out of budget when."""
    promise, known, summary = files.guarantee, files.clients, files.summary
    names = [str(name) for name in known["names"]] if known else []
    curves, spent, taken, shared, last = list[dict[str, Any]](), None, None, {}, dict[str, int]()
    planned, out = files.experiment.train.rounds, {*(known or {}).get("opted_out", [])}
    if promise and known and files.ledger:
        charges = spending.read(
            files.ledger, run=files.run, unit=promise["unit"], planned=planned, delta=promise["delta"]
        )
        promised = [index for index in range(len(names)) if index not in out]
        each = [names[index] for index in promised], [known["limits"][index] for index in promised]
        curves = spending.groups(charges, *each, planned=planned, done=len(files.rounds))
        for curve in curves:
            curve["epsilon"] = [short(value, up=True) for value in curve["epsilon"]]
        spent, last = _spent(files, charges, names, quick=quick), {name: charges.last_round(name) for name in names}
        if summary is None and spent:
            ends = sorted(spent[index] - charges.before(names[index]) for index in promised)
            promise = promise | {"epsilon": {"min": ends[0], "median": ends[len(ends) // 2], "max": ends[-1]}}
        taken, shared = [charges.rounds(name) for name in names], {"shared": any(map(charges.before, names))}
    clients = None
    if known:
        total, sizes = len(names), sorted(known["records"])
        clients = shared | {"count": total, "records": [sizes[0], sizes[total // 2], sizes[-1]] if sizes else None}
        if total <= MOST_CLIENTS:
            prices = [None if k in out else short(value, up=True) for k, value in enumerate(spent)] if spent else None
            clients |= {
                "names": names,
                "sizes": known["records"],
                "limits": [NOTHING_PROMISED if k in out else limit for k, limit in enumerate(known["limits"])],
                "spent": prices,
                "taken": taken,
            }
    return promise, {"curves": curves, "clients": clients, "dropped": dropped(files.rounds, planned=planned, last=last)}


def dropped(records: Sequence[dict[str, Any]], *, planned: int, last: dict[str, int]) -> list[list[Any]]:
    """[first round missed, names] of clients that ran out of budget before the planned end. `last` is the last round that each
    was charged for; who never was could not pay for the first."""
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(str(name) for record in records for name in record.get("dropped") or []):
        if (missed := last.get(name, -1) + 2) <= planned:
            found.setdefault(missed, []).append(name)
    return [[missed, found[missed]] for missed in sorted(found)]


def _spent(files: RunFiles, charges: spending.Charges, names: list[str], *, quick: bool) -> list[float] | None:
    """What everybody spent: from an earlier page's notes if the ledger has not grown since, else priced."""
    path, mark = files.folder / "spent.json", [files.run, charges.total]
    if path.exists():
        try:
            noted = json.loads(path.read_text("utf-8"))
            if noted["mark"] == mark and len(noted["spent"]) == len(names):
                return [float(value) for value in noted["spent"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # notes that cannot be read are made again
    spent = spending.spent_by_all(charges, names, most=LIVE_PRICES if quick and files.summary is None else None)
    if spent and files.summary is not None and len(set(spent)) > LIVE_PRICES:
        store.write(path, json.dumps({"mark": mark, "spent": spent}).encode())
    return spent


def sentence_of(files: RunFiles, promise: dict[str, Any] | None) -> str:
    if files.summary:
        return files.summary["sentence"]
    if promise is None:
        return NOT_YET if files.clients is None and files.experiment.privacy.promises else sentence(None)
    spent = promise["epsilon"]
    fields = {key: value for key, value in promise.items() if key not in ("epsilon", "assumes")}
    ends = {f"epsilon_{key}": value for key, value in spent.items()}
    so_far = sentence(Guarantee(**fields, **ends, assumes=tuple(promise["assumes"])))
    if spent["max"]:
        return f"So far: {so_far}"
    unlimited = "; what each client has spent so far is below, and none can spend more than its own limit."
    return so_far.partition("; the epsilon spent")[0] + unlimited
