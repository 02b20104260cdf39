"""One experiment as one frozen, validated object; the TOML file is its text. Every key has a default.

Unknown keys and impossible combinations are refused in one sentence that names the key and the nearest valid one.
"""

import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit import check
from tacit.combinations import refuse_impossible
from tacit.data.section import DataSection
from tacit.errors import BadInput
from tacit.toml import dumps, parse_value

ADAPTIVE_START = 0.1  # the first clip of arXiv:1905.03871, from which it grows
LARGEST_RATE = 3.4e38  # what float32 can hold
Epsilon = float | tuple[float, ...] | str | dict[str, float] | dict[str, str]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool):
                raise BadInput(f"Expected {key} to be a text or a number, got {str(value).lower()}.")
        return values

    @model_validator(mode="after")
    def _refuse_impossible(self) -> "_Section":
        self.possible()
        return self

    def possible(self) -> None:
        """Raises BadInput for values that cannot stand together."""

    def refuse_both(self, section: str, one: str, other: str) -> None:
        """Refuses two keys of which only one can rule."""
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise BadInput(f"{section}.{one} and {section}.{other} say the same thing twice: set one of them.")


class ModelSection(_Section):
    """`[model]`: a built-in model, or any torch factory as "package.module:function"."""

    name: str = "logr"


class TrainSection(_Section):
    """`[train]`: the round and what a client does in it. Without `clients_per_round` all clients take part.

    Unless said otherwise a client takes 10 local steps, on batches of 32 expected examples. `averaging` = 0.9 makes the result a
    running mean of the models of the last rounds, out of which single rounds' noise averages.
    """

    rounds: int = 30
    clients_per_round: int | None = None
    min_clients: int = 1
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = None
    sampling_rate: float | None = None
    learning_rate: float = 0.5
    server_learning_rate: float = 1.0
    averaging: float = 0.0
    server_optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    server_momentum: float | None = None
    server_adaptivity: float | None = None
    sampler: Literal["poisson", "fixed"] | None = None
    physical_batch: int = 256

    def possible(self) -> None:
        self._possible_server()
        self.refuse_both("train", "local_steps", "local_epochs")
        self.refuse_both("train", "batch_size", "sampling_rate")
        for key in (
            "rounds",
            "min_clients",
            "batch_size",
            "physical_batch",
            "clients_per_round",
            "local_steps",
            "local_epochs",
        ):
            if getattr(self, key) is not None:
                check.at_least(1, **{f"train.{key}": getattr(self, key)})
        check.positive(**{"train.learning_rate": self.learning_rate})
        check.positive(**{"train.server_learning_rate": self.server_learning_rate})
        for key in ("learning_rate", "server_learning_rate"):
            if getattr(self, key) > LARGEST_RATE:
                raise BadInput(f"Expected train.{key} <= {LARGEST_RATE:g}, got {getattr(self, key)!r}.")
        if not 0 <= self.averaging < 1:
            raise BadInput(f"Expected 0 <= train.averaging < 1, got {self.averaging!r}.")
        if self.sampling_rate is not None:
            check.rate(**{"train.sampling_rate": self.sampling_rate})

    def _possible_server(self) -> None:
        """The keys of an optimiser are refused where it has none of them."""
        if self.server_momentum is not None:
            check.at_least(0, **{"train.server_momentum": self.server_momentum})
            if self.server_optimizer == "sgd" or self.server_momentum >= 1:
                raise BadInput("train.server_momentum is in [0, 1) and for server_optimizer = momentum or adam.")
        if self.server_adaptivity is not None:
            check.positive(**{"train.server_adaptivity": self.server_adaptivity})
            if self.server_optimizer != "adam":
                raise BadInput("train.server_adaptivity is the tau of server_optimizer = adam: leave it out.")

    @property
    def batch(self) -> int:
        """The (expected) batch where no sampling rate is given."""
        return self.batch_size or 32

    @property
    def steps(self) -> int:
        """Local steps of a round where no epochs are given."""
        return self.local_steps or 10


