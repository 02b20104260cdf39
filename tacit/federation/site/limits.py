"""`budget.toml`: what a site allows. It belongs to the site alone; the server never sees or changes it.

It is read and applied before every answer and every opening, so what its people change or withdraw counts from the next
question on. Nothing that the server names is imported, opened or used as a device unless this file lists it.
"""

import getpass
import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.privacy import KINDS
from tacit.federation.site.code import refuse_unlisted
from tacit.federation.site.wording import unknown, wording
from tacit.privacy.kinds import kind_of
from tacit.types import Budget, Unit

NAME = "budget.toml"
HELD_ELSEWHERE = (
    "name",
    "privacy.epsilon",
    "privacy.delta",
    "privacy.delta_share",
)  # no effect, or held by the limits themselves
PLACES = (
    *Experiment.model_fields,
    *(f"{name}.{key}" for name, table in Experiment().model_dump().items() if isinstance(table, dict) for key in table),
)  # what accept.settings may name
Number = Annotated[float, Field(strict=True)]  # no text, and no true for 1
Count = Annotated[int, Field(strict=True, ge=1)]
MOST_NAME = 100  # characters of an experiment's name: it stands in logs
OPTIONS = ("aggregate.", "data.", "model.")  # tables whose other keys are the options of the part they name


class Accept(BaseModel):
    """Which experiments may run: those of a digest, or those whose settings are among the allowed ones.

    By settings, whatever is not named must have its default; rows are read in the ways of `data` (digests of `[data]`), because
    whoever may choose how rows are read can ask about their values. `code` lists "package.module:name" = SHA-256 of its file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiments: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    data: tuple[str, ...] = ()
    code: dict[str, str] = {}

    @field_validator("settings")
    @classmethod
    def _understood(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """A limit that is not understood would be none."""
        for place, allowed in settings.items():
            if place not in PLACES and not place.startswith(
                OPTIONS
            ):  # an option is understood by the part that takes it
                raise ValueError(f"accept.settings: {unknown(place, PLACES)}")
            numbers = isinstance(allowed, dict) and all(type(end) in (int, float) for end in allowed.values())
            if isinstance(allowed, dict) and not (numbers and allowed and set(allowed) <= {"min", "max"}):
                raise ValueError(f"{place} wants a value, a list of values, or {{min = ..., max = ...}}.")
        return settings


class Limits(BaseModel):
    """What a site allows. `trial = true` also lets runs with seeded noise in, which protects nothing from the server.

    The `most_` numbers are checked before anything is built. `answer_seconds` makes every answer to a round leave so many
    seconds after its question came, if training was done by then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Number
    delta: Number
    unit: Unit = "record"
    trial: Annotated[bool, Field(strict=True)] = False
    most_rounds: Count = 10_000
    most_parameters: Count = 20_000_000
    most_steps: Count = 100_000  # of local training in one round
    most_batch: Count = 65_536
    most_views: Count = 64
    most_clients: Count = 10_000
    most_bytes: Count = 1 << 31  # of one question
    most_runs: Count = 1_000  # that leave a folder here
    answer_seconds: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 0.0
    accept: Accept = Accept()

    @property
    def budget(self) -> Budget:
        """The limits' epsilon, delta and unit."""
        return Budget(self.epsilon, self.delta, self.unit)


