"""How raw columns become the features that a model reads, as one small frozen value.

It is made of declarations alone (the csv source's options), so it is public, and is kept beside the model of a run: whoever has
both reads new rows exactly as the clients' rows were read, whatever the order of the columns in their file."""

import json
import math
from dataclasses import dataclass

from tacit import wire
from tacit.data.columns import LARGEST, MOST_NAME, Column, read_column, record_of, refuse_odd, words
from tacit.errors import BadInput

MOST_COLUMNS = 20_000
MOST_FEATURES = 1 << 24
MOST_SIDES = 8  # of the shape of a row


@dataclass(frozen=True)
class Encoder:
    """What a row is, for a model: its columns in their order, or without columns the shape of a tensor; and what is answered.

    That is one of the `classes`, or, where there are none, as many numbers as `outputs`. `shape` is that of one encoded row.
    `label` names the column of labels, which new rows need not have; `header` the columns of files without a first line of names.
    Tensors are divided by `divide_by`. Raises BadInput for what contradicts itself.

    >>> from tacit.data.columns import Number
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


# An encoder as a JSON file beside a model, and back: whoever sends one is believed nothing.

NAME = "encoder.json"
FORMAT = "tacit encoder 2"
MOST_TEXT = 1 << 24  # characters: 20,000 columns with some hundred each, and to spare
MOST_BRACKETS = 3 * MOST_COLUMNS + 10
WHAT = "The encoder"


def text(encoder: Encoder) -> str:
    """The encoder as the text of its file."""
    record = {
        "format": FORMAT,
        "classes": list(encoder.classes),
        "label": encoder.label,
        "shape": list(encoder.shape),
        "header": list(encoder.header),
        "divide_by": encoder.divide_by,
        "outputs": encoder.outputs,
        "columns": [record_of(column) for column in encoder.columns],
    }
    return json.dumps(record, indent=1, allow_nan=False)


def read(content: object) -> Encoder:
    """The encoder that a text describes. Raises BadInput.

    >>> plain = Encoder(classes=("no", "yes"), shape=(2,))
    >>> read(text(plain)) == plain
    True
    """
    record = wire.json_object(content, what=WHAT, most=MOST_TEXT, brackets=MOST_BRACKETS, finite=True)
    parts = ("format", "classes", "label", "shape", "header", "divide_by", "outputs", "columns")
    form, classes, label, shape, header, divide_by, outputs, columns = wire.fields(record, *parts, what=WHAT)
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
