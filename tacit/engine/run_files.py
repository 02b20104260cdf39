"""Reads a run's folder for people and pages: finished, unfinished, or refused in one sentence. Nothing is written."""

import json
import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from tacit.engine.history import PER_CLIENT
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.types import Unit

AUDIT = "audit.json"  # what the audit of a run found, and how often it was looked at
PERSONAL = "personal.json"  # what own models gave every client of a simulation
STATUS = "status.json"  # of a deployment: how far the server has come, and who has answered it
SEARCHED = "search"  # a key that only the best of a search (tacit/lab/tuning) has in its summary
ACCURACY = "accuracy"  # stands for a run that names no metric
BY_A_RUN = "it lacks what a run writes there"
MOST = 1 << 63  # a whole number beyond is none that a round counts, and perhaps no float
ODD = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
Shape = Any  # a type, a test, a tuple of texts, [items], {str: values}, or a table by key, where "key?" may be missing or null


@contextmanager
def intact(what: Path | str) -> Iterator[None]:
    """Within the block whatever is missing or odd in what was read from there is refused in one sentence. Raises BadInput."""
    try:
        yield
    except TacitError:
        raise
    except ODD as error:
        raise BadInput(f"{what} is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}).") from None


def fits(value: Any, shape: Shape) -> bool:
    """Whether a value has a shape; of a key that the shape does not name nothing is asked.

    >>> fits({"rows": 3, "more": "x"}, {"rows": is_number, "note?": str}), fits({"rows": True}, {"rows": is_number})
    (True, False)
    """
    if isinstance(shape, tuple):
        return isinstance(value, str) and value in shape
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, dict) and isinstance(value, dict) and str in shape:
        return all(fits(item, shape[str]) for item in value.values())
    if isinstance(shape, dict):
        for key, inner in shape.items() if isinstance(value, dict) else ():
            name = key.removesuffix("?")
            if not ((name != key and value.get(name) is None) or (name in value and fits(value[name], inner))):
                return False
        return isinstance(value, dict)
    return isinstance(value, shape) if isinstance(shape, type | UnionType) else shape(value)


def is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of a thousand digits
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def _columns(*names: str) -> Callable[[Any], bool]:
    """Lists of numbers of one length, by these names."""
    shape = {name: [is_number] for name in names}
    return lambda table: fits(table, shape) and len({len(table[name]) for name in names}) == 1


def _or_none(shape: Shape) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value, shape)


