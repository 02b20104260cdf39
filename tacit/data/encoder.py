"""How raw columns become the features that a model reads, as one small frozen value.

It is made of declarations alone (the csv source's options), so it is public, and is kept beside the model of a run: whoever has
both reads new rows exactly as the clients' rows were read, whatever the order of the columns in their file."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacit import wire
from tacit.data.names import plain
from tacit.errors import BadInput

REFUSE, DROP = "refuse", "drop"
OTHER = "other"  # a declared value that takes every unknown one
MISSING_CATEGORY = "missing"
MOST_COLUMNS = 20_000
MOST_VALUES = 20_000  # of one column, and of the label
MOST_FEATURES = 1 << 24
MOST_SIDES = 8  # of the shape of a row
MOST_NAME = 500  # characters
LARGEST = 1e300


@dataclass(frozen=True)
class Column:
    """One raw column. With `values` it becomes a 0/1 feature for each of them; else a number, scaled where it has `limits`.

    `missing` says what stands in for a cell without a value: "refuse", "drop" (the row), a number, or one of the `values`. An
    `indicator` is a second feature, 1 where the number was missing. Raises BadInput.

    >>> Column("sex", values=("f", "m")).width, Column("chol", limits=(0.0, 600.0), missing=240.0, indicator=True).width
    (2, 2)
    """

    name: str
    limits: tuple[float, float] | None = None
    values: tuple[str, ...] | None = None
    missing: float | str = REFUSE
    indicator: bool = False

    def __post_init__(self) -> None:
        refuse_odd([self.name], "the name of a column")
        if self.values is None:
            self._refuse_number()
        else:
            self._refuse_category()

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return 1 + self.indicator if self.values is None else len(self.values)

    @property
    def fills(self) -> bool:
        """Whether a missing cell gets a value."""
        return self.missing not in (REFUSE, DROP)

    def _refuse_number(self) -> None:
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

    def _refuse_category(self) -> None:
        values = self.values or ()
        refuse_odd(values, f"the values of column {self.name!r}")
        if not values or self.limits is not None or self.indicator:
            raise BadInput(f"Column {self.name!r} must have values, and then neither a range nor an indicator.")
        if len({plain(value) for value in values}) < len(values):
            raise BadInput(f"Column {self.name!r} lists one value twice; 1 and 1.0 are one value.")
        if self.fills and self.missing not in values:
            raise BadInput(
                f"Expected what stands in for missing values of column {self.name!r} to be one of its values,"
                f' "{MISSING_CATEGORY}", "drop" or "refuse".'
            )


@dataclass(frozen=True)
class Encoder:
    """What a row is, for a model: its columns in their order, or without columns the shape of a tensor; and what is answered.

    That is one of the `classes`, or, where there are none, as many numbers as `outputs`. `shape` is that of one encoded row.
    `label` names the column of labels, which new rows need not have; `header` the columns of files without a first line of names.
    Tensors are divided by `divide_by`. Raises BadInput for what contradicts itself.

    >>> Encoder(classes=("no", "yes"), shape=(1,), columns=(Column("age", limits=(0.0, 120.0)),)).names
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
        if self.columns and self.shape != (self.width,):
            raise BadInput(
                f"The columns of an encoder make {self.width} features, and its shape is {list(self.shape)}."
            )
        if not 0 < self.divide_by <= LARGEST:
            raise BadInput("Expected what tensors are divided by to be a number above zero.")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in the order in which a tensor of raw values has them."""
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        """How many features the columns become."""
        return sum(column.width for column in self.columns)


def refuse_odd(words: Sequence[str], what: str) -> None:
    """Refuses names that are very long or not printable, and too many of them. Raises BadInput."""
    if len(words) > MOST_VALUES:
        raise BadInput(f"Expected {what} to be at most {MOST_VALUES}, got {len(words)}.")
    for word in words:
        if len(word) > MOST_NAME or not word.isprintable():
            raise BadInput(f"Expected {what} to be printable texts of at most {MOST_NAME} characters.")


# An encoder as a JSON file beside a model, and back: whoever sends one is believed nothing.

NAME = "encoder.json"
FORMAT = "tacit encoder 2"
FORMATS = ("tacit encoder 1", FORMAT)  # the first had classes alone
MOST_TEXT = 1 << 24  # characters: 20,000 columns with some hundred each, and to spare
MOST_BRACKETS = 3 * MOST_COLUMNS + 10
WHAT = "The encoder"


def text(encoder: Encoder) -> str:
    """The encoder as the text of its file."""
    columns = [
        {
            "name": column.name,
            "range": None if column.limits is None else list(column.limits),
            "values": None if column.values is None else list(column.values),
            "missing": column.missing,
            "indicator": column.indicator,
        }
        for column in encoder.columns
    ]
    record = {
        "format": FORMAT,
        "classes": list(encoder.classes),
        "label": encoder.label,
        "shape": list(encoder.shape),
        "header": list(encoder.header),
        "divide_by": encoder.divide_by,
        "outputs": encoder.outputs,
        "columns": columns,
    }
    return json.dumps(record, indent=1, allow_nan=False)


def read(content: object) -> Encoder:
    """The encoder that a text describes. Raises BadInput.

    >>> plain = Encoder(classes=("no", "yes"), shape=(2,))
    >>> read(text(plain)) == plain
    True
    """
    record = wire.json_object(content, what=WHAT, most=MOST_TEXT, brackets=MOST_BRACKETS, finite=True)
    if isinstance(record, dict) and record.get("format") == FORMATS[0]:
        record = {"outputs": 0} | record
    parts = ("format", "classes", "label", "shape", "header", "divide_by", "outputs", "columns")
    form, classes, label, shape, header, divide_by, outputs, columns = wire.fields(record, *parts, what=WHAT)
    if form not in FORMATS:
        raise BadInput(f"{WHAT} is not of the format {FORMAT!r}: it was written by another version of Tacit.")
    sides = wire.several(shape, what="The shape of a row", most=MOST_SIDES)
    return Encoder(
        classes=_words(classes, "A class"),
        shape=tuple(wire.whole(side, what="A side of a row", least=1, most=MOST_FEATURES) for side in sides),
        columns=tuple(_column(one) for one in wire.several(columns, what="The list of columns", most=MOST_COLUMNS)),
        label=None if label is None else wire.text(label, what="The label", most=MOST_NAME),
        header=_words(header, "A name of the header"),
        divide_by=wire.real(divide_by, what="What tensors are divided by"),
        outputs=wire.whole(outputs, what="The number of outputs", least=0, most=MOST_FEATURES),
    )


def _column(record: Any) -> Column:
    name, limits, values, missing, indicator = wire.fields(
        record, "name", "range", "values", "missing", "indicator", what="A column of the encoder"
    )
    ends = None
    if limits is not None:
        found = wire.several(limits, what="A range", most=2)
        if len(found) < 2:
            raise BadInput("A range of the encoder does not have two ends.")
        ends = (wire.real(found[0], what="An end of a range"), wire.real(found[1], what="An end of a range"))
    if type(indicator) is not bool:
        raise BadInput("Whether a column of the encoder has an indicator is neither true nor false.")
    stands_in = "What stands in for a missing value"
    return Column(
        name=wire.text(name, what="The name of a column", most=MOST_NAME),
        limits=ends,
        values=None if values is None else _words(values, "A value of a column"),
        missing=wire.text(missing, what=stands_in, most=MOST_NAME)
        if isinstance(missing, str)
        else wire.real(missing, what=stands_in),
        indicator=indicator,
    )


def _words(value: Any, what: str) -> tuple[str, ...]:
    listed = wire.several(value, what=f"{what}, or the list of them,", most=MOST_VALUES)
    return tuple(wire.text(word, what=what, most=MOST_NAME) for word in listed)
