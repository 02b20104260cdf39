"""One table of an experiment file: frozen, and what cannot stand together is refused in one sentence."""

from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Strict, model_validator

from tacit import check
from tacit.errors import BadInput
from tacit.plugin import PYTHON

DEEPEST = 4  # of lists and tables within an option
PASSED = "passed"  # the key under which a file says what was passed from Python: a name and a digest, never the thing


class Section(BaseModel):
    """A table all of whose keys are known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            known = isinstance(value, bool) and key in cls.model_fields
            if known and not _takes_truth(cls.model_fields[key].annotation):
                raise BadInput(check.wrong(f"{cls.table()}.{key}", cls.model_fields[key].annotation, value))
        return values

    @model_validator(mode="after")
    def _refuse_impossible(self) -> "Section":
        self.possible()
        return self

    @classmethod
    def table(cls) -> str:
        """The table's name in the file."""
        return cls.__name__.removesuffix("Section").lower()

    def possible(self) -> None:
        """Raises BadInput for values that cannot stand together."""

    def refuse_both(self, section: str, one: str, other: str) -> None:
        """Refuses two keys of which only one can rule."""
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise BadInput(f"{section}.{one} and {section}.{other} say the same thing twice: set one of them.")


def _takes_truth(kind: Any) -> bool:
    """Whether a key of this type may be true or false.

    >>> [_takes_truth(kind) for kind in (bool, bool | None, float | None)]
    [True, True, False]
    """
    if get_origin(kind) in (Union, UnionType):
        return any(map(_takes_truth, get_args(kind)))
    return kind is bool or (get_origin(kind) is Annotated and get_args(kind)[0] is bool)


class OpenSection(Section):
    """A table that names a part (a rule, a model, a data source): keys that it does not know are that part's options.

    They are kept as they were said, and checked when the part is made (tacit/plugin.py): reading a file imports nothing.
    Raises BadInput for a value that TOML cannot say again.

    A part that was passed from Python travels with its table (`carrying`), under the name "python", and is in none of its texts.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    names_part: ClassVar[str] = "name"  # the key that names the part
    _part: Any = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _plain_options(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        rest = {str(key): value for key, value in values.items() if key not in own and value is not None}
        for key in rest:
            if not key.isidentifier():
                raise BadInput(
                    f"Expected the keys of [{cls.table()}] to be names such as learning_rate, got {key[:60]!r}."
                )
        return own | {key: _plain(rest[key], f"{cls.table()}.{key}") for key in sorted(rest)}

    def options(self) -> dict[str, Any]:
        """What was said beside the table's own keys."""
        passed = getattr(self, self.names_part) == PYTHON
        return {key: value for key, value in (self.model_extra or {}).items() if key != PASSED or not passed}

    @property
    def part(self) -> Any:
        """The part itself, where it was passed from Python."""
        return self._part

    def carrying(self, part: Any, *, passed: str) -> Self:
        """The table with this part in the place of the one that it names; `passed` is what its text says of it."""
        made = self.model_copy(update={self.names_part: PYTHON})
        made = type(self).model_validate(made.model_dump(exclude_none=True) | {PASSED: passed})
        made._part = part
        return made


def _plain(value: Any, key_path: str, *, depth: int = 0) -> Any:
    if isinstance(value, str | int | float):
        return value
    if depth < DEEPEST and isinstance(value, list | tuple):
        return [_plain(item, key_path, depth=depth + 1) for item in value]
    if depth < DEEPEST and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, key_path, depth=depth + 1) for key, item in value.items()}
    raise BadInput(f"Expected {key_path} to be a text, a number, or a list or table of them.")


# The `[data]` table of an experiment file: which data, and how its rows are shared among clients.

Kind = Literal["iid", "dirichlet", "shards", "natural"]
LARGEST_OWN = 0.9  # of a client's rows: the rest is what it trains on
KINDS: tuple[str, ...] = get_args(Kind)
CAPPED = (
    "data.examples_per_client is for rows that Tacit deals out: among clients that the data names, one more record would"
    " exchange the others' rows. Leave it out; data.held_out and data.own_share keep a share of each client's rows out of training,"
    " by a coin for each row."
)


