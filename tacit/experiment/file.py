"""One experiment as one frozen, validated object; the TOML file is its text. Every key has a default. Unknown keys and
impossible combinations are refused in one sentence that names the key and the nearest valid one. Options of the rule, the model
and the data source are theirs to refuse, once they are made: reading an experiment imports none of them."""

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
from tacit.errors import BadInput
from tacit.experiment import extras
from tacit.experiment.data import DataSection, MetricSection, Seeds, SeedSection, TaskSection
from tacit.experiment.extras import AttackSection, AuditSection, PersonalSection
from tacit.experiment.privacy import NoPrivacy, Privacy, Protect, Unprotected
from tacit.experiment.training import AggregateSection, ModelSection, RunSection, TrainSection


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
    # JSON's escapes are TOML's, but for DEL
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


OPTIONAL = ("audit", "personal", "seed")  # sections that a run knows nothing of unless they are said


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
    privacy: Privacy = NoPrivacy()
    aggregate: AggregateSection = AggregateSection()
    protect: Protect = Unprotected()
    audit: AuditSection = AuditSection()
    personal: PersonalSection = PersonalSection()
    seed: SeedSection = SeedSection()
    run: RunSection = RunSection()
    attack: AttackSection | None = None

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise BadInput(_sentence(error, values)) from None

    @model_validator(mode="after")
    def _in_total(self) -> "Experiment":
        refuse_impossible(self)
        return self

    @classmethod
    def load(cls, source: str | Path = "digits", settings: tuple[str, ...] = ()) -> "Experiment":
        """Reads a shipped experiment by name, or a TOML file, and applies `section.key=value` settings to it."""
        values = {"name": Path(source).stem} | _read(source)
        for setting in settings:
            _apply(values, setting)
        return cls(**values)

    @classmethod
    def of(cls, source: "Experiment | Mapping[str, Any] | str | Path", **settings: Any) -> "Experiment":
        """The experiment that an object, tables, a file or a name stands for, with some keys changed: by their whole name, or by
        its last part where one table alone has it. None goes back to the default. Raises BadInput.

        >>> Experiment.of("digits", epsilon=3.0, **{"train.rounds": 7}).said()["train"]["rounds"]
        7
        """
        if isinstance(source, str | Path):
            source = {"name": Path(source).stem} | _read(source)
        if not isinstance(source, Experiment | Mapping):
            raise BadInput(
                f"Expected an experiment, a mapping of its tables, a file or a shipped name, got a {type(source).__name__}."
            )
        if isinstance(source, Experiment) and not settings:
            return source
        values = (
            {name: getattr(source, name) for name in source.model_fields_set}
            if isinstance(source, Experiment)
            else {**source}
        )
        for key, value in settings.items():
            table, _, name = whole(key).partition(".")
            part = values.get(table, {})
            known = part.model_dump(exclude_unset=True) if isinstance(part, BaseModel) else part
            if not isinstance(known, Mapping):
                raise BadInput(check.wrong(table, dict, known))
            values[table] = (
                {**known, name: value} if value is not None else {key: one for key, one in known.items() if key != name}
            )
        return cls(**values)

    @property
    def seeds(self) -> Seeds:
        """The seed that each kind of chance follows: its own where one is said, else `run.seed`."""
        said = self.seed.model_dump()
        return Seeds(**{kind: self.run.seed if seed is None else seed for kind, seed in said.items()})

    @property
    def secret_cohorts(self) -> bool:
        """Whether the promise rests on nobody's knowing who took part in a round; somebody else's kind counts so. Where
        everybody is in every round it does not, unless the clip adapts: then an absent client and an empty one are counted
        differently."""
        privacy = self.privacy
        if privacy.kind != "central" or privacy.public_cohorts or privacy.sums_records:
            return privacy.foreign
        return self.train.clients_per_round is not None or privacy.adaptive_clip is not None or privacy.own_rates

    def toml(self) -> str:
        """The whole experiment, defaults included, as the text of a TOML file."""
        return dumps(self.said())

    def said(self, **how: Any) -> dict[str, Any]:
        """Every section as plain values; those that ask for nothing unless they are said are left out where they are not."""
        values = self.model_dump(exclude_none=True, **how)
        return {name: value for name, value in values.items() if value or name not in OPTIONAL}