class PrivacySection(_Section):
    """`[privacy]`: what is promised.

    `epsilon` is a number, a list, a table by client, a distribution's name or {file = "..."}; inf sets no limit. `level` gives
    every client the smallest or the largest of the budgets instead of its own: the bounds of a comparison.
    `noise_formula = "pfa-code"` reproduces a published rule of thumb; it has no proof, so nothing is promised.
    `clip_quantile` makes the clip of central DP follow that quantile of the updates' norms, from `clip` (0.1) on.
    Distributed DP adds shares of integer `noise`, sized for `fewest_reports` of which `colluding` may be known; `share = "seed"`
    is the share of the 2020 note, which is smaller by the root of the cohort. `groups = 2` sums loose and tight clients apart.
    """

    kind: Literal["none", "local", "central", "distributed"] = "none"
    unit: Literal["record", "client"] | None = None
    epsilon: Epsilon | None = None
    delta: float = 1e-5
    clip: float = 1.0
    level: Literal["own", "minimum", "maximum"] = "own"
    strategy: Literal["spread", "same-noise"] | None = None
    noise_formula: Literal["pfa-code"] | None = None
    noise_multiplier: float | None = None
    noise_on_mean: float | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    ledger: str | None = None
    weight_cap: int | None = None
    clip_quantile: float | None = None
    clip_learning_rate: float | None = None
    count_noise: float | None = None
    noise: Literal["skellam", "discrete-gaussian"] | None = None
    share: Literal["even", "seed"] | None = None
    fewest_reports: int | None = None
    colluding: int | None = None
    groups: Literal[1, 2] | None = None

    @model_validator(mode="before")
    @classmethod
    def _first_clip(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("clip_quantile") is not None:
            return {"clip": ADAPTIVE_START} | values
        return values

    def possible(self) -> None:
        self._possible_client_level()
        check.probability(**{"privacy.delta": self.delta})
        check.positive(**{"privacy.clip": self.clip})
        self.refuse_both("privacy", "noise_multiplier", "noise_on_mean")
        for key in ("noise_multiplier", "noise_on_mean"):
            if getattr(self, key) is not None:
                check.positive(**{f"privacy.{key}": getattr(self, key)})
                if self.strategy == "spread" or self.noise_formula:
                    raise BadInput(
                        f'strategy = "spread" and noise_formula derive the noise from epsilon: remove privacy.{key}.'
                    )
        if isinstance(self.epsilon, int | float) and self.epsilon != math.inf:
            check.positive(**{"privacy.epsilon": self.epsilon})
        if self.epsilon is not None and "kind" not in self.model_fields_set:
            raise BadInput(
                'privacy.epsilon is set but privacy.kind is not: say kind = "local", "central" or "distributed", or "none".'
            )
        if self.noise_formula and self.ledger:
            raise BadInput("privacy.noise_formula has no price, so nothing can be charged: remove privacy.ledger.")
        if self.kind != "none" and self.epsilon is None:
            raise BadInput(f'privacy.kind = "{self.kind}" needs privacy.epsilon (inf sets no limit, and must be said).')

    def _possible_client_level(self) -> None:
        """What belongs to client-level DP is refused elsewhere."""
        if self.kind in ("central", "distributed") and self.unit == "record":
            raise BadInput(f'privacy.kind = "{self.kind}" protects whole clients: leave out privacy.unit.')
        if self.noise_multiplier == 0 and self.kind != "none":
            raise BadInput("privacy.noise_multiplier = 0 adds no noise, and without noise no epsilon holds: raise it.")
        if self.unit_kept == "client":
            for key in ("noise_on_mean", "noise_formula"):
                if getattr(self, key) is not None:
                    raise BadInput(f"privacy.{key} is about the gradients of single records: use noise_multiplier.")
        for key in ("weight_cap", "clip_quantile", "clip_learning_rate", "count_noise"):
            value = getattr(self, key)
            if value is not None and self.kind != "central":
                raise BadInput(f'privacy.{key} belongs to privacy.kind = "central": leave it out.')
            if value is not None and key.startswith(("clip", "count")) and self.clip_quantile is None:
                raise BadInput(
                    f"privacy.{key} is for a clip that adapts: set privacy.clip_quantile too, or leave it out."
                )
            if value is not None:
                (check.probability if key == "clip_quantile" else check.positive)(**{f"privacy.{key}": value})

        for key in ("noise", "share", "fewest_reports", "colluding", "groups"):
            if getattr(self, key) is not None and self.kind != "distributed":
                raise BadInput(f'privacy.{key} belongs to privacy.kind = "distributed": leave it out.')
        check.at_least(1, **{"privacy.fewest_reports": 1 if self.fewest_reports is None else self.fewest_reports})
        check.at_least(0, **{"privacy.colluding": self.colluding or 0})

    @property
    def unit_kept(self) -> Literal["record", "client"]:
        """Whom the promise is about."""
        return self.unit or ("client" if self.kind in ("central", "distributed") else "record")

    @property
    def rule(self) -> str:
        """The strategy that applies: a given noise is the same for all, otherwise budgets are spread."""
        given = self.noise_multiplier is not None or self.noise_on_mean is not None
        return self.strategy or ("same-noise" if given else "spread")


class AggregateSection(_Section):
    """`[aggregate]`: how the server combines updates. The other keys are the options of the rules that have them.

    Without a `rule` clients whose budgets differ are combined by `random-effects`, and others by their `mean`.
    """

    rule: str | None = None
    reading: Literal["paper", "code"] | None = None
    rank: int | None = None
    blocks: Literal["model", "layer"] | None = None
    split: Literal["gmm", "kmeans", "top"] | None = None
    share: float | None = None
    weights: Literal["epsilon", "examples"] | None = None
    horizon: float | None = None
    caution: float | None = None

    def possible(self) -> None:
        if self.rank is not None:
            check.at_least(1, **{"aggregate.rank": self.rank})
        if self.share is not None:
            check.probability(**{"aggregate.share": self.share})

    def options(self) -> dict[str, Any]:
        """What was said beside the rule's name."""
        return {key: value for key, value in self.model_dump(exclude_none=True).items() if key != "rule"}


class ProtectSection(_Section):
    """`[protect]`: how the integers of distributed DP are made (`bits`, `rotation`) and sealed on their way.

    Without `key`, the file of a secret key, every start of a run makes a key of its own.
    """

    kind: Literal["none", "paillier"] = "none"
    key_bits: Literal[2048, 3072, 4096] | None = None
    key_shape: Literal["ordinary", "short-exponent", "safe-prime"] | None = None
    key: str | None = None
    bits: Literal[8, 12, 16] | None = None
    rotation: Literal["none", "hadamard"] | None = None

    def possible(self) -> None:
        for key in ("key_bits", "key_shape", "key"):
            if self.kind == "none" and getattr(self, key) is not None:
                raise BadInput(f'protect.{key} is for protect.kind = "paillier": set that, or leave it out.')
        if self.key is not None and (self.key_bits or self.key_shape):
            raise BadInput("protect.key names a key that has its own bits and shape: leave out key_bits and key_shape.")


class RunSection(_Section):
    """`[run]`: seed, place and means. `workers = 0` uses every core; `randomness = "os"` is for deployments.

    `engine = "flower-simulation"` trains clients on Flower's simulation engine, for people with a Ray cluster.
    `writers` also sends every round to where people look already: "tensorboard", "mlflow".
    """

    seed: int = 0
    device: str = "cpu"
    out: str | None = None
    workers: int = 0
    randomness: Literal["seeded", "os"] = "seeded"
    engine: Literal["tacit", "flower-simulation"] = "tacit"
    writers: tuple[Literal["tensorboard", "mlflow"], ...] | None = None

    def possible(self) -> None:
        check.at_least(0, **{"run.workers": self.workers})
        if self.engine != "tacit" and self.device != "cpu":
            raise BadInput('run.engine = "flower-simulation" trains on CPUs: set run.device = "cpu".')
        if self.writers and len(set(self.writers)) < len(self.writers):
            raise BadInput(f"Expected each of run.writers once, got {', '.join(self.writers)}.")


class Experiment(BaseModel):
    """Everything that defines a run.

    >>> Experiment(data={"clients": 5}, privacy={"kind": "local", "epsilon": 3}).train.rounds
    30
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "experiment"
    data: DataSection = Field(default_factory=lambda: DataSection.model_validate({}))
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    privacy: PrivacySection = PrivacySection()
    aggregate: AggregateSection = AggregateSection()
    protect: ProtectSection = ProtectSection()
    run: RunSection = RunSection()

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise BadInput(_sentence(error)) from None

    @model_validator(mode="after")
    def _together(self) -> "Experiment":
        refuse_impossible(self)
        return self

    @classmethod
    def load(cls, source: str | Path = "digits", settings: tuple[str, ...] = ()) -> "Experiment":
        """Reads a shipped experiment by name, or a TOML file, and applies `section.key=value` settings to it."""
        values = {"name": Path(source).stem} | _read(source)
        for setting in settings:
            _apply(values, setting)
        return cls(**values)

    def toml(self) -> str:
        """The whole experiment, defaults included, as the text of a TOML file."""
        return dumps(self.model_dump(exclude_none=True))


def shipped() -> list[str]:
    """The experiments that come with Tacit."""
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("tacit.experiments").iterdir() if p.name.endswith(".toml")
    )


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if str(source) in shipped():
        text = (resources.files("tacit.experiments") / f"{source}.toml").read_text("utf-8")
    elif path.is_file():
        text = path.read_text("utf-8")
    else:
        names = ", ".join(shipped())
        raise BadInput(
            f"{str(source)!r} is neither a file nor a shipped experiment ({names}).{check.nearest(str(source), shipped())}"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}.") from None


def _apply(values: dict[str, Any], setting: str) -> None:
    place, separator, text = setting.partition("=")
    section, _, key = place.strip().partition(".")
    if not separator or (not key and section != "name"):
        raise BadInput(f"Expected a setting as section.key=value, got {setting!r}.")
    if section == "name":
        values["name"] = text
        return
    table = values.setdefault(section, {})
    if not text:  # "train.sampling_rate=" goes back to the default
        table.pop(key, None)
    else:
        table[key] = parse_value(text)


def _sentence(error: ValidationError) -> str:
    """The first problem of a validation error, in one sentence."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"] if isinstance(part, str) and part.isidentifier())
    if problem["type"] == "extra_forbidden":
        *section, key = [str(part) for part in problem["loc"]]
        known = _keys(section[0]) if section else [*Experiment.model_fields, *_homes(key)]
        hint = check.nearest(key, known) or f" Valid keys: {', '.join(known)}."
        hint = hint if section or key not in _homes(key).values() else f" Did you mean {next(iter(_homes(key)))!r}?"
        return f"Unknown key {'.'.join([*section, key])!r}.{hint}"
    if problem["type"] == "literal_error":
        return f"Expected {place} to be one of {problem.get('ctx', {}).get('expected')}; got {problem['input']!r}."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    return f"{place}: {message[:1].lower()}{message[1:]}, got {problem['input']!r}."


def _keys(section: str) -> list[str]:
    annotation = Experiment.model_fields[section].annotation
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _homes(key: str) -> dict[str, str]:
    """The sections that have a key of this name, as {"train.rounds": "rounds"}."""
    return {f"{section}.{key}": key for section in Experiment.model_fields if key in _keys(section)}
