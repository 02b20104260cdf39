"""A pandas DataFrame as arrays. pandas is not imported here: whoever has a DataFrame has it.

A column is a feature only if it holds numbers in every row: what text or a gap becomes is somebody's public decision, not ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from tacit import check, plugin
from tacit.data import names
from tacit.data.dataset import Dataset
from tacit.data.handed import Table, class_indices
from tacit.data.held_out import NO_TEST_ROWS
from tacit.data.population import coins
from tacit.errors import BadData, BadInput
from tacit.plugin import PYTHON

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


# From tables that a program handed over to a checked data set: labels by class, and the test rows given or held out.

Classes = int | str | Sequence[Any]
NO_TEST = (
    "There are no test rows: pass test=..., public rows that no epsilon covers, or test_share=0.2, which holds out about that"
    " share of the clients' own rows and leaves it unprotected, or test_share=0 for none."
)


def refuse_test(test: Any, share: float | None) -> None:
    """Refuses test rows that are missing or said twice. Raises BadInput."""
    if test is None and share is None:
        raise BadInput(NO_TEST)
    if test is not None and share is not None:
        raise BadInput("test= and test_share= say twice where the test rows come from: leave one of them out.")
    if share is not None and share != 0:  # 0: nobody's rows are made public
        check.probability(test_share=share)


def declared(classes: Classes | None) -> names.Classes:
    """The labels as they were declared. Raises BadInput where they were not."""
    if classes is not None and not isinstance(classes, str | int | np.integer):
        classes = tuple(str(name) for name in classes)
    said = int(classes) if isinstance(classes, np.integer) else classes
    names.refuse_classes(said, key="classes")  # pyright: ignore[reportArgumentType]
    return said  # pyright: ignore[reportReturnType]


def dataset(
    table: Table, test: Table | None, *, classes: names.Classes, share: float | None = None, seed: int = 0
) -> Dataset:
    """The data set, with these test rows or with a share of the others held out. Raises BadData."""
    tables = [table] if test is None else [table, test]
    if classes == names.NUMBERS:
        class_names, notes, labels = (), (), [torch.from_numpy(one.labels) for one in tables]
    else:
        class_names, notes = names.classes(classes, [names.coded(one.labels) for one in tables])
        labels = [
            torch.from_numpy(class_indices(one.labels, class_names, where=where, key="classes"))
            for one, where in zip(tables, ("y", "the y of test"), strict=False)
        ]
    client_names, client = table.clients or (None, None)
    x, y = table.x, labels[0]
    if test is not None:
        test_x, test_y = test.x, labels[1]
    elif share == 0:
        test_x, test_y, notes = x[:0], y[:0], (*notes, NO_TEST_ROWS)
    else:
        if table.mapped:
            raise BadInput("Rows that stay in a file are not divided: pass test=(x, y) in the place of test_share.")
        held = _held(table, y, share=share or 0.0, seed=seed)
        test_x, test_y, x, y = x[held], y[held], x[~held], y[~held]
        client = None if client is None else client[held == 0]
        notes = (*notes, f"{len(test_y)} of {len(held)} rows were held out by a coin for each; no epsilon covers them")
    unprotected = len(test_y) if test is None else 0
    own = {
        "client": client,
        "client_names": client_names,
        "notes": notes,
        "mapped": table.mapped,
        "unprotected": unprotected,
    }
    return Dataset(PYTHON, x, y, test_x, test_y, class_names, **own)


def _held(table: Table, y: torch.Tensor, *, share: float, seed: int) -> np.ndarray:
    """Which rows are held out. Raises BadData where a client keeps none, or none is held out."""
    held = coins(table.x, y, share=share, seed=seed)
    client_names, client = table.clients or (("",), np.zeros(len(held), np.int32))
    kept = np.bincount(client[~held], minlength=len(client_names))
    if not held.any() or not kept.all():
        alone = client_names[int(np.argmin(kept))]
        who = "no row" if not held.any() else f"every row of client {alone!r}" if alone else "every row"
        raise BadData(
            f"The coins of test_share={share:g} hold out {who}: choose another share or test_seed, or pass test rows."
        )
    return held


# A torch dataset of (x, y) items as arrays. Every item is read once, so a random transform is applied once.


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
        rows.append(_numbers_torch_items(item[0], index, of=of))
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


def _numbers_torch_items(x: Any, index: int, *, of: str) -> np.ndarray:
    found = x.detach().cpu().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if found.dtype.kind not in "fiub":
        raise BadData(
            f"The x of item {index} of the torch dataset{of} is a {type(x).__name__} and no tensor: give the dataset a transform"
            " that makes tensors, such as torchvision's ToTensor."
        )
    return found.reshape(1) if found.ndim == 0 else found


# What Hugging Face's `datasets` saved on disk (`save_to_disk`) as arrays. Nothing is downloaded, and nothing there is
# code.


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
    for name in (label, *([] if client is None else [client]), *kept):
        if name not in rows.column_names:
            known = rows.column_names
            raise BadInput(f"{path} has no column {name!r}.{check.nearest(name, known) or check.listed(known)}")
    classes = getattr(rows.features[label], "names", None)
    found: dict[str, Any] = {"classes": classes} if classes else {}
    if tests is not None:
        found["test"] = _numbers_hugging_face(tests, kept, path), _labels(tests, label, classes)
    whose = None if client is None else _column(rows, client)
    return _numbers_hugging_face(rows, kept, path), _labels(rows, label, classes), whose, found


def _opened(path: Any, *, split: str, test_split: str | None, share: float | None) -> tuple[Any, Any]:
    """The clients' rows and the test rows."""
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


def _numbers_hugging_face(rows: Any, columns: list[str], path: Any) -> np.ndarray:
    """The features: one column of arrays as it is, several side by side. Raises BadData naming a column of other things."""
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
