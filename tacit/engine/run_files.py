"""Reads a run's folder for people and pages: finished, unfinished, or refused in one sentence. Nothing is written."""

import json
import math
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.engine import history
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment

# What is read of a run's files: whatever was edited or cut off is told from what a run writes.

ACCURACY = "accuracy"  # stands for a run in folders of old
Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Spent = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class _Run(BaseModel):
    run: str


class _Measured(BaseModel):
    value: Finite
    interval: tuple[Finite, Finite] | None = None
    baseline: Finite | None = None


class _OfClass(BaseModel):
    name: str = Field(alias="class")
    rows: Count
    recall: _Measured | None
    precision: _Measured | None
    f1: _Measured | None


class _Range(BaseModel):  # None: without a bound
    min: float | None
    median: float | None
    max: float | None


class _Promise(BaseModel):
    unit: str
    adversary: str
    relation: str
    delta: Finite
    epsilon: _Range


class _Noised(BaseModel):
    value: Finite | None  # None: the noise hides it
    interval: tuple[Finite, Finite] | None


class _AtClients(BaseModel):
    unknown: str = ""
    metric: str = ""
    metrics: dict[str, _Noised] = {}
    rows: Count = 0
    answered: Count = 0
    clients: Count = 0

    @model_validator(mode="after")
    def _is_known_or_says_why_not(self) -> "_AtClients":
        found, said = self.metrics.get(self.metric), self.model_fields_set
        known = found is not None and found.value is not None and {"rows", "answered", "clients"} <= said
        if not known and "unknown" not in said:
            raise ValueError("neither is there a value nor is it said why not")
        return self


class _Ends(BaseModel):
    model_config = ConfigDict(extra="forbid")

    min: Spent
    median: Spent
    max: Spent


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")

    unit: Literal["record", "client"]
    adversary: str
    relation: str
    sampler: str
    accountant: str
    delta: Annotated[float, Field(gt=0, lt=1, strict=True)]
    epsilon: _Ends
    randomness: str
    assumes: list[str]
    whom: str = ""


