"""`csv`: records from a folder with one file per client, from several files, or from one, with or without a column that names the
client.

The first line names the columns, or `header` does. What is neither the label, the client nor ignored is a feature, and every
feature is declared: a number by its public range, a text by its public values.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Strict
from rich.progress import Progress

from tacit import check
from tacit.data import csv as csv_files
from tacit.data.csv import column_of, declared_classes
from tacit.data.dataset import Dataset
from tacit.data.names import Classes, Word, plain, refuse_undeclared
from tacit.errors import BadInput

Fill = Annotated[float, Strict()] | str  # true is no number
Range = tuple[float, float] | Literal["unscaled", "private"]


@dataclass(frozen=True, kw_only=True)
class csv:
    """How csv files are read. Without `test_path`, about `test_share` of the rows is held out, by a coin for each; 0 is none.

    Raises BadInput for ranges, vocabularies and roles that contradict each other.
    """

    path: str | tuple[str, ...] | None = None  # a file, a folder with a file per client, or several files
    label: str = "label"  # the column that a model predicts
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    client_column: str | None = (
        None  # names the client of a row; nothing: there is a file for each client, or rows are dealt out
    )
    test_path: str | None = None  # a file, or a folder of files, of public test rows; nothing: `test_share`
    test_share: float = 0.2  # of the rows, held out by a coin for each where there is no test_path; 0: none
    numeric: dict[str, Range] | Literal["unscaled"] = field(
        default_factory=dict
    )  # by column: public ranges, or "private"
    wide: dict[str, tuple[float, float]] = field(default_factory=dict)  # by column: where a private range is looked for
    categorical: dict[str, tuple[Word, ...]] = field(default_factory=dict)  # values by column; "other" takes the rest
    columns: tuple[str, ...] | None = None  # the features, in this order; nothing: as the first file has them
    header: tuple[str, ...] = ()  # the names of all columns, of files without a first line of names
    ignore: tuple[str, ...] = ()  # columns that are no features
    missing: Fill | dict[str, Fill] = (
        "refuse"  # or "drop" the row, or a number in its place (of texts: "missing", or a value); or a table by column
    )
    indicators: tuple[str, ...] = ()  # filled columns that get a second feature: 1 where the value was missing

    def __post_init__(self) -> None:
        refuse_undeclared("csv", self.path if isinstance(self.path, str | None) else " ".join(self.path), self.classes)
        if self.test_share != 0:  # 0: nobody's rows are made public
            check.probability(**{"data.test_share": self.test_share})
        self._refuse_ranges()
        self._refuse_pinned()
        self._refuse_two_roles()
        self._refuse_missing()

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads csv files as [n, features]. Raises BadData naming file, line and column."""
        return csv_files.load(self, seed=seed)

    @property
    def ranged(self) -> dict[str, Range]:
        """What is said of single numeric columns."""
        return {} if isinstance(self.numeric, str) else self.numeric

    def _refuse_ranges(self) -> None:
        for column, limits in self.ranged.items():
            if isinstance(limits, str):
                continue
            for end in limits:
                check.finite(**{f"data.numeric.{column}": end})
            if limits[0] >= limits[1]:
                raise BadInput(
                    f"Expected data.numeric.{column} = [low, high] with low < high, got [{limits[0]}, {limits[1]}]."
                )
        for column, (low, high) in self.wide.items():
            if self.ranged.get(column) != "private":
                raise BadInput(
                    f'data.wide.{column} is where a private range is looked for: set data.numeric.{column} = "private".'
                )
            check.finite(**{f"data.wide.{column}": low})
            check.finite(**{f"data.wide.{column}": high})
            if low >= high:
                raise BadInput(f"Expected data.wide.{column} = [low, high] with low < high, got [{low}, {high}].")
        for column, values in self.categorical.items():
            if not values or len({plain(value) for value in values}) < len(values):
                raise BadInput(f"Expected data.categorical.{column} to list its values, each once, got {list(values)}.")
        known = declared_classes(self)
        if len({plain(name) for name in known}) < len(known):
            raise BadInput("data.classes lists one label twice: 1 and 1.0 are one.")

    def _refuse_two_roles(self) -> None:
        roles = [self.label, self.client_column, *self.ranged, *self.categorical, *self.ignore]
        for column in roles:
            if column is not None and roles.count(column) > 1:
                raise BadInput(
                    f"Column {column!r} has two roles in [data]: name it once among label, client_column, numeric, "
                    "categorical and ignore."
                )

    def _refuse_pinned(self) -> None:
        """Refuses a list of features that leaves out a declared one, or takes in what is none."""
        if len(set(self.header)) < len(self.header):
            raise BadInput(f"Expected data.header to name the columns, each once, got {list(self.header)}.")
        if self.columns is None:
            return
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise BadInput(f"Expected data.columns to list the features, each once, got {list(self.columns)}.")
        for column in (*self.ranged, *self.categorical):
            if column not in self.columns:
                raise BadInput(f"data.columns leaves out {column!r}, which has a range or values: add it there.")
        for column in (self.label, self.client_column, *self.ignore):
            if column in self.columns:
                raise BadInput(f"data.columns names {column!r}, which is no feature: take it out there.")

    def _refuse_missing(self) -> None:
        """Refuses what cannot stand in for a missing value."""
        by_column = self.missing if isinstance(self.missing, dict) else {"": self.missing}
        for column, said in by_column.items():
            if not isinstance(said, str):
                check.finite(**{f"data.missing.{column}".rstrip("."): said})
        if isinstance(self.missing, str) and self.missing not in ("refuse", "drop"):
            raise BadInput(
                f'Expected data.missing to be "refuse", "drop" or a number, or a table of them by column, got {self.missing!r}.'
            )
        self._refuse_misspelt(by_column if isinstance(self.missing, dict) else {})
        for column in {*self.categorical, *self.indicators, *(by_column if isinstance(self.missing, dict) else ())}:
            column_of(column, self)

    def _refuse_misspelt(self, missing: Collection[str]) -> None:
        """Refuses a column of data.missing that nothing else declares where another, which has no value there, is named alike."""
        declared = {*self.ranged, *self.categorical, *self.indicators, *(self.columns or ()), *self.header}
        for column in missing:
            near = check.nearest(column, sorted(declared.difference(missing)))
            if column not in declared and near:
                raise BadInput(f"data.missing names {column!r}, which no other key of [data] declares.{near}")
