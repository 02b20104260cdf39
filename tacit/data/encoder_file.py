"""An encoder as a JSON file beside a model, and back: whoever sends one is believed nothing.

Guarantee: reading gives an encoder that passed all of its checks, or raises BadInput in one sentence; nothing is imported.
"""

import json
from typing import Any

from tacit import parse
from tacit.data.encoder import (
    MOST_COLUMNS,
    MOST_FEATURES,
    MOST_NAME,
    MOST_SIDES,
    MOST_VALUES,
    Column,
    Encoder,
)
from tacit.errors import BadInput

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
    record = parse.json_object(content, what=WHAT, most=MOST_TEXT, brackets=MOST_BRACKETS, finite=True)
    if isinstance(record, dict) and record.get("format") == FORMATS[0]:
        record = {"outputs": 0} | record
    parts = ("format", "classes", "label", "shape", "header", "divide_by", "outputs", "columns")
    form, classes, label, shape, header, divide_by, outputs, columns = parse.fields(record, *parts, what=WHAT)
    if form not in FORMATS:
        raise BadInput(f"{WHAT} is not of the format {FORMAT!r}: it was written by another version of Tacit.")
    sides = parse.several(shape, what="The shape of a row", most=MOST_SIDES)
    return Encoder(
        classes=_words(classes, "A class"),
        shape=tuple(parse.whole(side, what="A side of a row", least=1, most=MOST_FEATURES) for side in sides),
        columns=tuple(_column(one) for one in parse.several(columns, what="The list of columns", most=MOST_COLUMNS)),
        label=None if label is None else parse.text(label, what="The label", most=MOST_NAME),
        header=_words(header, "A name of the header"),
        divide_by=parse.real(divide_by, what="What tensors are divided by"),
        outputs=parse.whole(outputs, what="The number of outputs", least=0, most=MOST_FEATURES),
    )


def _column(record: Any) -> Column:
    name, limits, values, missing, indicator = parse.fields(
        record, "name", "range", "values", "missing", "indicator", what="A column of the encoder"
    )
    ends = None
    if limits is not None:
        found = parse.several(limits, what="A range", most=2)
        if len(found) < 2:
            raise BadInput("A range of the encoder does not have two ends.")
        ends = (parse.real(found[0], what="An end of a range"), parse.real(found[1], what="An end of a range"))
    if type(indicator) is not bool:
        raise BadInput("Whether a column of the encoder has an indicator is neither true nor false.")
    stands_in = "What stands in for a missing value"
    return Column(
        name=parse.text(name, what="The name of a column", most=MOST_NAME),
        limits=ends,
        values=None if values is None else _words(values, "A value of a column"),
        missing=parse.text(missing, what=stands_in, most=MOST_NAME)
        if isinstance(missing, str)
        else parse.real(missing, what=stands_in),
        indicator=indicator,
    )


def _words(value: Any, what: str) -> tuple[str, ...]:
    listed = parse.several(value, what=f"{what}, or the list of them,", most=MOST_VALUES)
    return tuple(parse.text(word, what=what, most=MOST_NAME) for word in listed)
