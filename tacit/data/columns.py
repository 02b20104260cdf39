"""The types of a raw column: how one is declared, becomes features, and stands in an encoder's file. By public rules only.

The width of the features depends on the declaration alone. Another type is another class here, listed in TYPES."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tacit import check, wire
from tacit.data.features import MISSING, Cells, Table, is_number
from tacit.data.names import plain
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
STANDS_IN = "What stands in for a missing value"

Change = tuple[str, str]  # what was done, and to which column


@dataclass(frozen=True)
class Column(ABC):
    """One raw column. `missing` says what stands in for a cell without a value: "refuse", "drop" (the row), or a value.

    Raises: BadInput for what contradicts itself.
    """

    name: str
    missing: float | str = REFUSE

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        refuse_odd([self.name], "the name of a column")
        self.refuse()

    @abstractmethod
    def refuse(self) -> None:
        """Raises BadInput for what contradicts itself."""

    @classmethod
    @abstractmethod
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self | None:
        """The column as a csv source declares it; None where it is of another type."""

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

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What stands in an encoder's file, beside `type`, `name` and `missing`."""

    @classmethod
    @abstractmethod
    def read(cls, name: str, missing: float | str, record: Mapping[str, Any]) -> Self:
        """The column that a record of unknown origin describes. Raises BadInput."""

    @property
    def fills(self) -> bool:
        """Whether a missing cell gets a value."""
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

    An `indicator` is a second feature, 1 where the number was missing.

    >>> Number("chol", limits=(0.0, 600.0), missing=240.0, indicator=True).width
    2
    """

    limits: tuple[float, float] | None = None
    indicator: bool = False

    kind: ClassVar[str] = "number"

    def refuse(self) -> None:
        if self.limits is not None and not -LARGEST <= self.limits[0] < self.limits[1] <= LARGEST:
            raise BadInput(f"Expected column {self.name!r} to have a range [low, high] of finite numbers, low < high.")
        if self.fills and (isinstance(self.missing, str) or not -LARGEST <= self.missing <= LARGEST):
            raise BadInput(
                f'Expected what stands in for missing values of column {self.name!r} to be a number, "drop" or "refuse".'
            )
        if self.indicator and not self.fills:
            raise BadInput(
                f"Column {self.name!r} has an indicator of missing values and no number for them: say one, as in"
                f" data.missing = {{{self.name} = 0}}."
            )

    @classmethod
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self:
        limits = source.ranged.get(name)
        return cls(name, missing, None if isinstance(limits, str) else limits, name in source.indicators)

    @property
    def width(self) -> int:
        return 1 + self.indicator

    def block(self, table: Table, absent: np.ndarray, *, trained: bool) -> tuple[np.ndarray, str, np.ndarray]:
        values = self._numbers(table, absent, trained=trained)
        clamped = np.zeros(len(values), bool)
        if self.limits is not None:
            within = np.clip(values, *self.limits)
            clamped = within != values
            values = (within - self.limits[0]) / (self.limits[1] - self.limits[0])
        parts = [values, *([absent] if self.indicator else [])]
        return np.stack([part.astype(np.float32) for part in parts], axis=1), CLAMPED, clamped

    def _numbers(self, table: Table, absent: np.ndarray, *, trained: bool) -> np.ndarray:
        """Before they are scaled; without a range they must fit into 32 bits as they stand."""
        cells, fill = table.columns[self.name], 0.0 if isinstance(self.missing, str) else self.missing
        if isinstance(cells, np.ndarray):
            values = np.where(absent, fill, cells)
        else:
            if absent.any():
                cells = [repr(fill) if gone else cell for cell, gone in zip(cells, absent, strict=True)]
            values = self._parsed(table, cells, trained=trained)
        finite = np.isfinite(values)
        if self.limits is None:
            finite &= np.abs(values) <= np.finfo(np.float32).max
        if not finite.all():
            row = int(np.argmin(finite))
            raise BadData(
                f"{table.place(row, self.name)} is {str(cells[row])!r}, which is not a finite 32-bit number: correct it.",
                cell=str(cells[row]),
            )
        return values

    def _parsed(self, table: Table, cells: Cells, *, trained: bool) -> np.ndarray:
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:
            row = next(row for row, cell in enumerate(cells) if not is_number(cell))
            before = "; before training the column may be declared in data.categorical, or named in data.ignore"
            then = LEAVE_OUT if trained else before
            raise BadData(
                f"{table.place(row, self.name)} is {cells[row]!r}, which is not a number: correct it{then}.",
                cell=cells[row],
            ) from None

    def features(self, value: float | str, *, key: str) -> list[float]:
        check.finite(**{f"{key}.{self.name}": value})  # pyright: ignore[reportArgumentType]
        number = float(value)
        if self.limits is not None:
            low, high = self.limits
            number = (min(max(number, low), high) - low) / (high - low)
        return [number, *([0.0] if self.indicator else [])]

    def record(self) -> dict[str, Any]:
        return {"range": None if self.limits is None else list(self.limits), "indicator": self.indicator}

    @classmethod
    def read(cls, name: str, missing: float | str, record: Mapping[str, Any]) -> Self:
        limits, indicator = wire.fields(record, "range", "indicator", what="A number of the encoder")
        ends = None
        if limits is not None:
            found = wire.several(limits, what="A range", most=2)
            if len(found) < 2:
                raise BadInput("A range of the encoder does not have two ends.")
            ends = (wire.real(found[0], what="An end of a range"), wire.real(found[1], what="An end of a range"))
        if type(indicator) is not bool:
            raise BadInput("Whether a column of the encoder has an indicator is neither true nor false.")
        return cls(name, missing, ends, indicator)

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

    def refuse(self) -> None:
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
    def declared(cls, name: str, source: "csv", missing: float | str) -> Self | None:
        values = source.categorical.get(name)
        if values is None:
            return None
        if name in source.indicators:
            raise BadInput(f"Column {name!r} must have values, and then neither a range nor an indicator.")
        if not isinstance(missing, str):  # a number for every column: a text has none
            missing = MISSING_CATEGORY if not isinstance(source.missing, dict) else f"{missing:g}"
        if missing == MISSING_CATEGORY and missing not in values:
            values = (*values, missing)
        same = [value for value in values if plain(value) == plain(missing)]
        return cls(name, missing if missing in (REFUSE, DROP) or not same else same[0], values)

    @property
    def width(self) -> int:
        return len(self.values)

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

    def record(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    @classmethod
    def read(cls, name: str, missing: float | str, record: Mapping[str, Any]) -> Self:
        (values,) = wire.fields(record, "values", what="A category of the encoder")
        return cls(name, missing, words(values, "A value of a column"))


TYPES: tuple[type[Column], ...] = (Category, Number)  # a column is of the first that knows its declaration


def column_of(name: str, source: "csv") -> Column:
    """One column as it is declared. Raises BadInput."""
    missing = source.missing.get(name, REFUSE) if isinstance(source.missing, dict) else source.missing
    return next(found for kind in TYPES if (found := kind.declared(name, source, missing)) is not None)


def record_of(column: Column) -> dict[str, Any]:
    """A column as an encoder's file has it."""
    return {"type": column.kind, "name": column.name, "missing": column.missing, **column.record()}