class DataSection(OpenSection):
    """One data set and the way its rows are shared. `clients` is not used with `partition = "natural"`, where the data says
    how many there are; that is the partition of csv files with a column of clients, of several files, and of a folder of them,
    unless another one is said.

    >>> DataSection(name="mnist", partition="shards").shards_per_client
    10
    """

    name: str = "digits"  # digits, mnist, fashion-mnist, cifar10, csv, npz, or package.module:function
    clients: int = Field(20, description="how many clients share the rows")
    examples_per_client: int | None = Field(
        None,
        description="rows a client holds: exactly with iid and shards, at most with dirichlet; nothing: all",
    )
    partition: Kind = "iid"  # how rows are dealt out to clients
    alpha: float = Field(0.5, description="dirichlet: small is skewed")
    min_size: int = Field(10, description="dirichlet: the fewest rows a client may hold")
    held_out: float | None = Field(
        None, description="the share of its own rows that each client trains on never, and is asked about at the end"
    )
    own_share: float | None = Field(
        None,
        description="the share of its own rows that each client keeps to judge models by itself, and trains on never",
    )
    shards_per_client: int = Field(10, description="shards: 10 as in the PFA paper (FedAvg's own experiment has 2)")
    seed: int | None = Field(
        None, ge=0, description="of who gets which rows, and which are test rows, held out or kept; nothing: run.seed"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_clients(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("name") != "csv" or values.get("partition") is not None:
            return values
        path = values.get("path")
        several = isinstance(path, list | tuple) or (isinstance(path, str) and not path.lower().endswith(".csv"))
        named = several or values.get("client_column") is not None
        return {**values, "partition": "natural"} if named else values

    def possible(self) -> None:
        """Refuses numbers that no partition can meet."""
        check.at_least(1, **{"data.clients": self.clients})
        check.positive(**{"data.alpha": self.alpha})
        check.at_least(1, **{"data.min_size": self.min_size, "data.shards_per_client": self.shards_per_client})
        if self.held_out is not None:
            check.probability(**{"data.held_out": self.held_out})
        if self.own_share is not None:
            if not 0 < self.own_share <= LARGEST_OWN:
                raise BadInput(f"Expected data.own_share above 0 and at most {LARGEST_OWN}, got {self.own_share}.")
            if self.held_out is not None:
                raise BadInput(
                    "data.held_out rows are asked about and data.own_share rows never are, and a client is divided once: set one"
                    " of them."
                )
        most = self.examples_per_client
        if most is None:
            return
        if self.partition == "natural":
            raise BadInput(CAPPED)
        check.at_least(1, **{"data.examples_per_client": most})
        fewest = {"dirichlet": self.min_size, "shards": self.shards_per_client}.get(self.partition, 1)
        if most < fewest:
            key = "min_size" if self.partition == "dirichlet" else "shards_per_client"
            raise BadInput(f"Expected data.examples_per_client >= data.{key} = {fewest}, got {most}.")


# The `[task]` and `[metric]` tables of an experiment file: what a model is trained for, and how it is measured.


class TaskSection(OpenSection):
    """`[task]`: classification, binary, multilabel, regression or tokens, or anybody's as "package.module:name".

    `loss` names the loss that trains it, one of tacit/parts/losses.py or "package.module:name"; the other keys are its options.
    """

    names_part: ClassVar[str] = "kind"

    kind: str = "classification"  # classification, binary, multilabel, regression, tokens, or package.module:name
    loss: str | None = None  # the loss, where the task's own is not meant


class MetricSection(Section):
    """`[metric]`: `choose` names the metric that stands for the run everywhere; the task's own unless it is said.

    With `per_client` a simulation also measures its final model on every client's own rows (those it keeps by `data.own_share`,
    else those it trained on), and how clients differ: numbers from raw data, for the researcher, which no epsilon covers.
    `largest_error` is where the errors of a regression, and the log loss of a row, are cut on clients' held-out rows: no noise
    covers a number without bound.
    """

    choose: str | None = None  # the headline metric, where the task's own is not meant
    per_client: Annotated[bool, Strict()] = False  # also each client's metric on its rows, for the researcher
    largest_error: float | None = None  # of a regression: beyond it an error counts as this one when clients are asked

    def possible(self) -> None:
        """An error is cut above zero."""
        if self.largest_error is not None:
            check.positive(**{"metric.largest_error": self.largest_error})


# Which seed each kind of chance follows: its own where one is said, else `run.seed`.

if TYPE_CHECKING:
    from tacit.experiment import Experiment


@dataclass(frozen=True)
class Seeds:
    """The seeds of an experiment as they count.

    `data` decides who gets which rows and which are test rows, held out or kept; `epsilon` who draws which budget; `model` the
    initial weights; `noise`, where it is seeded, noise, cohorts and batches. What is left (who is malicious, what clients draw for
    models of their own) follows `run.seed`.

    Guarantee: an experiment that says none of them has `run.seed` in the place of each. No two releases share noise because they
    share a seed: the key of noise is the digest of the whole release (tacit/engine/release.py), in which every one of these stands.

    >>> from tacit.experiment import Experiment
    >>> Experiment(data={"seed": 7}, run={"seed": 3}).seeds
    Seeds(data=7, epsilon=3, model=3, noise=3)
    """

    data: int
    epsilon: int
    model: int
    noise: int

    @classmethod
    def of(cls, experiment: "Experiment") -> Self:
        """The seeds that an experiment says, with `run.seed` for those that it does not."""
        said = (experiment.data.seed, experiment.privacy.epsilon_seed, experiment.model.seed, experiment.run.noise_seed)
        return cls(*(experiment.run.seed if seed is None else seed for seed in said))
