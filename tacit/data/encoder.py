"""How raw columns become the features that a model reads, as one small frozen value, by public rules only. It is made of
declarations alone (the csv source's options) and is kept beside the model of a run: whoever has both reads new rows exactly as
the clients' rows were read. A type of column is a class here, listed in TYPES, and a field of the csv source (its `key`); its
declaration fixes its width. Nobody else asks a column for its type: what they need to know is a property of `Column`."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tacit import check, wire
from tacit.data.texts import MISSING, Cells, Table, is_number, plain
from tacit.errors import BadData, BadInput

if TYPE_CHECKING:
    from tacit.data.sources import csv

REFUSE, DROP = "refuse", "drop"
OTHER = "other"  # a declared value that takes every unknown one
MISSING_CATEGORY = "missing"
MOST_VALUES = 20_000  # of one column, and of the label
MOST_NAME = 500  # characters
LARGEST = 1e300
MOST_NAMED = 5  # values in one sentence
FILLED, TO_OTHER, CLAMPED, DROPPED = "filled", "other", "clamped", "dropped"
LEAVE_OUT = ", or leave the row out"

Change = tuple[str, str]  # what was done, and to which column


def words(value: Any, what: str) -> tuple[str, ...]:
    listed = wire.several(value, what=f"{what}, or the list of them,", most=MOST_VALUES)
    return tuple(wire.text(word, what=what, most=MOST_NAME) for word in listed)


def _range(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    ends = [wire.real(end, what="An end of a range") for end in wire.several(value, what="A range", most=2)]
    if len(ends) < 2:
        raise BadInput("A range of the encoder does not have two ends.")
    return ends[0], ends[1]


@dataclass(frozen=True)
class Column(ABC):
    """One raw column. `missing` says what stands in for a cell without a value: "refuse", "drop" (the row), or a value. Raises:
    BadInput for what contradicts itself."""

    name: str
    missing: float | str = REFUSE

    kind: ClassVar[str]
    key: ClassVar[str]  # the option of [data] that declares such columns: a table by column
    example: ClassVar[str]  # of a declaration, for the sentence that asks for one; {} is the column
    parts: ClassVar[
        Mapping[str, Callable[[Any], Any]]
    ] = {}  # its further fields, and how each is read; raises BadInput

    def __post_init__(self) -> None:
        refuse_odd([self.name], "the name of a column")
        self.validate()

    @abstractmethod
    def validate(self) -> None:
        """Raises BadInput for what contradicts itself."""

    @classmethod
    @abstractmethod
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self:
        """The column as a csv source declares it."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features the column becomes."""

    @abstractmethod
    def block(self, table: Table, absent: np.ndarray, *, trained: bool) -> tuple[np.ndarray, str, np.ndarray]:
        """The features [rows, width], and which rows' values were changed, in one word. Raises BadData by its place."""

    @abstractmethod
    def features(self, value: float | str, *, key: str) -> list[float]:
        """The features of one value, which `key` has named. Raises BadInput."""

    @property
    def known(self) -> tuple[str, ...]:
        """Its public values, each of which is one feature of 0 or 1; none where the column is no such list."""
        return ()

    @property
    def is_number(self) -> bool:
        """Whether its one feature is a number: scaled from `span` to [0, 1], or as it stands where there is no span."""
        return False

    @property
    def span(self) -> tuple[float, float] | None:
        """The public range into which its values are clamped."""
        return None

    @property
    def span_words(self) -> str:
        """The range for a sentence, in the column's own words; "" without one."""
        return "" if self.span is None else f"[{self.span[0]:g}, {self.span[1]:g}]"

    @property
    def fills(self) -> bool:
        return self.missing not in (REFUSE, DROP)

    def marks(self) -> frozenset[str]:
        """The cells that say that there is no value."""
        return MISSING

    def cells(self, values: np.ndarray) -> np.ndarray | None:
        """Numbers that need not be written as texts first; None where they do."""
        return None


