"""What a page and a table read of a run's files: whatever was edited or cut off is told from what a run writes."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ACCURACY = "accuracy"  # stands for a run in folders of old
Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Spent = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


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


class _Range(BaseModel):
    min: float | None  # None: without a bound
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
    """What held-out rows say of a model: everything, or `unknown` says why not."""

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
    """A promise before anything is spent: every word of it stands in the sentence of a page."""

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
    """What clients got on average: everything, or nothing where no client's rows can tell."""

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
    """What a page reads of a summary; folders of old have neither `metric` nor what was added with it."""

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
    spread: _Spread | None = None  # folders of old have none


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