MEASURED = {"value": is_number, "interval?": _is_pair, "baseline?": is_number}
OF_CLASS = {"class": str, "rows": _is_count, **dict.fromkeys(("recall", "precision", "f1"), _or_none(MEASURED))}
RANGE = dict.fromkeys(("min", "median", "max"), _or_none(lambda end: type(end) in (int, float)))  # None: no bound
PROMISE = {"unit": get_args(Unit), "adversary": str, "relation": str, "delta": is_number, "epsilon": RANGE}
OWN_MODELS = {"metric": str, "metrics": {str: {"rows": _is_count, "clients": _is_count}}}
BEST = {"metric": str, "metrics": {str: MEASURED}, "confusion?": [[_is_count]], "per_class?": [OF_CLASS]}
SUMMARY = BEST | {
    "rounds": _is_count,
    "stopped": ("rounds", "budget"),
    "clients": _is_count,
    "sentence": str,
    "seconds": is_number,
    "uplink_bytes": _is_count,
    "downlink_bytes": _is_count,
    "guarantee": _or_none(PROMISE),
    "noise_multiplier": _or_none(RANGE),
    "notes?": [str],
    "at_clients?": {"metrics?": {str: {"value": _or_none(is_number), "interval": _or_none(_is_pair)}}, "unknown?": str},
    "queries?": {
        str: {"share": _or_none(is_number), "answered": _is_count, "clients": _is_count, "noise_std": _is_pair}
    },
    "attack?": {"kind": str, "malicious": [str], "backdoor_accuracy": is_number, "badge": str},
    "personal?": OWN_MODELS,
    "sites?": {"epsilon?": {str: is_number}, "absent?": {str: str}},
}
SEARCHES = {"candidates": _is_count, "runs": _is_count, "epsilon_of_one_run": is_number}
SEARCHED_BEST = BEST | {
    "name": str,
    "settings": dict,
    SEARCHED: SEARCHES,
    "guarantee": _or_none(PROMISE),
    "sentence": str,
}
CLIENTS = {
    "names": [str | int],
    "records": [_is_count],
    "limits": [_or_none(is_number)],
    "classes": [str | int],
    "labels": [[_is_count]],
    "together": _is_count,
    "batch_shares?": [is_number],
    "opted_out?": [_is_count],
    "ledger?": str,
    "guarantee?": PROMISE
    | {"epsilon": dict.fromkeys(RANGE, lambda end: is_number(end) and end >= 0)}
    | {"delta": lambda delta: is_number(delta) and 0 < delta < 1}
    | {"sampler": str, "accountant": str, "randomness": str, "assumes": [str], "whom?": str},
    "notes?": [str],
    "metric?": str,
}
ASKED = {"round": _is_count, "over": bool, "answered": [str], "refused": {str: str}, "silent": {str: str}}
STANDING = {
    "state": ("waiting", "running", "finished", "failed"),
    "text": str,
    "time": is_number,
    "sites?": [str],
    "missing?": [str],
    "asked?": ASKED,
    "spent?": {str: is_number},
}
SPREAD = {"clients": _is_count, **dict.fromkeys(("mean", "std", "worst", "worst_tenth", "median", "best"), is_number)}
CLIENT_SHAPE = {
    "metric": str,
    "clients": [str],
    "values": [_or_none(is_number)],
    "intervals": [_or_none(_is_pair)],
    "spread": _or_none(SPREAD),
}
PERSONAL_MODELS = OWN_MODELS | {"kind": str, "untold": [str], "adapt_seconds": is_number, "clients": [{"client": str}]}
OF_GROUP = dict.fromkeys(("promised", "no_assumption", "within_family"), is_number) | {
    "clients": _is_count,
    "canaries": _is_count,
    "measured": dict.fromkeys(
        ("epsilon", "low", "high"), _or_none(is_number)
    ),  # None: without noise there is no epsilon
    "rejected": str,
}
PICTURES = {
    "roc": _columns("false", "true", "most"),
    "scores": _columns("at", "in", "out", "expected_in", "expected_out"),
    "by_round": _columns("round", "promised", "measured", "low", "high"),
    "layers": [
        lambda row: isinstance(row, list) and len(row) == 4 and fits(row[:1], [str]) and fits(row[1:], [is_number])
    ],
}
AUDITED = {
    "looks": _is_count,
    "sentence": str,
    "rejected": bool,
    "delta": is_number,
    "groups": [OF_GROUP],
    "pictures": [PICTURES],
}
ROUND = {  # of what there are no public rows for, nothing is known
    "round": lambda round: type(round) is int,
    **dict.fromkeys(("uplink_bytes", "downlink_bytes", "seconds"), is_number),
    "dropped?": list,
}


@dataclass(frozen=True)
class RunFiles:
    """What a folder says about its run; `summary` is None while it has not ended. Raises BadInput for a file that is damaged."""

    folder: Path
    experiment: Experiment = field(repr=False)
    run: str
    rounds: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] | None = field(repr=False)
    clients: dict[str, Any] | None = field(repr=False)
    metric: str = ACCURACY  # stands for the run, and for `score` in its rounds

    @property
    def measured(self) -> dict[str, Any]:
        return (self.summary or {}).get("metrics", {}).get(self.metric, {})

    @cached_property
    def per_client(self) -> dict[str, Any] | None:
        return table(self.folder / PER_CLIENT, CLIENT_SHAPE)

    @cached_property
    def audit(self) -> dict[str, Any] | None:
        return table(self.folder / AUDIT, AUDITED, "audit the run again")

    @cached_property
    def personal(self) -> dict[str, Any] | None:
        return table(self.folder / PERSONAL, PERSONAL_MODELS)

    @cached_property
    def status(self) -> dict[str, Any] | None:
        return table(self.folder / STATUS, STANDING, "it lacks what a server writes there")

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """What is promised, with what was spent where the run has ended."""
        return self.summary.get("guarantee") if self.summary else (self.clients or {}).get("guarantee")

    @property
    def seeded(self) -> bool:
        """Whether something is promised by noise that whoever knows the seed can take away."""
        return self.guarantee is not None and self.experiment.run.randomness == "seeded"

    @cached_property
    def ledger(self) -> Path | None:
        """The file that says what was spent. Raises BadInput if there should be one and is not."""
        if not self.guarantee:
            return None
        path = self.folder / ((self.clients or {}).get("ledger") or self.experiment.privacy.ledger or "ledger.db")
        if not path.is_file():
            raise BadInput(f"{path} is missing, so nobody can say what was spent: put the ledger back.")
        return path


