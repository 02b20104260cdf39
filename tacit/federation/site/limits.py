"""`budget.toml`: what a site allows. It belongs to the site alone; the server never sees or changes it.

It is read and applied before every answer and every opening, so what its people change or withdraw counts from the next
question on. Code that an experiment names is imported only if this file lists it; paths and devices are those of site.toml.
What is held against it is `consent`.
"""

import getpass
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.federation.site.layout import BUDGET
from tacit.federation.site.wording import unknown, wording
from tacit.types import Budget, Unit

KEYS = (
    *Experiment.model_fields,
    *(f"{name}.{key}" for name, table in Experiment().model_dump().items() if isinstance(table, dict) for key in table),
)  # what accept.settings may name
Number = Annotated[float, Field(strict=True)]  # no text, and no true for 1
Count = Annotated[int, Field(strict=True, ge=1)]
OPTIONS = ("aggregate.", "data.", "model.")  # tables whose other keys are the options of the part they name


class Accept(BaseModel):
    """Which experiments may run: those of a digest, or those whose settings are among the allowed ones.

    `settings` has a value, a list of values, or a least and a largest number for a "section.key"; whatever it does not name
    must have its default. Rows are then read only in the ways of `data` (digests of `[data]`), because whoever may choose how
    rows are read can ask about their values. `code` lists "package.module:name" = SHA-256 of its file. Empty, nothing may run.

    Raises: pydantic's ValidationError for a key that no experiment has: a limit that is not understood would be none.

    >>> Accept(settings={"train.rounds": {"max": 50}, "privacy.kind": ["local"]}).experiments
    ()
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
        for key, allowed in settings.items():
            if key not in KEYS and not key.startswith(OPTIONS):  # an option is understood by the part that takes it
                raise ValueError(f"accept.settings: {unknown(key, KEYS)}")
            numbers = isinstance(allowed, dict) and all(type(end) in (int, float) for end in allowed.values())
            if isinstance(allowed, dict) and not (numbers and allowed and set(allowed) <= {"min", "max"}):
                raise ValueError(f"{key} wants a value, a list of values, or {{min = ..., max = ...}}.")
        return settings


class Limits(BaseModel):
    """What a site allows: epsilon and delta over all its runs together, per record or per client, and how large a run may be.

    `trial = true` also lets runs with seeded noise in, which protects nothing from a server that knows the seed. The `most_`
    numbers bound work and memory, and are held before anything is built wherever a number is known by then. `answer_seconds`
    makes every answer to a round leave so many seconds after its question came, if training was done by then.

    Guarantee: frozen; a number is a number (no text, and no true for 1), and a key that is not known is refused.

    >>> Limits(epsilon=1.0, delta=1e-5).most_rounds
    10000
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
        """The limits' epsilon, delta and unit. Raises: BadInput where they are no budget."""
        return Budget(self.epsilon, self.delta, self.unit)


def read_limits(folder: Path) -> Limits:
    """Reads a site's budget file, as it is now.

    Raises: BadInput, in one sentence that names the file and the key, for one that is missing, closed to this user, no TOML, or
    holds a key or a value that is not understood: nothing runs without it.
    """
    path = folder / BUDGET
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        limits = Limits.model_validate(values)
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
        raise BadInput(f"{path}: {wording(error, Limits, values)}") from None
