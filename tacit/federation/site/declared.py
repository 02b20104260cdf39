"""What rows look like where there are none: of a deployment without public rows the experiment alone says how they are read."""

import torch

from tacit.data.csv_columns import declared_classes, encoder_of
from tacit.data.dataset import Dataset, reading
from tacit.data.held_out import NO_TEST_ROWS
from tacit.data.names import NUMBERS
from tacit.data.sources.csv import csv
from tacit.data.sources.npz import npz
from tacit.errors import BadInput


def declared(files: csv | npz) -> Dataset:
    """No rows, as they would be read: one of zeros stands for those that there are, and none is a test row.

    Raises: BadInput where the columns, the classes or the shape are not declared.

    >>> declared(npz(path="records.npz", classes=2, shape=(1, 8, 8))).test_x.shape
    torch.Size([0, 1, 8, 8])
    """
    return _table(files) if isinstance(files, csv) else _arrays(files)


def _table(files: csv) -> Dataset:
    classes = declared_classes(files)
    if files.columns is None or not (classes or files.classes == NUMBERS):
        raise BadInput("Without public test rows nothing shows how rows are read: list data.columns and data.classes.")
    encoder = encoder_of(files, files.columns, classes)
    x, y = torch.zeros(1, *encoder.shape), torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    return Dataset("csv", x, y, x[:0], y[:0], classes, notes=(NO_TEST_ROWS,), encoder=encoder)


def _arrays(files: npz) -> Dataset:
    """As `tacit.data.sources.npz` reads them: classes by number, a class for every place of a row of tokens, or numbers."""
    classes = declared_classes(files)
    if files.shape is None or not (classes or files.classes == NUMBERS):
        raise BadInput(
            "Without public test rows nothing shows what rows look like: say the shape of one in data.shape, as in"
            " shape = [1, 28, 28], and of a row of labels in data.label_shape, and list data.classes."
        )
    tokens = isinstance(files.classes, int) and len(files.label_shape) == 1
    if files.label_shape and classes and not tokens:
        raise BadInput("data.label_shape is for numbers and for tokens: with classes every row has one label.")
    x = torch.zeros(1, *files.shape, dtype=torch.int64 if tokens else torch.float32)
    y = torch.zeros(1, *files.label_shape, dtype=torch.int64 if classes else torch.float32)
    encoder = reading(x, y, classes, divide_by=files.divide_by)
    return Dataset("npz", x, y, x[:0], y[:0], classes, notes=(NO_TEST_ROWS,), encoder=encoder)