@dataclass(frozen=True)
class Number(Column):
    """A number: scaled to [0, 1] by (value - low)/(high - low) and clamped where it has `limits`, else as it stands.

    >>> Number("chol", limits=(0.0, 600.0), missing=240.0).width
    1
    """

    limits: tuple[float, float] | None = None

    kind: ClassVar[str] = "number"
    key: ClassVar[str] = "numeric"
    example: ClassVar[str] = "numeric = {{{} = [0, 100]}} for numbers"
    parts: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"limits": _range}

    def validate(self) -> None:
        if self.limits is not None and not -LARGEST <= self.limits[0] < self.limits[1] <= LARGEST:
            raise BadInput(f"Expected column {self.name!r} to have a range [low, high] of finite numbers, low < high.")
        if self.fills and (isinstance(self.missing, str) or not -LARGEST <= self.missing <= LARGEST):
            raise BadInput(
                f'Expected what stands in for missing values of column {self.name!r} to be a number, "drop" or "refuse".'
            )

    @classmethod
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self:
        limits = source.ranged.get(name)
        return cls(name, missing, None if isinstance(limits, str | dict) else limits)

    @property
    def width(self) -> int:
        return 1

    @property
    def is_number(self) -> bool:
        return True

    @property
    def span(self) -> tuple[float, float] | None:
        return self.limits

    def block(self, table: Table, absent: np.ndarray, *, trained: bool) -> tuple[np.ndarray, str, np.ndarray]:
        cells, fill = table.columns[self.name], 0.0 if isinstance(self.missing, str) else self.missing
        if isinstance(cells, np.ndarray):
            values = np.where(absent, fill, cells)
        else:
            if absent.any():
                cells = [repr(fill) if gone else cell for cell, gone in zip(cells, absent, strict=True)]
            values = self._parsed(table, cells, trained=trained)
        finite = np.isfinite(values)
        if self.limits is None:  # as they stand they must fit into 32 bits
            finite &= np.abs(values) <= np.finfo(np.float32).max
        if not finite.all():
            row = int(np.argmin(finite))
            raise BadData(
                f"{table.place(row, self.name)} is {str(cells[row])!r}, which is not a finite 32-bit number: correct it.",
                cell=str(cells[row]),
            )
        clamped = np.zeros(len(values), bool)
        if self.limits is not None:
            within = np.clip(values, *self.limits)
            clamped = within != values
            values = (within - self.limits[0]) / (self.limits[1] - self.limits[0])
        return values.astype(np.float32)[:, None], CLAMPED, clamped

    def _parsed(self, table: Table, cells: Cells, *, trained: bool) -> np.ndarray:
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:
            row = next(row for row, cell in enumerate(cells) if not is_number(cell))
            before = "; before training the column may be declared in data.categorical, or left out of data.columns"
            raise BadData(
                f"{table.place(row, self.name)} is {cells[row]!r}, which is not a number: correct it"
                f"{LEAVE_OUT if trained else before}.",
                cell=cells[row],
            ) from None

    def features(self, value: float | str, *, key: str) -> list[float]:
        check.finite(**{f"{key}.{self.name}": value})  # pyright: ignore[reportArgumentType]
        number = float(value)
        if self.limits is not None:
            low, high = self.limits
            number = (min(max(number, low), high) - low) / (high - low)
        return [number]

    def cells(self, values: np.ndarray) -> np.ndarray | None:
        return values.astype(np.float64) if values.dtype.kind in "fiub" else None


@dataclass(frozen=True)
class Category(Column):
    """A text: a 0/1 feature for each of its declared `values`; "other" among them takes every unknown one.

    >>> Category("sex", values=("f", "m")).width
    2
    """

    values: tuple[str, ...] = ()

    kind: ClassVar[str] = "category"
    key: ClassVar[str] = "categorical"
    example: ClassVar[str] = 'categorical = {{{} = ["a", "b"]}} for texts'
    parts: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"values": partial(words, what="A value of a column")}

    def validate(self) -> None:
        refuse_odd(self.values, f"the values of column {self.name!r}")
        if not self.values:
            raise BadInput(f"Column {self.name!r} must have values.")
        if len({plain(value) for value in self.values}) < len(self.values):
            raise BadInput(f"Column {self.name!r} lists one value twice; 1 and 1.0 are one value.")
        if self.fills and self.missing not in self.values:
            raise BadInput(
                f"Expected what stands in for missing values of column {self.name!r} to be one of its values,"
                f' "{MISSING_CATEGORY}", "drop" or "refuse".'
            )

    @classmethod
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self:
        values = source.categorical[name]
        if not isinstance(missing, str):  # a number for every column: a text has none
            missing = MISSING_CATEGORY if not isinstance(source.missing, dict) else f"{missing:g}"
        if missing == MISSING_CATEGORY and missing not in values:
            values = (*values, missing)
        same = [value for value in values if plain(value) == plain(missing)]
        return cls(name, missing if missing in (REFUSE, DROP) or not same else same[0], values)

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def known(self) -> tuple[str, ...]:
        return self.values

    def marks(self) -> frozenset[str]:
        return MISSING.difference(self.values)  # a declared value such as "NA" is one

    def block(self, table: Table, absent: np.ndarray, *, trained: bool) -> tuple[np.ndarray, str, np.ndarray]:
        cells, values = table.columns[self.name], self.values
        texts = [str(cell) for cell in cells] if isinstance(cells, np.ndarray) else cells
        code_of = {plain(value): code for code, value in enumerate(values)} | {v: code for code, v in enumerate(values)}
        known = {cell: code_of.get(cell, code_of.get(plain(cell), -1)) for cell in set(texts)}
        codes = np.fromiter((known[cell] for cell in texts), np.int64, len(texts))
        codes[absent] = code_of[str(self.missing)] if self.fills else 0
        unknown = codes < 0
        if unknown.any() and OTHER not in code_of:
            row = int(np.argmax(unknown))
            some = ", ".join(map(repr, values[:MOST_NAMED])) + ", ..." * (len(values) > MOST_NAMED)
            now = f"leave the row out, or write one of those that the model was trained with: {some}"
            before = (
                f"correct it; before training data.categorical.{self.name} may declare it, or"
                f' "{OTHER}" to take every unknown one'
            )
            wrong = f"{texts[row]!r}, which is none of its declared values"
            raise BadData(f"{table.place(row, self.name)} is {wrong}: {now if trained else before}.", cell=texts[row])
        codes[unknown] = code_of.get(OTHER, 0)
        out = np.zeros((len(texts), len(values)), np.float32)
        out[np.arange(len(texts)), codes] = 1
        return out, TO_OTHER, unknown

    def features(self, value: float | str, *, key: str) -> list[float]:
        if str(value) not in self.values:
            raise BadInput(f"{key}: column {self.name!r} has no value {value!r}.{check.listed(self.values)}")
        return [float(str(value) == known) for known in self.values]