def refuse_impossible(experiment: Experiment) -> None:
    """Raises BadInput where a guarantee would not hold, or a setting would have no effect."""
    privacy, train = experiment.privacy, experiment.train
    extras.refuse_persons(experiment)
    if train.views is not None and not (privacy.noises_records or privacy.sums_records):
        raise BadInput(
            'train.views averages gradients of records before they are clipped, which only privacy.kind = "local" with'
            ' unit = "record" does: leave it out.'
        )
    if train.control is not None and privacy.kind in ("central", "distributed"):
        raise BadInput(
            'train.control = "scaffold" follows what each client has released, and with privacy.kind = "central" or "distributed"'
            ' only sums are: set privacy.kind = "local" or "none", or leave it out.'
        )
    for key in ("schedule", "control") if privacy.foreign else ():
        if getattr(train, key) is not None:
            raise BadInput(f"train.{key} is not told to a kind of privacy that is not Tacit's own: leave it out.")
    if experiment.protect.kind != "none" and privacy.kind != "distributed":
        raise BadInput(
            f'protect.kind = "{experiment.protect.kind}" hides integers with shares of noise: set privacy.kind = "distributed".'
        )
    if privacy.groups == 2 and train.clients_per_round and not privacy.fewest_reports:
        raise BadInput(
            "With two groups and a part of the clients in a round, how many of each report is random: set privacy.fewest_reports"
            " lower than train.clients_per_round."
        )
    if privacy.network is not None and not experiment.secret_cohorts:
        raise BadInput(
            'privacy.network = "unwatched" is for secret cohorts of privacy.kind = "central", and there are none: leave it out.'
        )
    if experiment.seed.noise is not None and experiment.run.randomness == "os":
        raise BadInput(
            'With run.randomness = "os" no noise is drawn from a seed: leave out seed.noise, or set randomness = "seeded".'
        )
    if privacy.sums_records:
        _refuse_beside_sums_of_records(experiment)
    if privacy.kind == "central":
        _refuse_beside_central(experiment)
    extras.refuse_unpriced(experiment)
    extras.refuse_attack(experiment)
    extras.refuse_unauditable(experiment)
    extras.refuse_personal(experiment)


def _refuse_beside_sums_of_records(experiment: Experiment) -> None:
    train = experiment.train
    if train.local_steps not in (None, 1):
        raise BadInput(
            "Noise that is added once hides one step's gradients, and a client's second step would have none of its own: set"
            " train.local_steps = 1."
        )
    for key in ("batch_size", "sampling_rate", "clients_per_round", "momentum", "weight_decay", "proximal"):
        if getattr(train, key):
            raise BadInput(
                f"train.{key} has no effect where records' sums are noised once: all clients are in every round, and each is drawn"
                " from at the rate that its epsilon pays for. Leave it out."
            )
    if experiment.aggregate.rule not in (None, "mean"):
        raise BadInput(
            "Where records' sums are noised once the server has one sum, of clients who count by their rates, so aggregate.rule"
            f" must be mean, got {experiment.aggregate.rule!r}."
        )
    if experiment.attack is not None:
        raise BadInput("Malicious clients are not simulated where sums of records are noised once: leave out [attack].")


