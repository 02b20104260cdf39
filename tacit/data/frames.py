"""Doors of `tacit.Dataset`: DataFrames, torch datasets and saved Hugging Face datasets, as arrays.

A column is a feature only if it holds numbers in every row: what text or a gap becomes is somebody's public decision, not ours.
None of their packages is imported before it is needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from tacit import check, plugin
from tacit.errors import BadData, BadInput

MOST_NAMED = 5  # columns in one sentence


def frame_arrays(
    df: Any, *, label: str, client: str | None = None, columns: Sequence[str] | None = None, of: str = "df"
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Features, labels and, where a column names them, clients, in the frame's order. Raises BadInput, BadData."""
    _refuse_shape(df, of=of)
    known = list(df.columns)
    _refuse_absent(of, (label, *([] if client is None else [client]), *(columns or ())), known)
    kept = [column for column in known if column not in (label, client)] if columns is None else list(columns)
    if not kept or label in kept or client in kept or len(set(kept)) < len(kept):
        raise BadInput(f"Expected features beside the label and the client, each once, got columns {kept}.")
    whose = None if client is None else _words(df, client, of=of)
    return _numbers(df, kept, of=of), _words(df, label, of=of), whose


def _refuse_absent(of: Any, columns: Sequence[Any], known: Sequence[Any]) -> None:
    for name in columns:
        if name not in known:
            texts = [str(one) for one in known]
            raise BadInput(f"{of} has no column {name!r}.{check.nearest(str(name), texts) or check.listed(texts)}")


def _refuse_shape(df: Any, *, of: str) -> None:
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
    absent = np.flatnonzero(df[column].isna().to_numpy())
    if len(absent):
        raise BadData(
            f"Column {column!r} of {of} is empty in row {absent[0]} (rows count from 0): fill it, or leave the row out."
        )
    return df[column].to_numpy()


# A torch dataset of (x, y) items. Every item is read once, so a random transform is applied once.


def item_arrays(dataset: Any, classes: Sequence[str] | None = None, *, of: str = "") -> tuple[Any, Any]:
    """Features and labels of all items, the latter by name where the dataset lists its classes and counts their positions.

    Raises BadInput for what is no dataset of pairs, BadData naming the item.
    """
    x, y = _items(dataset, of=of)
    return x, by_position(y, classes, of=of) if classes else y


def _items(dataset: Any, *, of: str) -> tuple[Any, Any]:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    try:
        count = len(dataset)
    except TypeError:
        raise BadInput(
            f"The torch dataset{of} does not say how many items it has: make a list of them, or a TensorDataset."
        ) from None
    if not count:
        raise BadData(f"The torch dataset{of} has no items.")
    rows, labels = list[np.ndarray](), list[Any]()
    for index in range(count):
        with plugin.guarded(f"Item {index} of the torch dataset{of} cannot be read"):
            item = dataset[index]
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise BadInput(
                f"Expected items (x, y) in the torch dataset{of}, and item {index} is a {type(item).__name__}."
            )
        rows.append(_item_numbers(item[0], index, of=of))
        labels.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
        if rows[index].shape != rows[0].shape:
            shapes = f"{list(rows[0].shape)} and item {index} {list(rows[index].shape)}"
            raise BadData(f"Item 0 of the torch dataset{of} has the shape {shapes}: all need one shape.")
    return np.stack(rows), np.array(labels)


def listed(dataset: Any) -> list[str] | None:
    """The classes that a dataset lists itself; of several, if they agree."""
    if isinstance(dataset, Mapping | list | tuple):
        found = [listed(one) for one in (dataset.values() if isinstance(dataset, Mapping) else dataset)]
        return found[0] if found and all(one == found[0] for one in found) else None
    whole = dataset.dataset if isinstance(dataset, Subset) else dataset
    classes = getattr(whole, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, Sequence) and not isinstance(classes, str) else None


