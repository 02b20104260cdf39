"""Where rows come from: a class for each `data.name`, whose fields are its options in `[data]`; and how such a table is read.
Leak rule: whatever turns raw values into features is public. Images are divided by 255 and digits by 16; a csv column is scaled
by the range declared in `numeric`, or taken as it stands; the values of a text column are declared in `categorical` and the
labels in `classes`. The one exception must be written out: `classes = "from-data"` makes the labels found public. Somebody's
own source is "package.module:name" (docs/how-to-extend.md)."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, Strict
from rich.progress import Progress

from tacit import check, plugin
from tacit.data import csv as csv_files
from tacit.data import images, texts
from tacit.data.csv import declared_classes
from tacit.data.dataset import LEARNED, Dataset, dataset, reading, table, with_classes
from tacit.data.encoder import column_of, declared_columns
from tacit.data.texts import Classes, Word, plain, refuse_undeclared
from tacit.errors import BadData, BadInput, TacitError
from tacit.experiment.data import DEALT, DataSection
from tacit.experiment.schema import Count, Positive
from tacit.plugin import part

ROOM = "tacit.data.sources"
PLACES = ("path", "test_path", "shape", "label_shape")  # where rows lie and what they must look like: in nobody's hands
EMPTY = ({}, (), [], "")

Fill = Annotated[float, Strict()] | str  # true is no number
Fraction = Annotated[float, Field(ge=0, lt=1)]  # 0: nobody's rows are made public
Span = tuple[float, float]
Range = Span | Literal["unscaled", "private"] | Annotated[dict[Literal["private"], Span], Field(min_length=1)]


class Source(Protocol):
    """Where rows come from. Making it checks its options and opens nothing."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads the rows. `seed` chooses which are held out for testing, where the source holds some out; a download shows its
        bar in `progress`. Raises BadData."""
        ...


def source(section: DataSection) -> Source:
    """The source that a section names, with its options checked; no row is read yet. Raises BadInput.

    >>> source(DataSection(name="csv", path="records.csv", classes=["no", "yes"])).label
    'label'
    """
    factory = plugin.find(ROOM, section.name, key="data.name")
    made = plugin.make(factory, section.options(), table="data", keys=type(section).model_fields)
    if not callable(getattr(made, "load", None)):
        raise BadInput(
            f"Expected data.name = {section.name!r} to make a source with a method `load`, got {made!r:.60}."
        )
    return made


def settings(section: DataSection) -> dict[str, Any]:
    """How a section's rows are read and shared: every key as it counts, whether it was written out or not."""
    own = section.model_dump(include=set(type(section).model_fields))
    if section.part is not None:
        return own | section.part.settings()
    made = source(section)
    return own | (asdict(made) if is_dataclass(made) and not isinstance(made, type) else section.options())


def identity(section: DataSection) -> dict[str, Any]:
    """What decides in which hands a record is and how it is read: what a ledger belongs to. Guarantee: an option that is empty
    counts as if nobody had ever heard of it, so that one more changes no ledger's identity."""
    dealt = DEALT if section.partition == "natural" else ()
    used = {key: value for key, value in settings(section).items() if key not in (*PLACES, *dealt)}
    return {key: value for key, value in used.items() if value is not None and value not in EMPTY}


def load(section: DataSection, *, seed: int, progress: Progress | None = None) -> Dataset:
    """Reads the data set that the section names, downloading a public one that is nowhere on this machine, or takes the one that
    was passed from Python. The seed chooses only which rows are held out for testing. Raises BadInput, BadData.

    >>> load(DataSection(name="digits"), seed=0).x.shape
    torch.Size([1438, 1, 8, 8])
    """
    if section.part is not None:
        return section.part.rows
    made = source(section)
    try:
        found = made.load(seed=seed, progress=progress)
    except TacitError:
        raise
    except Exception as error:  # of somebody's own source
        words = plugin.said(error)  # may quote a row
        raise BadData(f"The data {section.name!r} cannot be read ({words!r}).", cell=words) from error
    if not isinstance(found, Dataset):
        got = f"{type(found).__module__}.{type(found).__qualname__}"
        raise BadInput(f"Expected data.name = {section.name!r} to give a tacit.data.dataset.Dataset, got a {got}.")
    return found


