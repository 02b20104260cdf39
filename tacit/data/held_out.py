"""Rows read from a person's own files, and the data set they make: with the test rows given, or with some held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit.data.dataset import Dataset
from tacit.data.encoder import Encoder
from tacit.data.names import Coded
from tacit.errors import BadData
from tacit.random import seeded

if TYPE_CHECKING:
    from tacit.data.sources.csv import csv
    from tacit.data.sources.npz import npz


NO_TEST_ROWS = "there are no public test rows: how good the model is in each round is not known"


@dataclass(frozen=True, eq=False)
class Rows:
    """Features, targets (class indices, or float32 numbers) and, where the source names clients, whose row each is."""

    x: torch.Tensor
    y: np.ndarray
    clients: Coded | None = None


def dataset(
    source: "csv | npz",
    rows: Rows,
    test: Rows | None,
    *,
    class_names: tuple[str, ...],
    seed: int,
    notes: Sequence[str],
    encoder: Encoder | None = None,
) -> Dataset:
    """Makes a data set; without test rows a share of every client's rows becomes the test set, or none. Raises: BadData."""
    if not len(rows.y):
        raise BadData(
            f"{source.path} leaves no rows to train on: correct the data, or data.missing if rows were dropped."
        )
    client_names, client = rows.clients or (None, None)
    x, y = rows.x, _targets(rows.y)
    if test is None and source.test_share == 0:
        test_x, test_y = x[:0], y[:0]
        notes = (*notes, NO_TEST_ROWS)
    elif test is None:
        held = hold_out(client, rows=len(y), share=source.test_share, seed=seed)
        test_x, test_y, x, y = x[held], y[held], x[~held], y[~held]
        client = None if client is None else client[~held]
        notes = (*notes, f"held out {int(held.sum())} of the clients' rows as the test set: these are not protected")
    else:
        test_x, test_y = test.x, _targets(test.y)
    return Dataset(
        name=type(source).__name__,
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        class_names=class_names,
        client=client,
        client_names=client_names,
        notes=tuple(notes),
        encoder=encoder,
    )


def _targets(y: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False))


def hold_out(client: np.ndarray | None, *, rows: int, share: float, seed: int) -> np.ndarray:
    """Marks about `share` of every client's rows for the test set, chosen by the seed; a client always keeps one row.

    Raises: BadData if the clients are too small for any of them to give up a row.

    >>> int(hold_out(None, rows=10, share=0.2, seed=0).sum())
    2
    """
    owner = np.zeros(rows, np.int64) if client is None else client
    sizes = np.bincount(owner)
    taken = np.minimum(np.floor(sizes * share + 0.5).astype(np.int64), np.maximum(sizes - 1, 0))
    if not taken.any():
        raise BadData(
            f"No client has enough rows to hold out {share:g} of them: set data.test_path or a larger data.test_share."
        )
    order = np.lexsort((seeded(seed)("data", "test").uniform(rows), owner))
    rank = np.arange(rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = np.zeros(rows, bool)
    test[order] = rank < np.repeat(taken, sizes)
    return test
