"""DataFrames, as the features that a model reads: by the declarations of columns that a csv source has, so that one table gives
the same rows by either way. A column that is not declared is a feature only if it holds numbers in every row: what text or a gap
becomes is somebody's public decision, not ours. pandas is not imported."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tacit import check
from tacit.data.dataset import LEARNED
from tacit.data.encoder import REFUSE, Column, column_of, encode
from tacit.data.texts import Cells, Table
from tacit.errors import BadData, BadInput

NOTHING: Mapping[str, Any] = MappingProxyType({})
ABSENT = ("NoneType", "NAType", "NaTType")  # pandas has its own words for a cell without a value
MOST_NAMED = 5  # columns in one sentence


def features(df: Any, roles: Sequence[str | None], columns: Sequence[str] | None, *, of: str = "df") -> list[Any]:
    """The columns of a DataFrame that are features: those that are named, else all that have no role (label, client, person).
    Raises BadInput, BadData for what is no table of records."""
    refuse_odd(df, of)
    label, client, person = roles
    known = list(df.columns)
    refuse_absent(of, (*(name for name in roles if name is not None), *(columns or ())), known)
    kept = [column for column in known if column not in roles] if columns is None else list(columns)
    refuse_learned(person, (label, client), kept)
    if not kept or label in kept or client in kept or len(set(kept)) < len(kept):
        raise BadInput(f"Expected features beside the label and the client, each once, got columns {kept}.")
    return kept


def columns_of(
    kept: Sequence[Any], *, numeric: Mapping[str, Any], categorical: Mapping[str, Any], missing: Any
) -> tuple[Column, ...]:
    """How the features are read, by the declarations of a csv source. Raises BadInput."""
    from tacit.data.sources import csv

    names = tuple(map(str, kept))
    if any(said == "private" or isinstance(said, Mapping) for said in numeric.values()):
        raise BadInput(
            "A range of from_pandas is public: numeric={'age': [0, 100]}; private ranges are asked for of csv files."
        )
    label = "label" if "label" not in names else "label of the rows"
    declared = {"numeric": dict(numeric), "categorical": {name: tuple(values) for name, values in categorical.items()}}
    how: dict[str, Any] = {"path": "df", "label": label, "classes": 2, "columns": names, "missing": missing, **declared}
    source = csv(**how)
    return tuple(column_of(name, source) for name in names)


def arrays(
    df: Any,
    columns: Sequence[Column],
    *,
    label: str,
    client: str | None = None,
    person: str | None = None,
    of: str = "df",
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Features, labels, and whose the rows are, of the rows that are kept. Raises BadInput, BadData."""
    refuse_odd(df, of)
    names, roles = (
        {str(name): name for name in df.columns},
        [name for name in (label, client, person) if name is not None],
    )
    refuse_absent(of, [*(column.name for column in columns), *map(str, roles)], [*names])
    as_they_stand = [one.name for one in columns if one.is_number and one.span is None and one.missing == REFUSE]
    _refuse_no_numbers(df, [names[name] for name in as_they_stand], of=of)
    cells = {column.name: cells_of(df[names[column.name]], column, of) for column in columns}
    found = encode(Table(of, range(len(df)), cells, unit="row"), columns)

    def words(name: str) -> np.ndarray:
        absent = np.flatnonzero(df[name].isna().to_numpy())
        if len(absent):
            row = f"row {absent[0]} (rows count from 0)"
            raise BadData(f"Column {name!r} of {of} is empty in {row}: fill it, or leave the row out.")
        return df[name].to_numpy()[found.kept]

    whose, who = (None if name is None else words(name) for name in (client, person))
    return found.x, words(label), whose, who


def cells_of(values: Any, column: Column, where: str) -> Cells:
    """One raw column in memory, as an encoder reads it. Raises BadData."""
    try:
        found = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.zeros((0, 0))
    if found.ndim != 1:
        if not found.ndim:
            raise BadData(
                f"{where} have one value in column {column.name!r}, not a list: write {{{column.name!r}: [...]}}."
            )
        raise BadData(f"{where} have {found.ndim}-dimensional values in column {column.name!r}, or two of that name.")
    if (numbers := column.cells(found)) is not None:
        return numbers
    return _texts(found.tolist() if found.dtype.kind in "fiubU" else list(found))


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if type(value).__name__ in ABSENT or _is_nan(value) else str(value).strip() for value in values]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def refuse_odd(df: Any, of: str) -> None:
    if not all(hasattr(df, name) for name in ("columns", "index", "iloc")):
        raise BadInput(f"Expected {of} to be a pandas DataFrame, got a {type(df).__name__}.")
    if not len(df):
        raise BadData(f"{of} has no rows.")
    names = Counter(str(name) for name in df.columns)  # 0 and "0" too: one would be read for the other
    for twice in [name for name, count in names.items() if count > 1][:1]:
        raise BadData(f"{of} has two columns named {twice!r}: rename one of them.")
    if not df.index.is_unique:
        twice = df.index[df.index.duplicated()][0]
        raise BadData(
            f"The index of {of} holds {str(twice)!r} more than once: these may be copies of one record, or several records of one"
            " person, and an epsilon covers one record; drop the copies, then call df.reset_index(drop=True).",
            cell=str(twice),
        )


def refuse_learned(person: str | None, roles: Sequence[str | None], features: Sequence[str]) -> None:
    if person is not None and person in (*roles, *features):
        raise BadInput(LEARNED.format(f"person = {person!r}"))


def refuse_absent(of: Any, columns: Sequence[Any], known: Sequence[Any]) -> None:
    for name in columns:
        if name not in known:
            texts = [str(one) for one in known]
            raise BadInput(f"{of} has no column {name!r}.{check.nearest(str(name), texts) or check.listed(texts)}")


def _refuse_no_numbers(df: Any, columns: list[Any], *, of: str) -> None:
    others = [f"{name!r} ({df[name].dtype})" for name in columns if getattr(df[name].dtype, "kind", "O") not in "fiub"]
    if others:
        raise BadData(
            f"{of} has columns that hold no numbers: {check.some(others, MOST_NAMED)}; encode them with values that are"
            " public, as in categorical={...}, or name the features in columns=[...]."
        )
    for name in columns:
        with np.errstate(over="ignore"):
            broken = np.flatnonzero(
                ~np.isfinite(df[name].to_numpy(dtype=np.float64, na_value=np.nan).astype(np.float32))
            )
        if len(broken):
            more = f" and in {len(broken) - 1} more" if len(broken) > 1 else ""
            raise BadData(
                f"Column {name!r} of {of} has no finite number in row {broken[0]}{more} (rows count from 0): fill it with a public"
                f" constant, as in missing={{{name!r}: 0}}, or leave such rows out."
            )