TYPES: tuple[type[Column], ...] = (Number, Category)  # of the first is what no other one's option declares


def declared_columns(source: "csv") -> dict[str, Mapping[str, object]]:
    """The columns that each type's option declares, by that option."""
    said = {kind.key: getattr(source, kind.key) for kind in TYPES}
    return {key: columns if isinstance(columns, Mapping) else {} for key, columns in said.items()}


def column_of(name: str, source: "csv") -> Column:
    declared = declared_columns(source)
    missing = source.missing.get(name, REFUSE) if isinstance(source.missing, dict) else source.missing
    kind = next((kind for kind in TYPES if name in declared[kind.key]), TYPES[0])
    return kind.declared(name, source, missing)


def read_column(record: Any) -> Column:
    """The column that a record of unknown origin describes. Raises BadInput."""
    kind = record.get("type") if isinstance(record, Mapping) else None
    found = next((one for one in TYPES if one.kind == kind), None)
    if found is None:
        raise BadInput("A column of the encoder is of no type that is known.")
    _, name, missing, *parts = wire.fields(
        record, "type", "name", "missing", *found.parts, what="A column of the encoder"
    )
    is_text, what = isinstance(missing, str), "What stands in for a missing value"
    fill = wire.text(missing, what=what, most=MOST_NAME) if is_text else wire.real(missing, what=what)
    own = {key: read(value) for (key, read), value in zip(found.parts.items(), parts, strict=True)}
    return found(wire.text(name, what="The name of a column", most=MOST_NAME), fill, **own)


def refuse_odd(words: Sequence[str], what: str) -> None:
    """Refuses names that are very long or not printable, and too many of them. Raises BadInput."""
    if len(words) > MOST_VALUES:
        raise BadInput(f"Expected {what} to be at most {MOST_VALUES}, got {len(words)}.")
    if any(len(word) > MOST_NAME or not word.isprintable() for word in words):
        raise BadInput(f"Expected {what} to be printable texts of at most {MOST_NAME} characters.")


@dataclass(frozen=True, eq=False)
class Encoded:
    """The features of the rows that are kept, which rows these are, and where reading changed a value."""

    x: np.ndarray
    kept: np.ndarray
    changes: dict[Change, np.ndarray]  # a mark for every row of the table


def encode(table: Table, columns: Sequence[Column], *, trained: bool = False) -> Encoded:
    """Turns the rows of a table into float32 features; where a model is `trained` already, no declaration can be changed any
    more. Raises: BadData naming file, line, column and value."""
    absent: dict[str, np.ndarray] = {}
    for column in columns:
        cells = table.columns[column.name]
        if isinstance(cells, np.ndarray):
            gone = np.isnan(cells)
        else:
            marks = column.marks()
            gone = np.fromiter((cell in marks for cell in cells), bool, len(cells))
        if column.missing == REFUSE and gone.any():
            before = (
                '; before training data.missing may be "drop", a number (of texts: "missing", or one of their values), or a table'
                " of them by column"
            )
            place = table.place(int(np.argmax(gone)), column.name)
            raise BadData(f"{place} is missing: fill it in{LEAVE_OUT if trained else before}.")
        absent[column.name] = gone
    gaps = [absent[column.name] for column in columns if column.missing == DROP]
    kept = ~np.any(gaps, axis=0) if gaps else np.ones(len(table.lines), bool)
    blocks: list[np.ndarray] = []
    changes: dict[Change, np.ndarray] = {}
    for column in columns:
        gone = absent[column.name]
        block, what, where = column.block(table, gone, trained=trained)
        blocks.append(block)
        found = {what: where & kept & ~gone, FILLED: gone & kept if column.fills else None}
        changes |= {(did, column.name): rows for did, rows in found.items() if rows is not None and rows.any()}
    if not kept.all():
        changes[DROPPED, ""] = ~kept
    return Encoded(np.concatenate(blocks, axis=1)[kept], kept, changes)