def by_position(labels: Any, classes: Sequence[str], *, of: str = "") -> np.ndarray:
    """Labels that count positions in a list of classes, as the names there. Raises BadData for one beyond its end.

    >>> by_position([1, 0], ["10", "9"]).tolist()
    ['9', '10']
    """
    codes = np.asarray(labels)
    if codes.dtype.kind not in "iub":
        return codes
    outside = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(outside):
        raise BadData(
            f"Row {outside[0]}{of} has the label {int(codes[outside[0]])}, and there are {len(classes)} classes, from 0 on."
        )
    return np.array(classes, dtype=str)[codes.astype(np.int64)]


def _item_numbers(x: Any, index: int, *, of: str) -> np.ndarray:
    found = x.detach().cpu().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if found.dtype.kind not in "fiub":
        raise BadData(
            f"The x of item {index} of the torch dataset{of} is a {type(x).__name__} and no tensor: give the dataset a transform"
            " that makes tensors, such as torchvision's ToTensor."
        )
    return found.reshape(1) if found.ndim == 0 else found


# What Hugging Face's `datasets` saved on disk (`save_to_disk`). Nothing is downloaded, and nothing there is code.


def saved_arrays(
    path: Any,
    *,
    label: str,
    client: str | None,
    columns: Sequence[str] | None,
    split: str,
    test_split: str | None,
    share: float | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Features, labels, clients, and the test rows and classes where it has them. Raises BadInput, BadData."""
    rows, tests = _opened(path, split=split, test_split=test_split, share=share)
    kept = [name for name in rows.column_names if name not in (label, client)] if columns is None else list(columns)
    _refuse_absent(path, (label, *([] if client is None else [client]), *kept), rows.column_names)
    classes = getattr(rows.features[label], "names", None)
    found: dict[str, Any] = {"classes": classes} if classes else {}
    if tests is not None:
        found["test"] = _column_numbers(tests, kept, path), _labels(tests, label, classes)
    whose = None if client is None else _column(rows, client)
    return _column_numbers(rows, kept, path), _labels(rows, label, classes), whose, found


def _opened(path: Any, *, split: str, test_split: str | None, share: float | None) -> tuple[Any, Any]:
    try:
        from datasets import load_from_disk  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput('Dataset.from_hf needs the package datasets: pip install "tacit[hf]"') from None
    if not Path(path).is_dir():
        raise BadData(f"{path} is no folder: expected what `dataset.save_to_disk(...)` wrote.")
    with plugin.guarded(f"{path} cannot be read as what `dataset.save_to_disk(...)` wrote"):
        found = load_from_disk(str(path))
    if not isinstance(found, Mapping):
        if test_split is not None:
            raise BadInput(f"{path} has no splits: leave out test_split, and give test_share.")
        return found, None
    wanted = test_split or ("test" if share is None and "test" in found and split != "test" else None)
    for name in (split, *([] if wanted is None else [wanted])):
        if name not in found:
            raise BadInput(f"{path} has no split {name!r}: it has {', '.join(map(str, found))}.")
    if wanted == split:
        raise BadInput(f"split and test_split are both {split!r}: test rows that were trained on test nothing.")
    return found[split], None if wanted is None else found[wanted]


def _column_numbers(rows: Any, columns: list[str], path: Any) -> np.ndarray:
    parts = list[np.ndarray]()
    for name in columns:
        part = _column(rows, name)
        if part.dtype.kind not in "fiub":
            raise BadData(
                f"Column {name!r} of {path} does not hold numbers of one shape ({rows.features[name]}): encode it"
                " with values that are public, or name the features in columns=[...]."
            )
        parts.append(part)
    if len(parts) == 1 and parts[0].ndim > 1:
        return parts[0]
    return np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)


def _labels(rows: Any, label: str, classes: Sequence[str] | None) -> np.ndarray:
    return by_position(_column(rows, label), classes, of=f" of {label!r}") if classes else _column(rows, label)


def _column(rows: Any, name: str) -> np.ndarray:
    return np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
