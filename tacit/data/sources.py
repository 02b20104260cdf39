"""Where rows come from: a class for each `data.name`, whose fields are its options in `[data]`; `load` reads the rows.

Leak rule: whatever turns raw values into features is public. Images are divided by 255 and digits by 16; a csv column is scaled
by the range declared in `numeric`, or taken as it stands; the values of a text column are declared in `categorical` and the
labels in `classes`. The one exception must be written out: `classes = "from-data"` makes the labels found public.
Somebody's own source is "package.module:name" (docs/how-to-extend.md)."""

import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, Strict
from rich.progress import Progress

from tacit import check
from tacit.data import csv as csv_files
from tacit.data import images, names
from tacit.data.columns import column_of
from tacit.data.csv import declared_classes
from tacit.data.dataset import Dataset, reading
from tacit.data.names import Classes, Word, plain, refuse_undeclared
from tacit.data.table import Table, client_codes, dataset, features, numbers, one_label_each, with_classes
from tacit.errors import BadData, BadInput
from tacit.experiment.schema import Count, Positive
from tacit.plugin import part

Fill = Annotated[float, Strict()] | str  # true is no number
Fraction = Annotated[float, Field(ge=0, lt=1)]  # 0: nobody's rows are made public
Range = tuple[float, float] | Literal["unscaled", "private"]


class Source(Protocol):
    """Where rows come from. Making it checks its options and opens nothing."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads the rows. `seed` chooses which are held out for testing, where the source holds some out; a download shows its bar
        in `progress`. Raises BadData.
        """
        ...


@part
@dataclass(frozen=True)
class digits:
    """The digits of scikit-learn; there is nothing to choose."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads them as [n, 1, 8, 8] in [0, 1]; the test rows are the same for every seed."""
        return images.read_digits()


@dataclass(frozen=True)
class _Images:
    path: str | None = None  # its folder; nothing: $TACIT_DATA and the cache are searched, else it is downloaded


@part
@dataclass(frozen=True)
class mnist(_Images):
    """MNIST."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 1, 28, 28] in [0, 1]. Raises BadData."""
        return images.read_mnist("mnist", path=self.path, progress=progress)


@part
@dataclass(frozen=True)
class fashion_mnist(_Images):
    """Fashion-MNIST."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 1, 28, 28] in [0, 1]. Raises BadData."""
        return images.read_mnist("fashion-mnist", path=self.path, progress=progress)


@part
@dataclass(frozen=True)
class cifar10(_Images):
    """CIFAR-10."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 3, 32, 32] in [0, 1]. Raises BadData."""
        return images.read_cifar10(path=self.path, progress=progress)


@part
@dataclass(frozen=True, kw_only=True)
class csv:
    """Records from a folder with one file per client, from several files, or from one, with or without a column of clients.

    The first line names the columns, or `header` does. What is neither the label, the client nor ignored is a feature, and every
    feature is declared: a number by its public range, a text by its public values. Without `test_path`, about `test_share` of the
    rows is held out, by a coin for each; 0 is none.

    Raises BadInput for ranges, vocabularies and roles that contradict each other.
    """

    path: str | tuple[str, ...] | None = None  # a file, a folder with a file per client, or several files
    label: str = "label"  # the column that a model predicts
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    client_column: str | None = (
        None  # names the client of a row; nothing: there is a file for each client, or rows are dealt out
    )
    test_path: str | None = None  # a file, or a folder of files, of public test rows; nothing: `test_share`
    test_share: Fraction = 0.2  # of the rows, held out by a coin for each where there is no test_path; 0: none
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
        for column in self.wide:
            if self.ranged.get(column) != "private":
                raise BadInput(
                    f'data.wide.{column} is where a private range is looked for: set data.numeric.{column} = "private".'
                )
        ranges = [(f"data.numeric.{column}", ends) for column, ends in self.ranged.items() if not isinstance(ends, str)]
        for key, (low, high) in [*ranges, *((f"data.wide.{column}", ends) for column, ends in self.wide.items())]:
            check.finite(**{key: low})
            check.finite(**{key: high})
            if low >= high:
                raise BadInput(f"Expected {key} = [low, high] with low < high, got [{low}, {high}].")
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
        declared = {*self.ranged, *self.categorical, *self.indicators, *(self.columns or ()), *self.header}
        for column in missing:
            near = check.nearest(column, sorted(declared.difference(missing)))
            if column not in declared and near:
                raise BadInput(f"data.missing names {column!r}, which no other key of [data] declares.{near}")


ARRAYS = ("x", "y", "client", "x_test", "y_test")
TOKENS = 2  # dimensions of rows of token numbers
BROKEN = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


