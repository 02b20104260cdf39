"""`csv`: records from a folder with one file per client, or from one file, with or without a column that names the client.

The first line names the columns. What is neither the label, the client nor ignored is a feature.
"""

from dataclasses import dataclass, field

from rich.progress import Progress

from tacit import check
from tacit.data import csv_files
from tacit.data.dataset import Dataset
from tacit.data.names import Classes, Word, refuse_undeclared
from tacit.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class csv:
    """How csv files are read. Without `test_path`, `test_share` of every client's rows is held out, by the run's seed.

    Raises BadInput for ranges, vocabularies and roles that contradict each other.
    """

    path: str | None = None  # a file, or a folder with a file per client
    label: str = "label"
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, or "from-data"
    client_column: str | None = None  # names the client of a row; None with a file per client
    test_path: str | None = None
    test_share: float = 0.2
    numeric: dict[str, tuple[float, float]] = field(default_factory=dict)  # public ranges: scaled to [0, 1] and clamped
    categorical: dict[str, tuple[Word, ...]] = field(default_factory=dict)  # "other" takes every unknown value
    columns: tuple[str, ...] | None = None  # the features, in this order; None takes them as the first file has them
    ignore: tuple[str, ...] = ()
    missing: float | str = "refuse"  # or "drop" the row, or a number in its place (text: a category "missing")

    def __post_init__(self) -> None:
        refuse_undeclared("csv", self.path, self.classes)
        check.probability(**{"data.test_share": self.test_share})
        self._refuse_ranges()
        self._refuse_pinned()
        self._refuse_two_roles()
        if not isinstance(self.missing, str):
            check.finite(**{"data.missing": self.missing})
        elif self.missing not in ("refuse", "drop"):
            raise BadInput(f'Expected data.missing to be "refuse", "drop" or a number, got {self.missing!r}.')

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads csv files as [n, features]. Raises BadData naming file, line and column."""
        return csv_files.load(self, seed=seed)

    def _refuse_ranges(self) -> None:
        for column, (low, high) in self.numeric.items():
            check.finite(**{f"data.numeric.{column}": low})
            check.finite(**{f"data.numeric.{column}": high})
            if low >= high:
                raise BadInput(f"Expected data.numeric.{column} = [low, high] with low < high, got [{low}, {high}].")
        for column, values in self.categorical.items():
            if not values or len(set(values)) < len(values):
                raise BadInput(f"Expected data.categorical.{column} to list its values, each once, got {list(values)}.")

    def _refuse_two_roles(self) -> None:
        roles = [self.label, self.client_column, *self.numeric, *self.categorical, *self.ignore]
        for column in roles:
            if column is not None and roles.count(column) > 1:
                raise BadInput(
                    f"Column {column!r} has two roles in [data]: name it once among label, client_column, numeric, "
                    "categorical and ignore."
                )

    def _refuse_pinned(self) -> None:
        """Refuses a list of features that leaves out a declared one, or takes in what is none."""
        if self.columns is None:
            return
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise BadInput(f"Expected data.columns to list the features, each once, got {list(self.columns)}.")
        for column in (*self.numeric, *self.categorical):
            if column not in self.columns:
                raise BadInput(f"data.columns leaves out {column!r}, which has a range or values: add it there.")
        for column in (self.label, self.client_column, *self.ignore):
            if column in self.columns:
                raise BadInput(f"data.columns names {column!r}, which is no feature: take it out there.")
