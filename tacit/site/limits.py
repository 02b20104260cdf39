"""`budget.toml`: what a site allows. It belongs to the site alone; the server never sees or changes it."""

import getpass
import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.types import Budget, Unit

NAME = "budget.toml"
NOT_PART = {
    "run": {"out", "workers", "device", "engine", "writers"},
    "data": {"path", "test_path"},
}  # where and how fast, not what


class Accept(BaseModel):
    """Which experiments may run: those of a digest, or those whose settings are among the allowed ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiments: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


class Limits(BaseModel):
    """What a site allows. `trial = true` also lets runs with seeded noise in, which protects nothing from the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float
    delta: float
    unit: Unit = "record"
    trial: bool = False
    most_rounds: int | None = None
    most_parameters: int | None = None
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
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise BadInput(f"{path}: {key}: {problem['msg'][:1].lower()}{problem['msg'][1:]}.") from None


def digest(experiment: Experiment) -> str:
    """A hash of everything an experiment promises and does; where its files lie, and what it leaves unsaid, is left out.

    >>> digest(Experiment()) == digest(Experiment(run={"workers": 2})) != digest(Experiment(run={"seed": 2}))
    True
    """
    values = experiment.model_dump(mode="json", exclude=NOT_PART, exclude_none=True)  # pyright: ignore[reportArgumentType]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def refuse_beyond(limits: Limits, experiment: Experiment) -> None:
    """Refuses an experiment that the budget file does not allow. Raises Refused in one sentence."""
    privacy, train = experiment.privacy, experiment.train
    _refuse_unknown(limits.accept, experiment)
    if privacy.kind == "none" and not limits.trial:
        raise Refused('This experiment promises no privacy (privacy.kind = "none") and the site gives nothing without.')
    if experiment.run.randomness == "seeded" and not limits.trial:
        raise Refused(
            "This experiment draws its noise from a seed that the server knows, so nothing would be protected from it: "
            'the site wants run.randomness = "os".'
        )
    if privacy.noise_formula is not None:
        raise Refused("privacy.noise_formula has no price, so the site's ledger cannot be charged for it.")
    if privacy.kind == "distributed" and experiment.protect.kind != "paillier" and not limits.trial:
        raise Refused(
            "Shares of noise protect a sum, but the server would read the site's single report: the site wants"
            ' protect.kind = "paillier".'
        )
    if privacy.unit_kept != limits.unit:
        raise Refused(f"The server asks for a budget per {privacy.unit_kept}; the site's is per {limits.unit}.")
    if privacy.delta > limits.delta:
        raise Refused(f"The server asks for delta {privacy.delta:g}; the site allows {limits.delta:g}.")
    if limits.most_rounds is not None and train.rounds > limits.most_rounds:
        raise Refused(f"The server asks for {train.rounds} rounds; the site allows {limits.most_rounds}.")


def _refuse_unknown(accept: Accept, experiment: Experiment) -> None:
    """Refuses what is neither named by digest nor within the allowed settings."""
    mark = digest(experiment)
    if mark in accept.experiments:
        return
    if not accept.settings:
        raise Refused(
            f"The experiment {experiment.name} (digest {mark}) is not among those that the site's {NAME} accepts."
        )
    values = experiment.model_dump(mode="json")
    for place, allowed in accept.settings.items():
        section, _, key = place.partition(".")
        found = values.get(section)
        found = found.get(key) if isinstance(found, Mapping) and key else found
        if not _within(found, allowed):
            raise Refused(f"The server asks for {place} = {found!r}; the site allows {_words(allowed)}.")


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
