"""`tacit statement`: what a run, a search's best or a site promises, for a registry: a JSON file, and one page to print and sign.

Every word of the promise is the guarantee's own (`privacy/guarantee.py`), every epsilon the ledger's. The fields of `registry` are
those of the OpenDP deployment registry (arXiv:2509.13509), those of `evaluation` are after the layers of NIST SP 800-226. What
Tacit cannot know is said to be not covered, and nothing is left blank."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tacit
from tacit import store
from tacit.check import many, printable
from tacit.engine.run_files import RunFiles, intact, read, table
from tacit.engine.run_folder import COMPARISON, SEARCH, read_table
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.compare.grid import GRID
from tacit.privacy.accounting import events, price
from tacit.privacy.guarantee import SEEDED, UNPROTECTED
from tacit.privacy.ledger import reader
from tacit.report import spending
from tacit.report.closing import promise_lines
from tacit.report.collect import privacy_of, sentence_of
from tacit.report.overlay import FEDERATION
from tacit.report.page import BEGINS, BEST, is_search, results_of, search_page
from tacit.report.statement_page import MOST_TEXT, bound, page
from tacit.types import Budget

FORMAT = "tacit statement 1"
JSON, PAGE = "statement.json", "statement.html"
UNKNOWN = "not covered: Tacit does not know it, and whoever publishes says it here"
RULE = "basic composition of what each has sealed, arXiv:1605.08294"
DEPLOYED = "this run, by the server's account: what each site has sealed in all is in its own ledger"
SEARCHED = "this search, of which one run is released"
NO_AUDIT = "not covered: no audit was made"
NOTHING = "no privacy is promised"
NONE_KNOWN = "its noise is in the ledger's events"
POST = "whatever is computed from what clients have released costs nothing more: rules, averages, evaluation on public rows"
TUNED = (
    "settings, their tuning included, are public: whatever they were chosen by on protected rows must be in the ledger"
)
MODELS = {"local": "Local", "central": "Central", "distributed": "Distributed", "none": NOTHING}
Promise = Mapping[str, Any]  # what `Guarantee.record` says


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a statement is made of: the record of a guarantee with its sentence, what speaks `against` a release, what every client
    has spent in this run, and a row for each unit of the ledger."""

    name: str
    what: str
    run: str
    promise: Promise | None
    sentence: str
    experiment: Experiment | None
    noise: str = NONE_KNOWN
    against: Sequence[str] = ()
    covers: str = "this run"
    clients: Sequence[dict[str, Any]] = ()
    ledger: Sequence[dict[str, Any]] = ()
    audit: str = NO_AUDIT
    utility: str = UNKNOWN
    version: str = tacit.__version__


def of_folder(folder: Path) -> Stated:
    """The statement of a run, also of a federation's, or of a search's best. Raises: BadInput or LedgerError in one sentence."""
    place = results_of(folder)
    if (place / GRID.file).exists():
        raise BadInput(
            f"{place} is a comparison, and each of its runs has its own promise: name one, as in {place}/runs/*/seed-0."
        )
    with intact(place):
        return _of_search(place) if is_search(place) else _of_run(place, deployed=(folder / FEDERATION).is_file())


def _of_run(folder: Path, *, deployed: bool) -> Stated:
    files = read(folder)
    if files.clients is None and files.summary is None:
        raise BadInput(
            f"{folder} holds a model alone, or a run that has not come to its clients: nothing is promised yet."
        )
    promise, summary = privacy_of(files, quick=False)[0], files.summary or {}
    state = "has not ended" if not summary else "has ended"
    state += f" ({len(files.rounds)} of {files.experiment.train.rounds} rounds)"
    deployed = deployed or files.status is not None
    z, audit = summary.get("noise_multiplier"), files.audit
    clients, kinds = _spent(files, promise) if promise else ([], NONE_KNOWN)
    return Stated(
        name=files.experiment.name,
        what=f"a {'deployed ' * deployed}run, which {state}",
        run=files.run,
        promise=promise,
        sentence=sentence_of(files, promise),
        experiment=files.experiment,
        noise=kinds + (f", noise multiplier {z['min']:.4g} to {z['max']:.4g} over the clients" if z else ""),
        against=_against(promise, files.experiment)
        + ["it has not ended, and what is said here is so far"] * (not summary)
        + ([f"an audit rejects what is promised: {audit['sentence']}"] if audit and audit["rejected"] else [])
        + ["malicious clients were simulated"] * bool(summary.get("attack"))
        + _one_of_several(folder, files.experiment),
        covers=DEPLOYED if deployed else Stated.covers,
        clients=clients,
        ledger=sums(files.ledger) if promise and files.ledger else (),
        audit=f"{audit['sentence']} The canaries were looked at {audit['looks']} times." if audit else NO_AUDIT,
        utility=_utility(summary),
        version=str(summary.get("version", tacit.__version__)),
    )


