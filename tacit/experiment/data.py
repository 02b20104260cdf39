"""The `[data]` table of an experiment file: which data, how it is read, and how it is shared among clients.

Leak rule: whatever turns raw values into features is public. Images are divided by 255 and digits by 16; a csv column
is scaled by the range declared in `numeric`, or taken as it stands; the values of a text column are declared in
`categorical` and the labels in `classes`. The one exception must be written out: `classes = "from-data"` makes the
labels found public.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tacit import check
from tacit.errors import BadInput

Name = Literal["digits", "mnist", "fashion-mnist", "cifar10", "csv", "npz"]
Kind = Literal["iid", "dirichlet", "shards", "natural"]
NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "csv", "npz")
KINDS = ("iid", "dirichlet", "shards", "natural")
FROM_DATA = "from-data"
ONLY_FOR = {  # keys that would be ignored elsewhere, so there they are refused
    "classes": ("csv", "npz"),
    "test_path": ("csv", "npz"),
    "client_column": ("csv",),
    "numeric": ("csv",),
    "categorical": ("csv",),
    "columns": ("csv",),
    "ignore": ("csv",),
    "divide_by": ("npz",),
}


class DataSection(BaseModel):
    """One data set and the way its rows are shared. Frozen; an unknown key is refused.

    `clients` is not used with `partition = "natural"`, where the data says how many there are.

    >>> DataSection(name="mnist", partition="shards").shards_per_client
    10
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)  # classes = [0, 1] are names

    name: Name = "digits"
    path: str | None = Field(None, description="folder or file of the data; None looks in $TACIT_DATA and the cache")
    clients: int = Field(20, description="how many clients share the rows")
    examples_per_client: int | None = Field(
        None,
        description="rows a client holds: exactly with iid and shards, at most with dirichlet and natural; None = all",
    )
    partition: Kind = "iid"
    alpha: float = Field(0.5, description="dirichlet: small is skewed")
    min_size: int = Field(10, description="dirichlet: the fewest rows a client may hold")
    shards_per_client: int = Field(10, description="shards: 10 as in the PFA paper (FedAvg's own experiment has 2)")
    label: str = Field("label", description="csv: the column of the label")
    classes: int | str | tuple[str, ...] | None = Field(
        None, description='csv, npz: the labels as a list, a number c for 0..c-1, or "from-data"'
    )
    client_column: str | None = Field(
        None, description="csv: the column that names the client; None with a file per client"
    )
    test_path: str | None = Field(
        None, description="csv, npz: the test rows; None holds out test_share of every client"
    )
    test_share: float = Field(0.2, description="csv, npz: the share of each client's rows held out, by the run's seed")
    numeric: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="csv: public range per column, scaled to [0, 1] and clamped; others stay as they are",
    )
    categorical: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description='csv: public values per column; a value "other" takes every unknown one'
    )
    columns: tuple[str, ...] | None = Field(
        None, description="csv: the features, in this order; None takes them as the first file has them"
    )
    ignore: tuple[str, ...] = Field((), description="csv: columns to leave out")
    missing: float | str = Field(
        "refuse",
        description='csv: "refuse", "drop" the row, or a number to read in its place (text: a category "missing")',
    )
    divide_by: float = Field(1.0, description="npz: a public constant that x is divided by, such as 255")

    @model_validator(mode="before")
    @classmethod
    def _plain_values(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for key, value in values.items():
            if isinstance(value, bool) and key in cls.model_fields:
                raise BadInput(f"Expected data.{key} to be a text or a number, got {str(value).lower()}.")
        check.one_of(NAMES, **{"data.name": values.get("name", "digits")})
        check.one_of(KINDS, **{"data.partition": values.get("partition", "iid")})
        return values

    @model_validator(mode="after")
    def _possible(self) -> "DataSection":
        _check_sharing(self)
        _check_source(self)
        if self.name in ("csv", "npz"):
            _check_classes(self.classes)
        _check_columns(self)
        return self


def _check_sharing(section: DataSection) -> None:
    """Refuses numbers that no partition can meet."""
    check.at_least(1, **{"data.clients": section.clients})
    check.positive(**{"data.alpha": section.alpha})
    check.at_least(1, **{"data.min_size": section.min_size, "data.shards_per_client": section.shards_per_client})
    most = section.examples_per_client
    if most is None:
        return
    check.at_least(1, **{"data.examples_per_client": most})
    fewest = {"dirichlet": section.min_size, "shards": section.shards_per_client}.get(section.partition, 1)
    if most < fewest:
        key = "min_size" if section.partition == "dirichlet" else "shards_per_client"
        raise BadInput(f"Expected data.examples_per_client >= data.{key} = {fewest}, got {most}.")


def _check_source(section: DataSection) -> None:
    """Refuses keys that do not belong to the named source."""
    for key, names in ONLY_FOR.items():
        default = type(section).model_fields[key].get_default(call_default_factory=True)
        if section.name not in names and getattr(section, key) != default:
            raise BadInput(f"data.{key} is only for name = {' or '.join(names)}, not {section.name}: remove it.")
    if section.name in ("csv", "npz") and section.path is None:
        raise BadInput(
            f'Expected data.path to say where the {section.name} data is, as in path = "records.{section.name}".'
        )
    if section.partition == "natural" and section.name not in ("csv", "npz"):
        raise BadInput(
            f"{section.name} names no clients, so partition = natural cannot be used: choose iid, dirichlet or shards."
        )
    check.probability(**{"data.test_share": section.test_share})
    check.positive(**{"data.divide_by": section.divide_by})


def _check_classes(classes: int | str | tuple[str, ...] | None) -> None:
    """Refuses labels that are not declared, and declarations that name no classification."""
    if classes is None or (isinstance(classes, str) and classes != FROM_DATA):
        raise BadInput(
            'Expected data.classes to declare the labels, as in classes = ["no", "yes"] or classes = 10; '
            'classes = "from-data" makes the labels found in the data public.'
        )
    count = classes if isinstance(classes, int) else len(set(classes))
    if count < 2 or (isinstance(classes, tuple) and count < len(classes)):
        raise BadInput(f"Expected data.classes to declare at least 2 labels, each once, got {classes!r}.")


def _check_columns(section: DataSection) -> None:
    """Refuses ranges, vocabularies and roles that contradict each other."""
    for column, (low, high) in section.numeric.items():
        check.finite(**{f"data.numeric.{column}": low})
        check.finite(**{f"data.numeric.{column}": high})
        if low >= high:
            raise BadInput(f"Expected data.numeric.{column} = [low, high] with low < high, got [{low}, {high}].")
    for column, values in section.categorical.items():
        if not values or len(set(values)) < len(values):
            raise BadInput(f"Expected data.categorical.{column} to list its values, each once, got {list(values)}.")
    _check_pinned(section)
    roles = [section.label, section.client_column, *section.numeric, *section.categorical, *section.ignore]
    for column in roles:
        if column is not None and roles.count(column) > 1:
            raise BadInput(
                f"Column {column!r} has two roles in [data]: name it once among label, client_column, numeric, "
                "categorical and ignore."
            )
    if isinstance(section.missing, str):
        if section.missing not in ("refuse", "drop"):
            raise BadInput(f'Expected data.missing to be "refuse", "drop" or a number, got {section.missing!r}.')
    else:
        check.finite(**{"data.missing": section.missing})


def _check_pinned(section: DataSection) -> None:
    """Refuses a list of features that leaves out a declared one, or takes in what is none."""
    if section.columns is None:
        return
    if not section.columns or len(set(section.columns)) < len(section.columns):
        raise BadInput(f"Expected data.columns to list the features, each once, got {list(section.columns)}.")
    for column in (*section.numeric, *section.categorical):
        if column not in section.columns:
            raise BadInput(f"data.columns leaves out {column!r}, which has a range or values: add it there.")
    for column in (section.label, section.client_column, *section.ignore):
        if column in section.columns:
            raise BadInput(f"data.columns names {column!r}, which is no feature: take it out there.")