def read_column(record: Any) -> Column:
    """The column that a record of unknown origin describes. Raises BadInput."""
    common = ("type", "name", "missing")
    said = dict(record) if isinstance(record, Mapping) else {}
    rest = {key: said.pop(key) for key in list(said) if key not in common}
    kind, name, missing = wire.fields(said, *common, what="A column of the encoder")
    found = next((one for one in TYPES if one.kind == kind), None)
    if found is None:
        raise BadInput("A column of the encoder is of no type that is known.")
    text = isinstance(missing, str)
    fill = wire.text(missing, what=STANDS_IN, most=MOST_NAME) if text else wire.real(missing, what=STANDS_IN)
    return found.read(wire.text(name, what="The name of a column", most=MOST_NAME), fill, rest)


def words(value: Any, what: str) -> tuple[str, ...]:
    """Texts of unknown origin. Raises BadInput."""
    listed = wire.several(value, what=f"{what}, or the list of them,", most=MOST_VALUES)
    return tuple(wire.text(word, what=what, most=MOST_NAME) for word in listed)


def refuse_odd(words: Sequence[str], what: str) -> None:
    """Refuses names that are very long or not printable, and too many of them. Raises BadInput."""
    if len(words) > MOST_VALUES:
        raise BadInput(f"Expected {what} to be at most {MOST_VALUES}, got {len(words)}.")
    for word in words:
        if len(word) > MOST_NAME or not word.isprintable():
            raise BadInput(f"Expected {what} to be printable texts of at most {MOST_NAME} characters.")


@dataclass(frozen=True, eq=False)
class Encoded:
    """The features of the rows that are kept, which rows these are, and where reading changed a value."""

    x: np.ndarray
    kept: np.ndarray
    changes: dict[Change, np.ndarray]  # a mark for every row of the table


def encode(table: Table, columns: Sequence[Column], *, trained: bool = False) -> Encoded:
    """Turns the rows of a table into float32 features; where a model is `trained` already, no declaration can be changed any more.

    Raises: BadData naming file, line, column and value.
    """
    absent = {column.name: _absent(table.columns[column.name], column) for column in columns}
    for column in columns:
        if column.missing == REFUSE and absent[column.name].any():
            place = table.place(int(np.argmax(absent[column.name])), column.name)
            before = (
                '; before training data.missing may be "drop", a number (of texts: "missing", or one of their values), or a table'
                " of them by column"
            )
            raise BadData(f"{place} is missing: fill it in{LEAVE_OUT if trained else before}.")
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


def _absent(cells: Cells, column: Column) -> np.ndarray:
    if isinstance(cells, np.ndarray):
        return np.isnan(cells)
    marks = column.marks()
    return np.fromiter((cell in marks for cell in cells), bool, len(cells))
