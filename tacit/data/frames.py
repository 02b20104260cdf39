"""A pandas DataFrame as arrays. pandas is not imported here: whoever has a DataFrame has it.

A column is a feature only if it holds numbers in every row: what text or a gap becomes is somebody's public decision, not ours.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit import check
from tacit.errors import BadData, BadInput

MOST_NAMED = 5  # columns in one sentence


def frame_arrays(
    df: Any, *, label: str, client: str | None = None, columns: Sequence[str] | None = None, of: str = "df"
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Features, labels and, where a column names them, clients, in the frame's order. Raises BadInput, BadData."""
    _refuse_shape(df, of=of)
    known = list(df.columns)
    for column in (label, *([] if client is None else [client]), *(columns or ())):
        if column not in known:
            hint = check.nearest(str(column), map(str, known))
            raise BadInput(
                f"{of} has no column {column!r}.{hint}" if hint else f"{of} has no column {column!r}: it has {known}."
            )
    kept = [column for column in known if column not in (label, client)] if columns is None else list(columns)
    if not kept or label in kept or client in kept or len(set(kept)) < len(kept):
        raise BadInput(f"Expected features beside the label and the client, each once, got columns {kept}.")
    whose = None if client is None else _words(df, client, of=of)
    return _numbers(df, kept, of=of), _words(df, label, of=of), whose


def _refuse_shape(df: Any, *, of: str) -> None:
    """Refuses what is no frame, has no rows, or has an index or columns in which one name stands for several."""
    if not all(hasattr(df, name) for name in ("columns", "index", "iloc")):
        raise BadInput(f"Expected {of} to be a pandas DataFrame, got a {type(df).__name__}.")
    if not len(df):
        raise BadData(f"{of} has no rows.")
    if not df.columns.is_unique:
        twice = df.columns[df.columns.duplicated()][0]
        raise BadData(f"{of} has two columns named {twice!r}: rename one of them.")
    if not df.index.is_unique:
        twice = df.index[df.index.duplicated()][0]
        raise BadData(
            f"The index of {of} holds {str(twice)!r} more than once: these may be copies of one record, or several records of one"
            " person, and an epsilon covers one record; drop the copies, then call df.reset_index(drop=True).",
            cell=str(twice),
        )


def _numbers(df: Any, columns: list[str], *, of: str) -> np.ndarray:
    """The features as float32. Raises BadData naming columns that hold no numbers, or the first place without one."""
    others = [f"{name!r} ({df[name].dtype})" for name in columns if getattr(df[name].dtype, "kind", "O") not in "fiub"]
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        raise BadData(
            f"{of} has columns that hold no numbers: {', '.join(others[:MOST_NAMED])}{more}; encode them with values that are"
            " public (pandas.get_dummies on a declared Categorical), or name the features in columns=[...]."
        )
    x = np.empty((len(df), len(columns)), np.float32)
    for place, name in enumerate(columns):
        with np.errstate(over="ignore"):
            x[:, place] = df[name].to_numpy(dtype=np.float64, na_value=np.nan)
        broken = np.flatnonzero(~np.isfinite(x[:, place]))
        if len(broken):
            more = f" and in {len(broken) - 1} more" if len(broken) > 1 else ""
            raise BadData(
                f"Column {name!r} of {of} has no finite number in row {broken[0]}{more} (rows count from 0): fill it with a public"
                f" constant, as in df.fillna({{{name!r}: 0}}), or leave such rows out."
            )
    return x


def _words(df: Any, column: str, *, of: str) -> np.ndarray:
    """A column of labels or clients. Raises BadData for a row that has none."""
    absent = np.flatnonzero(df[column].isna().to_numpy())
    if len(absent):
        raise BadData(
            f"Column {column!r} of {of} is empty in row {absent[0]} (rows count from 0): fill it, or leave the row out."
        )
    return df[column].to_numpy()
