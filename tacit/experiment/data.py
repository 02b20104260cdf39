"""The `[data]` table of an experiment file: which data, and how its rows are shared among clients.

How a source is read is the source's own to say: the other keys are the options of the file in tacit/data/sources that `name`
stands for, or of somebody's own as "package.module:name".
"""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import OpenSection

Kind = Literal["iid", "dirichlet", "shards", "natural"]
LARGEST_OWN = 0.9  # of a client's rows: the rest is what it trains on
KINDS: tuple[str, ...] = get_args(Kind)


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
        description="rows a client holds: exactly with iid and shards, at most with dirichlet and natural; nothing: all",
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
        check.at_least(1, **{"data.examples_per_client": most})
        fewest = {"dirichlet": self.min_size, "shards": self.shards_per_client}.get(self.partition, 1)
        if most < fewest:
            key = "min_size" if self.partition == "dirichlet" else "shards_per_client"
            raise BadInput(f"Expected data.examples_per_client >= data.{key} = {fewest}, got {most}.")