class Known(BaseModel):
    """What a run writes down of its clients before its first round; folders of old lack some of it."""

    names: list[str | int]
    records: list[Count]
    limits: list[Finite | None]
    classes: list[str | int]
    labels: list[list[Count]]
    together: Count
    ledger: str | None = None
    guarantee: _Said | None = None
    notes: list[str] | None = None
    metric: str = ACCURACY

    @model_validator(mode="after")
    def _fits_together(self) -> "Known":
        count, columns = len(self.names), -(-len(self.names) // max(1, self.together))
        fits = len(self.records) == len(self.limits) == count and self.together >= 1
        wide = all(len(row) == len(self.classes) for row in self.labels)
        if not (fits and len(self.labels) in (0, columns) and wide):  # a deployment knows no labels
            raise ValueError("its lists do not fit together")
        return self


class _Query(BaseModel):
    share: Finite | None
    answered: Count
    clients: Count
    noise_std: tuple[Finite, Finite]


class _Attacked(BaseModel):
    kind: str
    malicious: list[str]
    backdoor_accuracy: Finite
    badge: str


class _Gap(BaseModel):
    value: Finite
    interval: tuple[Finite, Finite] | None


class _Together(BaseModel):
    rows: Count
    clients: Count
    alone: _Gap | None = None
    common: _Gap | None = None
    own: _Gap | None = None
    own_less_alone: _Gap | None = None
    own_less_common: _Gap | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "_Together":
        known = (self.alone, self.common, self.own, self.own_less_alone, self.own_less_common)
        if any(one is None for one in known) != (not self.clients):
            raise ValueError("some of the models are missing")
        return self


class _Own(BaseModel):
    metric: str
    metrics: dict[str, _Together]


class _Sites(BaseModel):
    epsilon: dict[str, Finite] = {}
    absent: dict[str, str] = {}


class Summary(BaseModel):
    """What a page reads of a summary."""

    model_config = ConfigDict(extra="allow")

    rounds: Count
    stopped: Literal["rounds", "budget"]
    clients: Count
    sentence: str
    seconds: Finite
    uplink_bytes: Count
    downlink_bytes: Count
    guarantee: _Promise | None
    noise_multiplier: _Range | None
    metric: str = ACCURACY
    metrics: dict[str, _Measured] = {}
    confusion: list[list[Count]] | None = None
    per_class: list[_OfClass] = []
    notes: list[str] = []
    at_clients: _AtClients = _AtClients(unknown="nobody was asked")
    queries: dict[str, _Query] = {}
    attack: _Attacked | None = None
    personal: _Own | None = None
    sites: _Sites = _Sites()

    @model_validator(mode="after")
    def _fits_together(self) -> "Summary":
        square, value = self.confusion or [], (self.__pydantic_extra__ or {}).get(f"test_{self.metric}", math.nan)
        tested = bool(self.metrics) or value is not None  # else there are no public rows
        priced = self.guarantee is None or self.noise_multiplier is not None
        if not priced or (tested and not _is_number(value)) or any(len(row) != len(square) for row in square):
            raise ValueError("its parts do not fit together")
        return self


class _Search(BaseModel):
    candidates: Count
    runs: str | int
    charged: str
    epsilon_of_one_run: float | None
    epsilon_of_the_best: float | None
    epsilon_composed: float | None


class Searched(BaseModel):
    """What a page reads of a search's best."""

    name: str
    metric: str
    metrics: dict[str, _Measured]
    confusion: list[list[Count]] | None = None
    per_class: list[_OfClass] = []
    settings: dict[str, object]
    search: _Search
    guarantee: _Promise | None
    sentence: str

    @model_validator(mode="after")
    def _fits_together(self) -> "Searched":
        square, classes = self.confusion or [], len(self.per_class)
        if len(square) not in (0, classes) or any(len(row) != classes for row in square):
            raise ValueError("the confusion matrix does not fit the classes")
        return self


class _Asked(BaseModel):
    round: Count
    over: bool
    answered: list[str]
    refused: dict[str, str]
    silent: dict[str, str]


class Standing(BaseModel):
    """What the server of a deployment says of itself; one of old names no sites."""

    state: Literal["waiting", "running", "finished", "failed"]
    text: str
    time: Finite
    sites: list[str] = []
    missing: list[str] = []
    asked: _Asked | None = None
    spent: dict[str, Finite] = {}


class _Spread(BaseModel):
    clients: Count
    mean: Finite
    std: Finite
    worst: Finite
    worst_tenth: Finite
    median: Finite
    best: Finite


class PerClient(BaseModel):
    """What a simulation measures on each client's own rows."""

    metric: str
    clients: list[str]
    values: list[Finite | None]
    intervals: list[tuple[Finite, Finite] | None]
    spread: _Spread | None

    @model_validator(mode="after")
    def _fits_together(self) -> "PerClient":
        if not len(self.clients) == len(self.values) == len(self.intervals):
            raise ValueError("its lists do not fit together")
        return self


class _AtHome(BaseModel):
    client: str
    rows: Count
    trained_on: Count
    epsilon: Finite | None
    metrics: dict[str, dict[Literal["alone", "common", "own"], _Gap] | None]


class OwnModels(BaseModel):
    """What a page reads of own models: of all clients together, and of each."""

    kind: str
    metric: str
    metrics: dict[str, _Together]
    untold: list[str]
    stay_alone: Count
    adapt_seconds: Finite
    clients: list[_AtHome]

    @model_validator(mode="after")
    def _is_told_of_everybody(self) -> "OwnModels":
        fits = all(set(one.metrics) == set(self.metrics) for one in self.clients)
        whole = all(found is None or len(found) == 3 for one in self.clients for found in one.metrics.values())
        if self.metric not in self.metrics or not fits or not whole:
            raise ValueError("the clients' metrics do not fit together")
        return self


class _AsRun(BaseModel):  # None is endless: without noise there is no epsilon
    epsilon: Finite | None
    low: Finite | None
    high: Finite | None


class _AuditedGroup(BaseModel):
    clients: Count
    canaries: Count
    promised: Finite
    no_assumption: Finite
    within_family: Finite
    measured: _AsRun
    rejected: str


class _Columns(BaseModel):
    @model_validator(mode="after")
    def _fit(self) -> Self:
        if len({len(column) for column in self.__dict__.values()}) != 1:
            raise ValueError("columns of different lengths")
        return self


class _Roc(_Columns):
    false: list[Finite]
    true: list[Finite]
    most: list[Finite]


class _Scores(_Columns):
    at: list[Finite]
    seen_in: list[Finite] = Field(alias="in")
    out: list[Finite]
    expected_in: list[Finite]
    expected_out: list[Finite]


class _ByRound(_Columns):
    round: list[Count]
    promised: list[Finite]
    measured: list[Finite]
    low: list[Finite]
    high: list[Finite]


class _AuditPictures(BaseModel):
    roc: _Roc
    scores: _Scores
    by_round: _ByRound
    layers: list[tuple[str, Finite, Finite, Finite]]


class Audited(BaseModel):
    """What a page reads of a run's audit."""

    looks: Count
    sentence: str
    rejected: bool
    delta: Finite
    groups: list[_AuditedGroup]
    pictures: list[_AuditPictures]


AUDIT = "audit.json"  # what the audit of a run found, and how often it was looked at
PERSONAL = "personal.json"  # what own models gave every client of a simulation
STATUS = "status.json"  # of a deployment: how far the server has come, and who has answered it
SEARCHED = "search"  # a key that only the best of a search (tacit/lab/tuning) has in its summary
NUMBERS = ("uplink_bytes", "downlink_bytes", "seconds")  # what every record has
MOST = 1 << 63  # a whole number beyond is none that a round counts, and perhaps no float
BY_A_RUN = "it lacks what a run writes there"


@dataclass(frozen=True)
class RunFiles:
    """What a folder says about its run; `summary` is None while it has not ended."""

    folder: Path
    experiment: Experiment = field(repr=False)
    run: str
    rounds: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] | None = field(repr=False)
    clients: dict[str, Any] | None = field(repr=False)
    metric: str = ACCURACY  # stands for the run, and for `score` in its rounds

    @property
    def measured(self) -> dict[str, Any]:
        """What is known of that metric: value, interval, baseline and direction; of a run that goes on, nothing."""
        return (self.summary or {}).get("metrics", {}).get(self.metric, {})

    @cached_property
    def per_client(self) -> dict[str, Any] | None:
        """The metric on each client's own rows, where a simulation was asked for it. Raises BadInput where it is damaged."""
        return _shaped(self.folder / history.NAME, PerClient)

    @cached_property
    def audit(self) -> dict[str, Any] | None:
        """What the audit of the run's canaries found, where somebody has looked. Raises BadInput where it is damaged."""
        return _shaped(self.folder / AUDIT, Audited, "audit the run again")

    @cached_property
    def personal(self) -> dict[str, Any] | None:
        """What own models gave every client, where a simulation was asked for them. Raises BadInput where it is damaged."""
        return _shaped(self.folder / PERSONAL, OwnModels)

    @cached_property
    def status(self) -> dict[str, Any] | None:
        """What the server of a deployment says of itself and its sites; None in a simulation. Raises BadInput where damaged."""
        return _shaped(self.folder / STATUS, Standing, "it lacks what a server writes there")

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
        is_file = f"{folder} is a file: name the folder of a run." if folder.is_file() else ""
        raise BadInput(is_file or f"There is no folder {folder}.")
    if not settings.exists():
        raise BadInput(f"{folder} holds no run and no comparison: name a folder that `tacit run` or `compare` wrote.")
    try:
        experiment = Experiment(**tomllib.loads(_text(settings)))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise BadInput(f"{settings} is damaged ({_one_line(error)}).") from None
    except TacitError as error:
        raise BadInput(f"{settings} cannot be used: {error}") from None
    path = folder / "summary.json"
    if SEARCHED in (_json(path) or {}):
        raise BadInput(
            f"{folder} is the best of a search, and has no rounds to show: its summary.json says what was found."
        )
    run, clients = _shaped(folder / "run.json", _Run) or {"run": ""}, _shaped(folder / "clients.json", Known)
    summary = _shaped(path, Summary)
    if summary and len(summary.get("confusion") or ()) not in (0, len((clients or {}).get("classes", ()))):
        raise BadInput(f"{path} is damaged: {BY_A_RUN}.")
    metric = str((summary or clients or {}).get("metric", ACCURACY))
    return RunFiles(folder, experiment, run["run"], _rounds(folder / "rounds.jsonl", metric), summary, clients, metric)