def read(folder: Path) -> RunFiles:
    """The run in a folder. Raises BadInput in one sentence where there is none, or a file of it is damaged."""
    settings = folder / "experiment.toml"
    if not folder.is_dir():
        is_file = folder.is_file()
        raise BadInput(f"{folder} is a file: name the folder of a run." if is_file else f"There is no folder {folder}.")
    if not settings.exists():
        raise BadInput(f"{folder} holds no run and no comparison: name a folder that `tacit run` or `compare` wrote.")
    try:
        with intact(settings):
            experiment = Experiment(**tomllib.loads(_text(settings)))
    except TacitError as error:
        raise BadInput(f"{settings} cannot be used: {error}") from None
    path, run = folder / "summary.json", table(folder / "run.json", {"run": str}) or {"run": ""}
    if SEARCHED in (table(path) or {}):
        raise BadInput(
            f"{folder} is the best of a search, and has no rounds to show: its summary.json says what was found."
        )
    clients, summary = table(folder / "clients.json", CLIENTS), table(path, SUMMARY)
    metric = str((summary or clients or {}).get("metric", ACCURACY))
    for file, agree in ((folder / "clients.json", _agreeing(clients)), (path, _told_apart(summary, clients, metric))):
        if not agree:
            raise BadInput(f"{file} is damaged: {BY_A_RUN}.")
    return RunFiles(folder, experiment, run["run"], _rounds(folder / "rounds.jsonl", metric), summary, clients, metric)


def _agreeing(clients: dict[str, Any] | None) -> bool:
    if clients is None:
        return True
    count, labels, together = len(clients["names"]), clients["labels"], clients["together"]
    fits_all = len(clients["records"]) == len(clients["limits"]) == count and together >= 1
    wide = all(len(row) == len(clients["classes"]) for row in labels)
    return fits_all and wide and (not labels or len(labels) == -(-count // together))  # a deployment knows no labels


def _told_apart(summary: dict[str, Any] | None, clients: dict[str, Any] | None, metric: str) -> bool:
    if summary is None:
        return True
    square, asked = summary.get("confusion") or [], summary.get("at_clients", {"unknown": ""})
    value, of_clients = summary.get(f"test_{metric}", math.nan), (asked.get("metrics") or {}).get(asked.get("metric"))
    tested = bool(summary.get("metrics")) or value is not None  # else there are no public rows
    priced = summary["guarantee"] is None or summary["noise_multiplier"] is not None
    known = bool(of_clients) and of_clients["value"] is not None and {"rows", "answered", "clients"} <= asked.keys()
    sizes = {len(row) for row in square} | ({len(square), len((clients or {}).get("classes", ()))} if square else set())
    return priced and (known or "unknown" in asked) and (not tested or is_number(value)) and len(sizes) <= 1


def promised(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder promised before it released anything; None where it has not said so, or the file is damaged."""
    try:
        found = (table(folder / "clients.json") or {}).get("guarantee")
    except BadInput:
        return None
    return found if fits(found, {"unit": str, "relation": str, "adversary": str}) else None


def _rounds(path: Path, metric: str) -> list[dict[str, Any]]:
    lines = _text(path).split("\n") if path.exists() else []
    shape = ROUND | dict.fromkeys((f"{metric}?", "loss?", "backdoor_accuracy?"), is_number)
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line break is being written
        record = _json(line, f"Line {number} of {path}")
        seconds = (
            [value for key, value in record.items() if key.startswith("seconds")] if fits(record, shape) else [None]
        )
        if not all(map(is_number, seconds)) or any(isinstance(one, int) and abs(one) > MOST for one in record.values()):
            raise BadInput(f"Line {number} of {path} is not the record of a round.")
        records.append(record | {"score": record.get(metric)})
    return records


def table(path: Path, shape: Shape = dict, why: str = BY_A_RUN) -> dict[str, Any] | None:
    """A file's table, where there is one. Raises BadInput where it is damaged, or of another shape."""
    if not path.exists():
        return None
    found = _json(_text(path), path)
    if not isinstance(found, dict) or not fits(found, shape):
        raise BadInput(f"{path} is damaged: {why}.")
    return found


def _json(text: str, what: Path | str) -> Any:
    with intact(what):
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # half of a character is none that a page could have
        return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({' '.join(str(error).split())}).") from None
