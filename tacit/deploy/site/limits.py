"""`budget.toml`: what a site allows. It belongs to the site alone; the server never sees or changes it.

It is read and applied before every answer and every opening, so what its people change or withdraw counts from the next
question on. Code that an experiment names is imported only if this file lists it; paths and devices are those of site.toml.
What is held against it is `consent`."""

import getpass
import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tacit import wire
from tacit.deploy.site.layout import BUDGET, unknown, wording
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import keys
from tacit.types import Budget, Unit

if TYPE_CHECKING:
    from tacit.data.population import Population

KEYS = (*Experiment.model_fields, *keys())  # what accept.settings may name
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


# The clients of a deployment by name, size and budget: all that anybody but the site itself knows of them.

MOST_SITES = 100_000
MOST_ROWS = 10**9  # of one site


@dataclass(frozen=True)
class Roster:
    """Names, sizes and epsilons in one order: the position in it is the client's index. One delta and one unit hold for all.

    All of it is public among the server and the sites: noise, weights and prices are computed from it everywhere.

    >>> Roster(("a", "b"), (3, 4), (1.0, 2.0), delta=1e-5).population((2,))[1].size
    4
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    unit: Unit = "record"

    def population(self, shape: tuple[int, ...]) -> "Population":
        """Clients without their rows: one zero stands for all of them, so sizes are right and no memory is taken.

        `shape` is that of one row.
        """
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        rows = int(offsets[-1])
        import torch

        from tacit.data.population import Population

        x = torch.zeros((1,) * (len(shape) + 1)).expand(rows, *shape)
        y = torch.zeros(1, dtype=torch.int64).expand(rows)
        return Population(x, y, offsets, self.names, np.array(self.epsilons), self.delta, self.unit)

    def record(self) -> dict[str, Any]:
        """Plain values for the wire and for the disk, which `of` reads back.

        >>> one = Roster(("a",), (3,), (1.0,), delta=1e-5)
        >>> Roster.of(one.record()) == one
        True
        """
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of(cls, record: object) -> "Roster":
        """The roster that `record` described; it comes from outside.

        Guarantee: at least one site and at most `MOST_SITES`, each named once by a printable text, with a size from 1 to
        `MOST_ROWS` and an epsilon above zero (infinity is one); delta is between 0 and 1, and the unit one of the two.

        Raises: BadInput for anything else.
        """
        parts = wire.fields(record, "names", "sizes", "epsilons", "delta", "unit", what="The list of sites")
        lists = [wire.several(part, what="A column of the list of sites", most=MOST_SITES) for part in parts[:3]]
        if not lists[0] or len({len(column) for column in lists}) > 1:
            raise BadInput("The list of sites is empty, or does not have one size and one epsilon for each name.")
        names = tuple(wire.text(name, what="A site's name") for name in lists[0])
        if len(set(names)) < len(names):
            raise BadInput("The list of sites names one of them twice.")
        sizes = tuple(wire.whole(size, what="A site's size", least=1, most=MOST_ROWS) for size in lists[1])
        epsilons = tuple(wire.number(value, what="A site's epsilon", infinite=True) for value in lists[2])
        delta, unit = wire.number(parts[3], what="The list's delta"), parts[4]
        if unit not in ("record", "client") or delta >= 1:
            raise BadInput("The list of sites has no unit (record or client), or a delta that is not below 1.")
        return cls(names, sizes, epsilons, delta, unit)

    def digest(self) -> str:
        """The SHA-256 of every name, size and epsilon, of delta and unit; the order of the sites counts."""
        return hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()