def _refuse_beside_central(experiment: Experiment) -> None:
    train, privacy, aggregate = experiment.train, experiment.privacy, experiment.aggregate
    if privacy.public_cohorts and train.clients_per_round is None:
        raise BadInput(
            f'privacy.sampler = "{privacy.sampler}" deals the clients into groups that take turns: set train.clients_per_round,'
            " the size of one."
        )
    if privacy.rate_cap is not None and not (privacy.own_rates or privacy.sums_records):
        raise BadInput(
            "privacy.rate_cap bounds how far clients' own sampling rates differ, and all have one: leave it out."
        )
    if privacy.own_rates and privacy.noise_said and train.clients_per_round:
        raise BadInput(
            "Beside clients' own budgets train.clients_per_round is the expected cohort, from which the noise follows: leave out it"
            " or privacy.noise_multiplier."
        )
    if privacy.bands is not None and privacy.bands > train.rounds:
        raise BadInput(
            f"Noise of {privacy.bands} bands takes as many rounds to be whole, and there are {train.rounds}: raise"
            " train.rounds, or set privacy.bands lower."
        )
    if aggregate.rule not in (None, "mean"):
        raise BadInput(
            'With privacy.kind = "central" the server releases one noised sum, so aggregate.rule must be mean,'
            f" got {aggregate.rule!r}."
        )
    options = aggregate.options()
    if options.get("weights") == "examples" and privacy.weight_cap is None:
        raise BadInput(
            "Weights by examples have no bound, so no noise covers them: set privacy.weight_cap, the examples beyond which"
            " a client weighs no more."
        )
    extra = [key for key, value in options.items() if (key, value) != ("weights", "examples")]
    extra += ["most_share"] * (aggregate.most_share is not None)
    if extra:
        raise BadInput(f'aggregate.{extra[0]} has no effect with privacy.kind = "central": leave it out.')


def refuse_passed(experiment: Experiment) -> None:
    """Refuses an experiment any of whose parts was passed from Python, where its file is all there is. Raises BadInput."""
    for key in plugin.PASSED_AS:
        section, _, name = key.partition(".")
        plugin.refuse_passed(getattr(getattr(experiment, section), name), key=key)


def shipped() -> list[str]:
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
        near = check.nearest(str(source), [*shipped(), *map(str, path.parent.glob("*.toml"))])
        raise BadInput(f"{str(source)!r} is neither a file nor a shipped experiment ({names}).{near}")
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
        meant = [f" Did you mean '{home}={text}'?" for home in list(homes(section))[:1]] if separator else []
        raise BadInput(f"Expected a setting as section.key=value, got {setting!r}.{''.join(meant)}")
    if section == "name":
        values["name"] = text
        return
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise BadInput(check.wrong(section, dict, table))
    if not text:  # "train.sampling_rate=" goes back to the default
        table.pop(key, None)
    else:
        table[key] = parse_value(text)


def _sentence(error: ValidationError, values: dict[str, Any]) -> str:
    for problem in error.errors():
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            key = str(problem["loc"][0])
            if homes(key):
                return f"Unknown key {key!r}. Did you mean {next(iter(homes(key)))!r}?"
    return check.sentence(error, Experiment, values)


def sections() -> dict[str, dict[str, type[BaseModel]]]:
    """The tables of a file by name: of each the classes of its kinds, by tag; "" where it has only one."""
    return {name: check.kinds_of(field) for name, field in Experiment.model_fields.items() if check.kinds_of(field)}


def keys() -> list[str]:
    """Every "table.key" of a file, whatever its kind."""
    found = {
        f"{name}.{key}": 0 for name, kinds in sections().items() for one in kinds.values() for key in one.model_fields
    }
    return list(found)


def whole(key: str) -> str:
    """A key with its table, which is [attack] only where no other has it. Raises BadInput where none has it, or several have."""
    found = [key] if "." in key else sorted(homes(key), key=lambda home: home.startswith("attack."))
    found = found[:1] if [home.partition(".")[0] for home in found[1:]] == ["attack"] else found
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadInput(
            f"No table of an experiment has a key {key!r}.{check.nearest(key, [one.partition('.')[2] for one in keys()])}"
        )
    raise BadInput(f"{key!r} is a key of several tables: pass **{{{found[0]!r}: ...}} ({', '.join(found)}).")


def homes(key: str) -> dict[str, str]:
    """The sections that have a key of this name, as {"train.rounds": "rounds"}."""
    return {home: key for home in keys() if home.partition(".")[2] == key}