def promised(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder promised before it released anything; None where it has not said so, or the file is damaged."""
    try:
        found = (_json(folder / "clients.json") or {}).get("guarantee")
    except BadInput:
        return None
    said = ("unit", "relation", "adversary")
    return found if isinstance(found, dict) and all(isinstance(found.get(key), str) for key in said) else None


def _rounds(path: Path, metric: str) -> list[dict[str, Any]]:
    lines = _text(path).split("\n") if path.exists() else []
    ends = len(lines) - 1  # what follows the last line break is being written
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:ends], 1):
        try:
            record = json.loads(line)
            json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise BadInput(f"Line {number} of {path} is damaged.") from None
        if not _is_record(record, metric):
            raise BadInput(f"Line {number} of {path} is not the record of a round.")
        records.append(record | {"score": record.get(metric)})
    return records


def _is_record(record: Any, metric: str) -> bool:
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        return False
    needed = [record.get(key) for key in NUMBERS] + [record[key] for key in record if key.startswith("seconds")]
    needed += [
        record.get(key, 0.0) for key in (metric, "loss", "backdoor_accuracy")
    ]  # without public rows none is known
    large = any(isinstance(value, int) and abs(value) > MOST for value in record.values())
    return all(map(_is_number, needed)) and isinstance(record.get("dropped", []), list) and not large


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number of a thousand digits
        return False


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(_text(path))
        json.dumps(found, ensure_ascii=False).encode()  # half of a character is none that a page could have
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged ({_one_line(error)}).") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged: {BY_A_RUN}.")
    return found


def _shaped(path: Path, shape: type[BaseModel], why: str = BY_A_RUN) -> dict[str, Any] | None:
    """A file's table as it is, where there is one of this shape. Raises BadInput for another."""
    found = _json(path)
    try:
        _ = None if found is None else shape(**found)
    except (ValidationError, TypeError):
        raise BadInput(f"{path} is damaged: {why}.") from None
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({_one_line(error)}).") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