MOST_COLUMNS = 20_000
MOST_FEATURES = 1 << 24
MOST_SIDES = 8  # of the shape of a row


@dataclass(frozen=True)
class Encoder:
    """What a row is, for a model: its columns in their order, or without columns the shape of a tensor; and what is answered.
    That is one of the `classes`, or, where there are none, as many numbers as `outputs`. `shape` is that of one encoded row.
    `label` names the column of labels, which new rows need not have; `header` the columns of files without a first line of
    names. Tensors are divided by `divide_by`. Raises BadInput for what contradicts itself.

    >>> Encoder(classes=("no", "yes"), shape=(1,), columns=(Number("age", limits=(0.0, 120.0)),)).names
    ('age',)
    """

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()
    label: str | None = None
    header: tuple[str, ...] = ()
    divide_by: float = 1.0
    outputs: int = 0

    def __post_init__(self) -> None:
        refuse_odd(self.classes, "the classes")
        refuse_odd([*self.header, *([] if self.label is None else [self.label])], "the names of columns")
        if self.outputs:
            if self.classes or not 0 < self.outputs <= MOST_FEATURES:
                raise BadInput(f"Expected an encoder to have classes or 1 to {MOST_FEATURES} outputs, not both.")
        elif len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise BadInput("Expected an encoder to have at least 2 classes, each once.")
        if len(self.shape) > MOST_SIDES or not 0 < math.prod(self.shape) <= MOST_FEATURES:
            raise BadInput(f"Expected the shape of a row to have 1 to {MOST_FEATURES} numbers.")
        if len(self.columns) > MOST_COLUMNS or len(set(self.names)) < len(self.columns) or self.label in self.names:
            raise BadInput(f"Expected at most {MOST_COLUMNS} columns, each of a name of its own.")
        width = sum(column.width for column in self.columns)
        if self.columns and self.shape != (width,):
            raise BadInput(f"The columns of an encoder make {width} features, and its shape is {list(self.shape)}.")
        if not 0 < self.divide_by <= LARGEST:
            raise BadInput("Expected what tensors are divided by to be a number above zero.")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in the order in which a tensor of raw values has them."""
        return tuple(column.name for column in self.columns)


# An encoder as a JSON file beside a model, and back: whoever sends one is believed nothing.

NAME = "encoder.json"
FORMAT = "tacit encoder 3"
MOST_TEXT = 1 << 24  # characters: 20,000 columns with some hundred each, and to spare
MOST_BRACKETS = 3 * MOST_COLUMNS + 10
WHAT = "The encoder"
PARTS = ("format", "classes", "label", "shape", "header", "divide_by", "outputs", "columns")


def text(encoder: Encoder) -> str:
    values = {key: getattr(encoder, key) for key in PARTS[1:-1]}
    columns = [{"type": one.kind, **asdict(one)} for one in encoder.columns]
    return json.dumps({"format": FORMAT, **values, "columns": columns}, indent=1, allow_nan=False)


def read(content: object) -> Encoder:
    """The encoder that a text describes. Raises BadInput.

    >>> plain = Encoder(classes=("no", "yes"), shape=(2,))
    >>> read(text(plain)) == plain
    True
    """
    record = wire.json_object(content, what=WHAT, most=MOST_TEXT, brackets=MOST_BRACKETS, finite=True)
    form, classes, label, shape, header, divide_by, outputs, columns = wire.fields(record, *PARTS, what=WHAT)
    if form != FORMAT:
        raise BadInput(f"{WHAT} is not of the format {FORMAT!r}: it was written by another version of Tacit.")
    sides = wire.several(shape, what="The shape of a row", most=MOST_SIDES)
    return Encoder(
        classes=words(classes, "A class"),
        shape=tuple(wire.whole(side, what="A side of a row", least=1, most=MOST_FEATURES) for side in sides),
        columns=tuple(read_column(one) for one in wire.several(columns, what="The list of columns", most=MOST_COLUMNS)),
        label=None if label is None else wire.text(label, what="The label", most=MOST_NAME),
        header=words(header, "A name of the header"),
        divide_by=wire.real(divide_by, what="What tensors are divided by"),
        outputs=wire.whole(outputs, what="The number of outputs", least=0, most=MOST_FEATURES),
    )