def _spent(files: RunFiles, promise: Promise) -> tuple[list[dict[str, Any]], str]:
    """What every client has spent in this run alone, and the kinds of events that it was charged for."""
    known, path, delta = files.clients, files.ledger, promise["delta"]
    if known is None or path is None:
        return [], NONE_KNOWN
    names, planned = [str(name) for name in known["names"]], files.experiment.train.rounds
    charges = replace(spending.read(path, run=files.run, unit=promise["unit"], planned=planned, delta=delta), sealed={})
    rows = zip(names, spending.spent_by_all(charges, names) or [], known["limits"], strict=True)
    used = {price.counted(charges.events[key])[0] for buckets in charges.own.values() for key in buckets}
    kinds = ", ".join(sorted({events.kind_of(event).name for event in used})) or "nothing yet"
    clients = [
        # without a limit and never charged: nothing was promised to it
        {"name": name, "epsilon": spent if spent or most is not None else None, "delta": delta, "limit": most}
        for name, spent, most in rows
    ]
    return clients, f"released: {kinds}"


def _of_search(folder: Path) -> Stated:
    found = search_page(folder)
    home = folder if (folder / SEARCH).is_file() else folder.parent
    ledger = home / str(read_table(home / SEARCH).get("ledger", "ledger.db"))
    best = folder / BEST if (folder / BEST).is_dir() else folder
    experiment, summary = Experiment.load(best / "experiment.toml"), table(best / "summary.json") or {}
    return Stated(
        name=found["name"],
        what=f"the best of a search of {found['runs']} runs, all of which are paid for",
        run=str(read_table(home / SEARCH).get("run", UNKNOWN)),
        promise=found["guarantee"],
        sentence=found["sentence"],
        experiment=experiment,
        against=_against(found["guarantee"], experiment),
        covers=SEARCHED,
        ledger=sums(ledger) if ledger.is_file() else (),
        utility=_utility(summary),
        version=str(summary.get("version", tacit.__version__)),
    )


def _against(promise: Promise | None, experiment: Experiment | None) -> list[str]:
    """What speaks against a release, whatever else is known."""
    seeded = experiment is not None and experiment.run.randomness == "seeded"
    return [NOTHING] if promise is None else [f"noise is drawn from {SEEDED}"] * seeded


def _one_of_several(folder: Path, experiment: Experiment) -> list[str]:
    """What speaks against one run of several over the same records: which one is released can follow from all of them."""
    above, what = folder.absolute().parents, ""
    if len(above) > 1 and (above[1] / SEARCH).is_file():
        what = "search; the statement of the search is about all of them"
    elif len(above) > 2 and (above[2] / COMPARISON).is_file() and experiment.privacy.ledger is None:
        what = "comparison; name a privacy.ledger and it adds them up" if len([*above[1].glob("*/seed-*")]) > 1 else ""
    return [f"this epsilon leaves out the other runs of its {what}"] if what else []


def _utility(summary: Mapping[str, Any]) -> str:
    name = str(summary.get("metric"))
    known = (summary.get("metrics") or {}).get(name) or {}
    if known.get("value") is None:
        return UNKNOWN
    interval = known.get("interval")
    ends = " ({:.4f} to {:.4f}, 95 % over test rows)".format(*interval) if interval else " on test rows"
    own = "".join(
        f"; {text}" for text in (summary.get("guarantee") or {}).get("assumes", ()) if text.endswith(UNPROTECTED)
    )
    return f"{name} {known['value']:.4f}{ends}{own}"