def read_limits(folder: Path) -> Limits:
    """Reads a site's budget file. Raises BadInput in one sentence for one that cannot be read or understood."""
    path = folder / NAME
    try:
        limits = Limits(**tomllib.loads(path.read_text("utf-8")))
        limits.budget  # noqa: B018 - checks the numbers
        return limits
    except OSError as error:
        who = f"user {getpass.getuser()}" if isinstance(error, PermissionError) else "this site"
        raise BadInput(
            f"The budget file {path} cannot be read by {who} ({error.strerror}): nothing runs without it."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except ValidationError as error:
        raise BadInput(f"{path}: {wording(error, Limits)}") from None


def digest(experiment: Experiment) -> str:
    """A hash of every key of an experiment; what it leaves unsaid is left out.

    >>> digest(Experiment()) == digest(Experiment(run={"seed": 0})) != digest(Experiment(run={"device": "cuda"}))
    True
    """
    return _hash(experiment.model_dump(mode="json", exclude_none=True))


def data_digest(experiment: Experiment) -> str:
    """A hash of the `[data]` table: how rows are read."""
    return _hash(experiment.data.model_dump(mode="json", exclude_none=True))


def departures(experiment: Experiment) -> dict[str, Any]:
    """Every setting that is not the default, as {"section.key": value}; `[data]` is named as a whole, by its digest.

    >>> departures(Experiment(train={"rounds": 3}, run={"seed": 1}))
    {'train.rounds': 3, 'run.seed': 1}
    """
    values, usual = experiment.model_dump(mode="json"), Experiment().model_dump(mode="json")
    places = {
        f"{section}.{key}": value
        for section, table in values.items()
        if isinstance(table, dict) and section != "data"
        for key, value in table.items()
        if value != usual[section].get(key)
    }
    return {place: value for place, value in places.items() if place not in HELD_ELSEWHERE}


def refuse_beyond(limits: Limits, experiment: Experiment) -> None:
    """Refuses an experiment that the budget file does not allow, before anything of it is used. Raises Refused."""
    privacy = experiment.privacy
    if privacy.kind not in KINDS:
        raise Refused(
            "The experiment names a kind of privacy that is not Tacit's own: its price is nobody's theorem here."
        )
    _refuse_unknown(limits.accept, experiment)
    refuse_unlisted(limits.accept.code, experiment)
    if not limits.trial:
        kind_of(experiment).refuse_at_site(experiment)
    if experiment.run.randomness == "seeded" and not limits.trial:
        raise Refused(
            "This experiment draws its noise from a seed that the server knows, so nothing would be protected from it: "
            'the site wants run.randomness = "os".'
        )
    if privacy.noise_formula is not None:
        raise Refused("privacy.noise_formula has no price, so the site's ledger cannot be charged for it.")
    if privacy.unit_kept != limits.unit:
        raise Refused(f"The server asks for a budget per {privacy.unit_kept}; the site's is per {limits.unit}.")
    if privacy.run_delta > limits.delta:
        raise Refused(f"The server asks for delta {privacy.run_delta:g}; the site allows {limits.delta:g}.")
    _refuse_large(limits, experiment)


def _refuse_large(limits: Limits, experiment: Experiment) -> None:
    """Numbers that would be work or memory: each has its limit before anything is built."""
    train, data = experiment.train, experiment.data
    for asked, most, what in (
        (train.rounds, limits.most_rounds, "rounds"),
        (train.local_steps, limits.most_steps, "local steps"),
        (train.local_epochs, limits.most_steps, "local epochs"),
        (train.batch_size, limits.most_batch, "examples in a batch"),
        (train.physical_batch, limits.most_batch, "examples at a time"),
        (train.views, limits.most_views, "views of a record"),
        (train.shift, limits.most_batch, "pixels of shift"),
        (data.clients, limits.most_clients, "clients"),
    ):
        if asked is not None and asked > most:
            raise Refused(f"The server asks for {asked} {what}; the site allows {most}.")


def refuse_steps(limits: Limits, steps: int) -> None:
    """Local epochs are as many steps as there are batches in the site's rows. Raises Refused."""
    if steps > limits.most_steps:
        raise Refused(f"The server asks for {steps} local steps; the site allows {limits.most_steps}.")


def refuse_parameters(limits: Limits, parameters: int) -> None:
    """Raises Refused for a model that is larger than the site allows."""
    if parameters > limits.most_parameters:
        raise Refused(f"The server asks for {parameters} parameters; the site allows {limits.most_parameters}.")


def _refuse_unknown(accept: Accept, experiment: Experiment) -> None:
    """Refuses what is neither named by digest nor within the allowed settings."""
    mark = digest(experiment)
    if mark in accept.experiments:
        return
    if not accept.settings:
        raise Refused(
            f"The experiment {_name(experiment)} (digest {mark}) is not among those that the site's {NAME} accepts."
        )
    values = experiment.model_dump(mode="json")
    for place, allowed in accept.settings.items():
        section, _, key = place.partition(".")
        found = values.get(section)
        found = found.get(key) if isinstance(found, Mapping) and key else found
        if not _within(found, allowed):
            raise Refused(f"The server asks for {place} = {found!r}; the site allows {_words(allowed)}.")
    for place, value in departures(experiment).items():
        if place not in accept.settings:
            raise Refused(
                f"The server sets {place} = {value!r}, which the site's {NAME} does not name in accept.settings."
            )
    if data_digest(experiment) not in accept.data:
        raise Refused(
            f"The experiment reads rows in a way (digest {data_digest(experiment)} of [data]) that the site's {NAME} does not"
            " list in accept.data."
        )


def _within(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, Mapping):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and allowed.get("min", value) <= value <= allowed.get("max", value)
    return value in allowed if isinstance(allowed, list) else value == allowed


def _words(allowed: Any) -> str:
    if isinstance(allowed, Mapping):
        return " and ".join(
            f"at {'least' if end == 'min' else 'most'} {number!r}" for end, number in sorted(allowed.items())
        )
    return " or ".join(repr(value) for value in allowed) if isinstance(allowed, list) else repr(allowed)


def _name(experiment: Experiment) -> str:
    return experiment.name if experiment.name.isprintable() and len(experiment.name) <= MOST_NAME else "without a name"


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
