"""Raw columns in memory as a table that an encoder reads: a mapping, a DataFrame, or an array in the encoder's order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tacit.data.csv_text import Cells, Table, refuse_absent
from tacit.data.encoder import Column, Encoder
from tacit.errors import BadData, BadInput

WHERE = "The rows given"
NOTHING = ("NoneType", "NAType", "NaTType")  # pandas has its own words for a cell without a value


def table(rows: Any, encoder: Encoder) -> Table:
    """The rows by column; a tensor or array has a raw column for each of the encoder's, in that order, and NaN for missing.

    Raises BadData, BadInput.
    """
    if isinstance(rows, torch.Tensor | np.ndarray):
        columns = _of_array(rows, encoder)
    elif isinstance(rows, Mapping) or (hasattr(rows, "columns") and hasattr(rows, "iloc")):
        refuse_absent(WHERE, encoder.names, [str(name) for name in getattr(rows, "columns", rows)])
        columns = {column.name: _cells(rows[column.name], column) for column in encoder.columns}
    else:
        raise BadInput(
            f"Expected rows as a mapping of column names to values, a DataFrame, a tensor or an array, got a {type(rows).__name__}."
        )
    count = len(next(iter(columns.values())))
    for name, cells in columns.items():
        if len(cells) != count:
            raise BadData(f"{WHERE} have {count} values in column {encoder.names[0]!r} and {len(cells)} in {name!r}.")
    return Table(WHERE, range(count), columns, unit="row")


def tensor(rows: Any, encoder: Encoder, *, tokens: bool = False) -> torch.Tensor:
    """Rows that have no columns, such as images, as the model reads them. Raises BadInput."""
    if not isinstance(rows, torch.Tensor | np.ndarray) or tuple(rows.shape[1:]) != encoder.shape:
        found = list(rows.shape) if isinstance(rows, torch.Tensor | np.ndarray) else f"a {type(rows).__name__}"
        raise BadInput(f"Expected rows as a tensor of shape [rows, {', '.join(map(str, encoder.shape))}], got {found}.")
    given = torch.as_tensor(rows)
    if tokens and not given.is_floating_point():
        return given.to(torch.int64)
    made = given.to(torch.float32)
    return made if encoder.divide_by == 1 else made / encoder.divide_by


def _of_array(rows: torch.Tensor | np.ndarray, encoder: Encoder) -> dict[str, Cells]:
    values = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else rows
    if values.ndim != 2 or values.shape[1] != len(encoder.columns):
        raise BadInput(
            f"Expected an array of shape [rows, {len(encoder.columns)}], with the raw columns in the order"
            f" {', '.join(encoder.names[:12])}{', ...' * (len(encoder.columns) > 12)}; got {list(values.shape)}."
        )
    return {column.name: _cells(values[:, index], column) for index, column in enumerate(encoder.columns)}


def _cells(values: Any, column: Column) -> Cells:
    """One column: numbers as they are where they are numbers, all else as the text that a csv file would have."""
    try:
        found = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.zeros((0, 0))
    if found.ndim != 1:
        raise BadData(f"{WHERE} have {found.ndim}-dimensional values in column {column.name!r}, or two of that name.")
    if column.values is None and found.dtype.kind in "fiub":
        return found.astype(np.float64)
    return _texts(found.tolist() if found.dtype.kind in "fiubU" else list(found))


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if type(value).__name__ in NOTHING or _is_nan(value) else str(value).strip() for value in values]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