def sums(ledger: Path, limit: Budget | None = None) -> list[dict[str, Any]]:
    """What runs and other releases have sealed in a ledger, a row per unit, which are never added: for the client that has sealed
    most, or with a `limit` at one site, all of whose ledger is about the same rows. Raises: LedgerError, BadInput."""
    accounts = reader.accounts(ledger) if ledger.stat().st_size else []
    most: dict[str, list[tuple[float, float]]] = {limit.unit: [(0.0, 0.0)]} if limit else {}
    totals = reader.totals(accounts).items()
    for unit, both in reader.at_one_site(accounts).items() if limit else ((unit, both) for (_, unit), both in totals):
        most.setdefault(unit, []).append(both)
    rows = []
    for unit, known in sorted(most.items()):
        epsilon, delta = (max(both[end] for both in known) for end in (0, 1))
        runs = {one.run: one.purpose for one in accounts if one.unit == unit}
        own = limit if limit and limit.unit == unit else None
        rows.append(
            {"unit": unit, "epsilon": epsilon, "delta": delta, "runs": list(runs.values()).count("")}
            | {"releases": [purpose for purpose in runs.values() if purpose]}
            | {"limit": {"epsilon": own.epsilon, "delta": own.delta} if own else None}
        )
    return rows


# The record.


def record(stated: Stated) -> dict[str, Any]:
    """The statement as plain values, as docs/assets/statement.schema.json has them; JSON knows no infinity, so an epsilon without a
    bound is null."""
    promise, versions = stated.promise, {"tacit": stated.version, "dp-accounting": version("dp-accounting")}
    return _finite(
        {
            "format": FORMAT,
            "name": printable(stated.name),
            "of": stated.what,
            "run": stated.run,
            "release": {"allowed": not stated.against, "why_not": list(stated.against)},
            "sentence": stated.sentence,
            "guarantee": promise,
            "promised": lines(stated),
            "clients": list(stated.clients),
            "mechanism": mechanism(stated),
            "accounting": {
                "accountant": (promise or {}).get("accountant", NOTHING),
                "versions": versions,
                "composition": RULE,
            },
            "ledger": list(stated.ledger),
            "audit": stated.audit,
            "randomness": (promise or {}).get("randomness", NOTHING),
            "assumptions": list((promise or {}).get("assumes", [])),
            "registry": {"deployment": registry(stated)},
            "evaluation": [{"heading": heading, "text": text} for heading, text in evaluation(stated)],
        }
    )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, str):
        return printable(value, MOST_TEXT)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lines(stated: Stated) -> dict[str, str]:
    """The promise as people read it after a run (`closing.promise_lines`), for whom and of what it is here."""
    if stated.promise is None:
        return {"promise": NOTHING}
    (_, most), (_, _), *rest = promise_lines(dict(stated.promise))
    return {f"for {stated.promise.get('whom', 'every client')}": most, "spent in": stated.covers, **dict(rest)}


def mechanism(stated: Stated) -> str:
    if stated.promise is None:
        return NOTHING
    kind = ""
    if stated.experiment is not None:
        protect = stated.experiment.protect.kind
        kind = f"{stated.experiment.privacy.kind} differential privacy{f', in sums under {protect}' * (protect != 'none')}: "
    return f"{kind}{stated.promise['sampler']}; {stated.noise}"


