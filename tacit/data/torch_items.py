"""A torch dataset of (x, y) items as arrays. Every item is read once, so a random transform is applied once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from tacit import plugin
from tacit.errors import BadData, BadInput


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
        rows.append(_numbers(item[0], index, of=of))
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


def _numbers(x: Any, index: int, *, of: str) -> np.ndarray:
    found = x.detach().cpu().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if found.dtype.kind not in "fiub":
        raise BadData(
            f"The x of item {index} of the torch dataset{of} is a {type(x).__name__} and no tensor: give the dataset a transform"
            " that makes tensors, such as torchvision's ToTensor."
        )
    return found.reshape(1) if found.ndim == 0 else found
