"""What Hugging Face's `datasets` saved on disk (`save_to_disk`) as arrays. Nothing is downloaded, and nothing there is code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit import check, plugin
from tacit.data.torch_items import by_position
from tacit.errors import BadData, BadInput


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
        found["test"] = _numbers(tests, kept, path), _labels(tests, label, classes)
    whose = None if client is None else _column(rows, client)
    return _numbers(rows, kept, path), _labels(rows, label, classes), whose, found


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


def _numbers(rows: Any, columns: list[str], path: Any) -> np.ndarray:
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
