"""One experiment as one frozen, validated object; the TOML file is its text. Every key has a default.

Unknown keys and impossible combinations are refused in one sentence that names the key and the nearest valid one. Options of
the rule, the model and the data source are theirs to refuse, once they are made: reading an experiment imports none of them."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit import check, plugin
from tacit import check as wording
from tacit.errors import BadInput
from tacit.experiment.combinations import refuse_impossible
from tacit.experiment.extras import AttackSection, AuditSection, PersonalSection
from tacit.experiment.privacy import PrivacySection
from tacit.experiment.schema import DataSection, MetricSection, Seeds, TaskSection
from tacit.experiment.training import AggregateSection, ModelSection, ProtectSection, RunSection, TrainSection

# Plain values as TOML text: the standard library reads TOML but does not write it.


def dumps(values: Mapping[str, Any]) -> str:
    """Tables one level deep, as an experiment has them.

    >>> print(dumps({"name": "a", "run": {"seed": 1, "limits": [1.0, float("inf")]}}))
    name = "a"
    <BLANKLINE>
    [run]
    seed = 1
    limits = [1.0, inf]
    <BLANKLINE>
    """
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


FLAT = re.compile(r"\[([^][{}'\"#\n]*)\]")  # a list without quotes, tables or other lists in it


def parse_value(text: str) -> Any:
    """A value typed on the command line: TOML where it is TOML, otherwise the text itself; so are the items of a list.

    >>> parse_value("3"), parse_value("pfa"), parse_value("[1, 2.5]")
    (3, 'pfa', [1, 2.5])
    >>> parse_value("[1, x]")
    [1, 'x']
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        items = FLAT.fullmatch(text.strip())
        return [parse_value(item.strip()) for item in items[1].split(",")] if items else text


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)


def _text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


OPTIONAL = ("audit", "personal")  # sections that a run knows nothing of unless they are said


class Experiment(BaseModel):
    """Everything that defines a run.

    >>> Experiment(data={"clients": 5}, privacy={"kind": "local", "epsilon": 3}).train.rounds
    30
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "experiment"
    data: DataSection = Field(default_factory=lambda: DataSection.model_validate({}))
    model: ModelSection = ModelSection()
    task: TaskSection = TaskSection()
    metric: MetricSection = MetricSection()
    train: TrainSection = TrainSection()
    privacy: PrivacySection = PrivacySection()
    aggregate: AggregateSection = AggregateSection()
    protect: ProtectSection = ProtectSection()
    audit: AuditSection = AuditSection()
    personal: PersonalSection = PersonalSection()
    run: RunSection = RunSection()
    attack: AttackSection | None = None

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise BadInput(_sentence(error, values)) from None

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

    @property
    def seeds(self) -> Seeds:
        """The seed that each kind of chance follows."""
        return Seeds.of(self)

    @property
    def secret_cohorts(self) -> bool:
        """Whether the promise rests on nobody's knowing who took part in a round; somebody else's kind counts so.

        Where everybody is in every round it does not, unless the clip adapts: then an absent client and an empty one are counted
        differently.
        """
        privacy, train = self.privacy, self.train
        if privacy.kind != "central":
            return privacy.foreign
        chosen = train.clients_per_round is not None or privacy.clip_quantile is not None
        return train.sampler != "cyclic" and chosen

    def toml(self) -> str:
        """The whole experiment, defaults included, as the text of a TOML file."""
        return dumps(self.said())

    def said(self, **how: Any) -> dict[str, Any]:
        """Every section as plain values; those that ask for nothing unless they are said are left out where they are not."""
        values = self.model_dump(exclude_none=True, **how)
        return {name: value for name, value in values.items() if value or name not in OPTIONAL}


def shipped() -> list[str]:
    """The experiments that come with Tacit."""
    return sorted(
        p.name.removesuffix(".toml")
        for p in resources.files("tacit.experiment.presets").iterdir()
        if p.name.endswith(".toml")
    )


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if str(source) in shipped():
        text = (resources.files("tacit.experiment.presets") / f"{source}.toml").read_text("utf-8")
    elif path.is_file():
        text = _text_file(path)
    elif (path / "experiment.toml").is_file():
        raise BadInput(
            f"{source} is the folder of a run: go on with it by `tacit run --resume --out {source}`, or name its file"
            f" {path / 'experiment.toml'}."
        )
    else:
        names = ", ".join(shipped())
        raise BadInput(
            f"{str(source)!r} is neither a file nor a shipped experiment ({names}).{check.nearest(str(source), shipped())}"
        )
    try:
        return tomllib.loads(text)
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise BadInput(f"{source} is not valid TOML: {error}.") from None


def _text_file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise BadInput(f"{path} cannot be read as TOML: {why}.") from None


def _apply(values: dict[str, Any], setting: str) -> None:
    key_path, separator, text = setting.partition("=")
    section, _, key = key_path.strip().partition(".")
    if not separator or (not key and section != "name"):
        raise BadInput(f"Expected a setting as section.key=value, got {setting!r}.")
    if section == "name":
        values["name"] = text
        return
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise BadInput(wording.wrong(section, dict, table))
    if not text:  # "train.sampling_rate=" goes back to the default
        table.pop(key, None)
    else:
        table[key] = parse_value(text)


def _sentence(error: ValidationError, values: dict[str, Any]) -> str:
    """The first problem of a validation error, in one sentence."""
    problem = error.errors()[0]
    if problem["type"] == "extra_forbidden":
        *section, key = [str(part) for part in problem["loc"]]
        if section:
            return plugin.unknown(key, table=section[0], known=_keys(section[0]))
        known = list(Experiment.model_fields)
        near = f" Did you mean {next(iter(homes(key)))!r}?" if homes(key) else check.nearest(key, known)
        return f"Unknown key {key!r}.{near}" if near else f"Unknown key {key!r}. Valid keys: {', '.join(known)}."
    return wording.sentence(error, Experiment, values)


def _keys(section: str) -> list[str]:
    return wording.keys_of(Experiment, [section])


def homes(key: str) -> dict[str, str]:
    """The sections that have a key of this name, as {"train.rounds": "rounds"}."""
    return {f"{section}.{key}": key for section in Experiment.model_fields if key in _keys(section)}