@part
@dataclass(frozen=True, kw_only=True)
class npz:
    """Arrays from one .npz file: x [n, ...] and y [n], and where they exist client [n], x_test and y_test. No pickle is loaded.

    Labels are texts or integers; integers are class names where every declared class is one, else positions in the declared list.
    `classes` are the labels as a list, a number c for 0..c-1 (also of rows of tokens), "from-data", or "numbers" where y are
    numbers, or rows of 0 and 1 for several labels. x is divided by the public constant `divide_by`. Without test rows
    about `test_share` of the rows is held out, by a coin for each that is keyed by the run's seed. `shape` is that of one row of x,
    `label_shape` that of one of y; other rows are refused, and who has no rows knows by it what they look like.
    """

    path: str | None = None  # the .npz file
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    test_path: str | None = None  # an .npz file of public test rows; nothing: x_test and y_test, else `test_share`
    test_share: Fraction = 0.2  # of the rows, held out by a coin for each where there are no test rows; 0: none
    divide_by: Positive = 1.0  # the public constant that x is divided by
    shape: tuple[Count, ...] | None = None  # of one row of x; other rows are refused
    label_shape: tuple[Count, ...] = ()  # of one row of y: of numbers, of 0 and 1, or of tokens

    def __post_init__(self) -> None:
        refuse_undeclared("npz", self.path, self.classes)
        if self.shape is None and self.label_shape:
            raise BadInput("data.label_shape is for rows of y beside those of x: set data.shape too.")

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads the arrays. Raises BadData naming the file and array, and the client and row of NaN or infinity."""
        return rows_of(self, seed=seed)


def rows_of(source: npz, *, seed: int) -> Dataset:
    """The file's rows as a data set. Raises BadData."""
    path = str(source.path)
    arrays = read_npz(path)
    _refuse_other_shapes(arrays, source)
    whose = arrays.get("client")
    clients = None if whose is None else client_codes(whose, where=f"client of {path}", rows=len(arrays["y"]))
    vocabulary = source.classes if isinstance(source.classes, int) and arrays["y"].ndim == TOKENS else 0
    how: dict[str, Any] = {"divide_by": source.divide_by, "tokens": vocabulary > 0}
    test_path, tests = _tests(arrays, source)
    target = numbers if source.classes == names.NUMBERS else one_label_each

    def table(x: np.ndarray, y: np.ndarray, words: tuple[str, str], clients: names.Coded | None = None) -> Table:
        rows = features(x, where=words[0], clients=clients, **how)
        return Table(rows, y if vocabulary else target(y, where=words[1], rows=len(rows)), clients)

    rows = table(arrays["x"], arrays["y"], (f"x of {path}", f"y of {path}"), clients)
    words = f"the test rows of {test_path}", f"the test labels of {test_path}"
    tables, notes = [rows, *([table(*tests, words)] if tests else [])], ()
    class_names = tuple(map(str, range(vocabulary)))
    if not vocabulary:
        tables, class_names, notes = with_classes(tables, source.classes, places=(path, test_path), key="data.classes")
    encoder = reading(tables[0].x, torch.from_numpy(tables[0].y), class_names, divide_by=source.divide_by)
    more: dict[str, Any] = {"class_names": class_names, "share": source.test_share, "seed": seed, "notes": notes}
    return dataset("npz", tables[0], tables[1] if tests else None, **more, encoder=encoder)


def _refuse_other_shapes(arrays: dict[str, np.ndarray], source: npz) -> None:
    for name, wanted in (("x", source.shape), ("y", source.label_shape)) if source.shape is not None else ():
        if arrays[name].shape[1:] != wanted:
            found, key = list(arrays[name].shape[1:]), "data.shape" if name == "x" else "data.label_shape"
            raise BadData(f"{name} of {source.path} has rows of shape {found}, and {key} says {list(wanted or ())}.")


def read_npz(path: str, *, key: str = "data.path") -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which `key` names. Raises: BadData if it is no such file, or holds other arrays than these."""
    if not Path(path).expanduser().is_file():
        raise BadData(f"{path} does not exist: correct {key}.")
    try:
        with Path(path).expanduser().open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (*BROKEN, AttributeError, TypeError) as error:
        raise BadData(
            f"{path} cannot be read as an .npz file of plain arrays ({error}): save it with numpy.savez."
        ) from error
    for name in arrays:
        check.one_of(ARRAYS, **{f"the arrays of {path}": name})
    if absent := {"x", "y"}.difference(arrays):
        raise BadData(f"{path} lacks the array {' and '.join(sorted(absent))}: it holds {', '.join(arrays) or 'none'}.")
    return arrays


def _tests(arrays: dict[str, np.ndarray], source: npz) -> tuple[str, tuple[np.ndarray, np.ndarray] | None]:
    inside = [name for name in ("x_test", "y_test") if name in arrays]
    if source.test_path is not None:
        if inside:
            raise BadData(f"{source.path} holds {' and '.join(inside)}, so data.test_path must go: choose one of them.")
        other = read_npz(source.test_path, key="data.test_path")
        return source.test_path, (other["x"], other["y"])
    if len(inside) == 1:
        raise BadData(f"{source.path} holds {inside[0]} alone: expected x_test and y_test together.")
    return str(source.path), (arrays["x_test"], arrays["y_test"]) if inside else None