def registry(stated: Stated) -> dict[str, Any]:
    """The fields of the OpenDP deployment registry, by its names (its data as of 2026, tier 3)."""
    promise, experiment = stated.promise or {}, stated.experiment
    spent = (promise.get("epsilon") or {}).get("max")
    public = [text for text in promise.get("assumes", []) if "public" in text or text.endswith(UNPROTECTED)]
    relation = promise.get("relation", NOTHING)
    kind = experiment.privacy.kind if experiment else ""
    also = "; ".join(str(one["adversary"]) for one in promise.get("also", []))
    return {
        "product": {
            "name": stated.name,
            "description": f"{stated.what[:1].upper()}{stated.what[1:]}, of Tacit {stated.version}",
            "data_product_type": "Machine learning model",
            **dict.fromkeys(("data_curators", "intended_use", "data_product_region"), UNKNOWN),
            **dict.fromkeys(("data_product_sector", "publication_date"), UNKNOWN),
        },
        "dp_flavor": {
            "name": "Approximate DP" if promise else NOTHING,
            "input_metric": relation,
            "bound_on_input_distance": f"1 {promise['unit']}" if promise else NOTHING,
            "output_measure": "hockey-stick divergence" if promise else NOTHING,
            "bound_on_output_distance": bound(spent, promise["delta"]) if promise else NOTHING,
            "data_domain": UNKNOWN,
            "unprotected_quantities": "; ".join(public) or NOTHING,
        },
        "privacy_loss": {
            "privacy_unit": f"{promise['unit']}-level" if promise else NOTHING,
            "privacy_unit_description": relation,
            "privacy_parameters": {"epsilon": spent, "delta": promise.get("delta")},
            "privacy_parameters_description": stated.sentence,
        },
        "model": {
            "model_name": MODELS.get(kind, UNKNOWN),
            "model_name_description": promise.get("sampler", NOTHING),
            "actors": f"protected from {promise['adversary']}{f'; said apart: {also}' * bool(also)}"
            if promise
            else NOTHING,
            "release_type": "One release" if stated.covers == SEARCHED else "Many releases",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {"post_processing": POST, "composition": _together(stated) if promise else NOTHING},
        "implementation": {
            "pre_processing_eda_hyperparameter_tuning": TUNED,
            "mechanisms": mechanism(stated),
            "justification": UNKNOWN,
        },
        "resources": {"sources": UNKNOWN, "registry_authors": UNKNOWN},
    }


def _together(stated: Stated) -> str:
    rows = [
        f"{bound(one['epsilon'], one['delta'])} per {one['unit']} in all, of {many(one['runs'], 'run')} and"
        f" {many(len(one['releases']), 'other release')}"
        for one in stated.ledger
    ]
    return f"{'; '.join(rows) or 'the ledger is not here'} ({RULE})"


def evaluation(stated: Stated) -> Iterator[tuple[str, str]]:
    """The layers of NIST SP 800-226, from the numbers down to the data, each with what is known of it."""
    promise, known = stated.promise, lines(stated)
    yield "Privacy parameters", next(iter(known.values()))
    yield "Unit of privacy", f"{promise['unit']}: {promise['relation']}" if promise else NOTHING
    yield "Other releases of the same data", _together(stated) if promise else NOTHING
    yield "Algorithms", mechanism(stated)
    yield "Accounting", known.get("by", NOTHING)
    yield "Utility", stated.utility
    yield "Bias", "not covered: no promise is made about groups; the report of a run has results by class and by client"
    yield "Query model", "fixed beforehand: rounds, queries and their prices are sealed before the first release"
    yield (
        "Trust model",
        "; ".join(f"{key} {text}" for key, text in known.items() if key.startswith("against")) or NOTHING,
    )
    yield (
        "Implementation and side channels",
        f"noise from {known.get('noise from', 'nowhere')}; not covered: timing, memory, power",
    )
    yield "Data security and access control", "not covered: whoever runs a client's machine keeps its rows"
    yield "Data collection and exposure", "not covered: how rows were collected, and who else holds them"


# The files.


def write(folder: Path, stated: Stated) -> tuple[Path, Path]:
    """Writes both files into the folder. Raises: BadInput where another file is in the way or they cannot be written."""
    found, place = record(stated), results_of(folder)
    files = (place / JSON, json.dumps(found, indent=2).encode(), b"{"), (place / PAGE, page(found).encode(), BEGINS)
    for path, _, begins in files:
        store.refuse_foreign(path, begins=begins)
    for path, content, _ in files:
        try:
            store.write(path, content)
        except OSError as error:
            raise BadInput(
                f"{path} cannot be written ({error.strerror}): make room, or close who has it open."
            ) from None
    return place / JSON, place / PAGE