@part
@dataclass(frozen=True)
class digits:
    """The digits of scikit-learn as [n, 1, 8, 8] in [0, 1]; the test rows are the same for every seed."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        return images.read_digits()


@dataclass(frozen=True)
class _Images:
    path: str | None = None  # its folder; default: $TACIT_DATA and the cache are searched, else it is downloaded

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        return images.read(type(self).__name__.replace("_", "-"), path=self.path, progress=progress)


@part
@dataclass(frozen=True)
class mnist(_Images):
    """MNIST as [n, 1, 28, 28] in [0, 1]."""


@part
@dataclass(frozen=True)
class fashion_mnist(_Images):
    """Fashion-MNIST as [n, 1, 28, 28] in [0, 1]."""


@part
@dataclass(frozen=True)
class cifar10(_Images):
    """CIFAR-10 as [n, 3, 32, 32] in [0, 1]."""


@part
@dataclass(frozen=True, kw_only=True)
class csv:
    """Records from a folder with one file per client, from several files, or from one, with or without a column of clients. The
    first line names the columns, or `header` does. The features are those in `columns`, else all but the label and the client,
    and every feature is declared: a number by its public range, a text by its public values. Without `test_path`, about
    `test_share` of the rows is held out, by a coin for each. Raises BadInput for declarations that contradict each other."""

    path: str | tuple[str, ...] | None = None  # a file, a folder with a file per client, or several files
    label: str = "label"  # the column that a model predicts
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    client_column: str | None = (
        None  # names the client of a row; default: a client for each file, or rows are dealt out
    )
    person: str | None = None  # names the person of a row, for privacy.unit = "person"; of each id a hash is kept
    test_path: str | None = None  # a file, or a folder of files, of public test rows; default: `test_share`
    test_share: Fraction = 0.2  # of the rows, held out by a coin for each where there is no test_path; 0: none
    # by column: its public range, "private", or {private = [low, high]}: where its range is looked for
    numeric: dict[str, Range] | Literal["unscaled"] = field(default_factory=dict)
    categorical: dict[str, tuple[Word, ...]] = field(default_factory=dict)  # values by column; "other" takes the rest
    columns: tuple[str, ...] | None = None  # the features, in this order; default: all columns of the first file
    header: tuple[str, ...] = ()  # the names of all columns, of files without a first line of names
    # or "drop" the row, or a number in its place (of texts: "missing", or a value); or a table by column
    missing: Fill | dict[str, Fill] = "refuse"

    def __post_init__(self) -> None:
        refuse_undeclared("csv", self.path if isinstance(self.path, str | None) else " ".join(self.path), self.classes)
        spans = {f"data.numeric.{column}": said for column, said in self.ranged.items() if not isinstance(said, str)}
        for key, said in spans.items():
            low, high = said["private"] if isinstance(said, dict) else said
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
        self._refuse_roles()
        self._refuse_missing()

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        return csv_files.load(self, seed=seed)

    @property
    def ranged(self) -> dict[str, Range]:
        return {} if isinstance(self.numeric, str) else self.numeric

    @property
    def declared_columns(self) -> dict[str, Mapping[str, object]]:
        """The columns that have a declaration, by the option that has it."""
        return declared_columns(self)

    def _refuse_roles(self) -> None:
        declared = self.declared_columns
        features = (*(self.columns or ()), *(name for columns in declared.values() for name in columns))
        if self.person is not None and self.person in (self.label, self.client_column, *features):
            raise BadInput(LEARNED.format(f"data.person = {self.person!r}"))
        if len(set(self.header)) < len(self.header):
            raise BadInput(f"Expected data.header to name the columns, each once, got {list(self.header)}.")
        if self.columns is not None:
            if not self.columns or len(set(self.columns)) < len(self.columns):
                raise BadInput(f"Expected data.columns to list the features, each once, got {list(self.columns)}.")
            for column in (name for columns in declared.values() for name in columns):
                if column not in self.columns:
                    raise BadInput(f"data.columns leaves out {column!r}, which has a range or values: add it there.")
            for column in (self.label, self.client_column):
                if column in self.columns:
                    raise BadInput(f"data.columns names {column!r}, which is no feature: take it out there.")
        roles = [self.label, self.client_column, *(name for columns in declared.values() for name in columns)]
        for column in roles:
            if column is not None and roles.count(column) > 1:
                raise BadInput(
                    f"Column {column!r} has two roles in [data]: name it once among label, client_column,"
                    f" {' and '.join(declared)}."
                )

    def _refuse_missing(self) -> None:
        by_column, whole = (self.missing, {}) if isinstance(self.missing, dict) else ({}, {"": self.missing})
        for key, said in (by_column | whole).items():
            if not isinstance(said, str):
                check.finite(**{f"data.missing.{key}".rstrip("."): said})
        if isinstance(self.missing, str) and self.missing not in ("refuse", "drop"):
            raise BadInput(
                f'Expected data.missing to be "refuse", "drop" or a number, or a table of them by column, got {self.missing!r}.'
            )
        typed = [name for columns in self.declared_columns.values() for name in columns]
        declared = {*typed, *(self.columns or ()), *self.header}
        for column in by_column:
            near = check.nearest(column, sorted(declared.difference(by_column)))
            if column not in declared and near:
                raise BadInput(f"data.missing names {column!r}, which no other key of [data] declares.{near}")
        for column in dict.fromkeys((*typed, *by_column)):
            column_of(column, self)


ARRAYS = ("x", "y", "client", "x_test", "y_test")
TOKENS = 2  # dimensions of rows of token numbers
BROKEN = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError)


@part
@dataclass(frozen=True, kw_only=True)
class npz:
    """Arrays from one .npz file: x [n, ...] and y [n], and where they exist client [n], x_test and y_test. No pickle is loaded.
    Labels are texts or integers; integers are class names where every declared class is one, else positions in the declared
    list. `classes` are the labels as a list, a number c for 0..c-1 (also of rows of tokens), "from-data", or "numbers" where y
    are numbers, or rows of 0 and 1 for several labels. Without test rows about `test_share` of the rows is held out, by a coin
    for each. Who has no rows knows by `shape` and `label_shape` what they look like."""

    path: str | None = None  # the .npz file
    classes: Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    test_path: str | None = None  # an .npz file of public test rows; default: x_test and y_test, else `test_share`
    test_share: Fraction = 0.2  # of the rows, held out by a coin for each where there are no test rows; 0: none
    divide_by: Positive = 1.0  # the public constant that x is divided by
    shape: tuple[Count, ...] | None = None  # of one row of x; other rows are refused
    label_shape: tuple[Count, ...] = ()  # of one row of y: of numbers, of 0 and 1, or of tokens

    def __post_init__(self) -> None:
        refuse_undeclared("npz", self.path, self.classes)
        if self.shape is None and self.label_shape:
            raise BadInput("data.label_shape is for rows of y beside those of x: set data.shape too.")

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Raises BadData naming the file and array, and the client and row of NaN or infinity."""
        path = str(self.path)
        arrays = _read_npz(path)
        for name, wanted in (("x", self.shape), ("y", self.label_shape)) if self.shape is not None else ():
            if arrays[name].shape[1:] != wanted:
                found, key = list(arrays[name].shape[1:]), "data.shape" if name == "x" else "data.label_shape"
                raise BadData(f"{name} of {path} has rows of shape {found}, and {key} says {list(wanted or ())}.")
        vocabulary = self.classes if isinstance(self.classes, int) and arrays["y"].ndim == TOKENS else 0
        how: dict[str, Any] = {"divide_by": self.divide_by, "tokens": vocabulary > 0}
        how["numeric"] = self.classes == texts.NUMBERS
        words = f"x of {path}", f"y of {path}", f"client of {path}"
        tables = [table(arrays["x"], arrays["y"], arrays.get("client"), words=words, **how)]
        if (tests := self._tests(arrays)) is not None:
            tables.append(table(*tests[0], words=(*tests[1], ""), **how))
        class_names, notes = tuple(map(str, range(vocabulary))), ()
        if not vocabulary:
            tables, class_names, notes = with_classes(tables, self.classes, key="data.classes")
        rows, test = tables[0], tables[1] if len(tables) > 1 else None
        encoder = reading(rows.x, torch.from_numpy(rows.y), class_names, divide_by=self.divide_by)
        more: dict[str, Any] = {"class_names": class_names, "share": self.test_share, "seed": seed, "notes": notes}
        return dataset("npz", rows, test, **more, encoder=encoder)

    def _tests(self, arrays: dict[str, np.ndarray]) -> tuple[tuple[np.ndarray, np.ndarray], tuple[str, str]] | None:
        """The test rows with their labels, and what each is called."""
        inside = [name for name in ("x_test", "y_test") if name in arrays]
        if self.test_path is not None:
            if inside:
                both = " and ".join(inside)
                raise BadData(f"{self.path} holds {both}, so data.test_path must go: choose one of them.")
            other = _read_npz(self.test_path, key="data.test_path")
            return (other["x"], other["y"]), (f"x of {self.test_path}", f"y of {self.test_path}")
        if len(inside) == 1:
            raise BadData(f"{self.path} holds {inside[0]} alone: expected x_test and y_test together.")
        if not inside:
            return None
        return (arrays["x_test"], arrays["y_test"]), (f"x_test of {self.path}", f"y_test of {self.path}")


def _read_npz(path: str, *, key: str = "data.path") -> dict[str, np.ndarray]:
    if not Path(path).expanduser().is_file():
        raise BadData(f"{path} does not exist: correct {key}.")
    try:
        with Path(path).expanduser().open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except BROKEN as error:
        raise BadData(
            f"{path} cannot be read as an .npz file of plain arrays ({error}): save it with numpy.savez."
        ) from error
    for name in arrays:
        check.one_of(ARRAYS, **{f"the arrays of {path}": name})
    if absent := {"x", "y"}.difference(arrays):
        raise BadData(f"{path} lacks the array {' and '.join(sorted(absent))}: it holds {', '.join(arrays) or 'none'}.")
    return arrays
