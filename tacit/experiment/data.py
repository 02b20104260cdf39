"""The tables of the data and of what is learned from it: `[data]`, `[task]`, `[metric]`, and the seeds of all chance."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, Strict, model_validator

from tacit.errors import BadInput
from tacit.experiment.schema import Count, OpenSection, Part, Positive, Section, Whole

Kind = Literal["iid", "dirichlet", "shards", "natural"]
LARGEST_OWN = 0.9  # of a client's rows: the rest is what it trains on
DEALT = ("clients", "alpha", "min_size", "shards_per_client", "examples_per_client")  # of no effect with natural
PRIVATE = "private"  # in the place of a range: it is asked for
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
    clients: Count = 20  # how many clients share the rows
    examples_per_client: Count | None = None  # exactly with iid and shards, at most with dirichlet; default: all
    partition: Kind = "iid"  # how rows are dealt out to clients
    alpha: Positive = 0.5  # dirichlet: small is skewed
    min_size: Count = 10  # dirichlet: the fewest rows a client may hold
    shards_per_client: Count = 10  # shards: 10 as in the PFA paper (FedAvg's own experiment has 2)
    held_out: Part | None = None  # the share of its rows that a client trains on never, and is asked about at the end
    own_share: Annotated[float, Field(gt=0, le=LARGEST_OWN)] | None = None  # of its rows, for judging models by itself

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
        if self.own_share is not None and self.held_out is not None:
            raise BadInput(
                "data.held_out rows are asked about and data.own_share rows never are, and a client is divided once: set one"
                " of them."
            )
        if self.examples_per_client is None:
            return
        if self.partition == "natural":
            raise BadInput(CAPPED)
        key = {"dirichlet": "min_size", "shards": "shards_per_client"}.get(self.partition)
        if key and self.examples_per_client < getattr(self, key):
            raise BadInput(
                f"Expected data.examples_per_client >= data.{key} = {getattr(self, key)}, got {self.examples_per_client}."
            )

    @property
    def private_columns(self) -> dict[str, tuple[float, float] | None]:
        """The csv columns whose ranges are asked for, in alphabetical order, and where each is looked for if that is said."""
        numeric = self.options().get("numeric") if self.name == "csv" else None
        found = {key: said for key, said in numeric.items() if _is_private(said)} if isinstance(numeric, dict) else {}
        return {key: tuple(said[PRIVATE]) if isinstance(said, dict) else None for key, said in sorted(found.items())}


def _is_private(said: Any) -> bool:
    return said == PRIVATE or (isinstance(said, dict) and set(said) == {PRIVATE})


class TaskSection(OpenSection):
    """`[task]`: classification, binary, multilabel, regression or tokens, or anybody's as "package.module:name". `loss` names
    the loss that trains it, one of tacit/parts/losses.py or "package.module:name"; the other keys are its options."""

    names_part: ClassVar[str] = "kind"

    kind: str = "classification"  # classification, binary, multilabel, regression, tokens, or package.module:name
    loss: str | None = None  # the loss, where the task's own is not meant


class MetricSection(Section):
    """`[metric]`: `choose` names the metric that stands for the run everywhere; the task's own unless it is said. With
    `per_client` a simulation also measures its final model on every client's own rows (those it keeps by `data.own_share`, else
    those it trained on), and how clients differ: numbers from raw data, for the researcher, which no epsilon covers.
    `largest_error` is where the errors of a regression, and the log loss of a row, are cut on clients' held-out rows: no noise
    covers a number without bound."""

    choose: str | None = None  # the headline metric, where the task's own is not meant
    per_client: Annotated[bool, Strict()] = False  # also each client's metric on its rows, for the researcher
    largest_error: Positive | None = (
        None  # of a regression: beyond it an error counts as this one when clients are asked
    )


class SeedSection(Section):
    """`[seed]`: kinds of chance that have a seed of their own; `run.seed` stands for those that are not said."""

    data: Whole | None = (
        None  # of who gets which rows and draws which epsilon, and which rows are for tests, held out or kept
    )
    model: Whole | None = None  # of the initial weights
    noise: Whole | None = None  # of noise, cohorts and batches, where they are seeded


class Seeds(NamedTuple):
    """The seeds of an experiment as they count. What has none here (who is malicious, what clients draw for models of their
    own) follows `run.seed`. Guarantee: no two releases share noise because they share a seed: the key of noise is the digest of
    the whole release (tacit/engine/release.py), in which every one of these stands.

    >>> from tacit.experiment import Experiment
    >>> Experiment(seed={"data": 7}, run={"seed": 3}).seeds
    Seeds(data=7, model=3, noise=3)
    """

    data: int
    model: int
    noise: int
