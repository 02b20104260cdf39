"""Rows read from a person's own files, and the data set they make: with the test rows given, or with some held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit.data.dataset import Dataset
from tacit.data.encoder import Encoder
from tacit.data.names import Coded
from tacit.data.population import coins, coins_of
from tacit.errors import BadData

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
    marks: Sequence[bytes] | None = (
        None  # of each row as it was written, where reading may scale it by what is asked for later
    )


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
    """Makes a data set; without test rows about a share of the rows becomes the test set, or none. Raises: BadData."""
    if not len(rows.y):
        raise BadData(
            f"{source.path} leaves no rows to train on: correct the data, or data.missing if rows were dropped."
        )
    client_names, client = rows.clients or (None, None)
    x, y, unprotected = rows.x, _targets(rows.y), 0
    if test is None and source.test_share == 0:
        test_x, test_y = x[:0], y[:0]
        notes = (*notes, NO_TEST_ROWS)
    elif test is None:
        held = hold_out(x, y, rows.clients, share=source.test_share, seed=seed, marks=rows.marks)
        test_x, test_y, x, y = x[held], y[held], x[~held], y[~held]
        client = None if client is None else client[~held]
        unprotected = int(held.sum())
        notes = (*notes, f"held out {unprotected} of the clients' rows as the test set: these are not protected")
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
        unprotected=unprotected,
    )


def _targets(y: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False))


def hold_out(
    x: torch.Tensor,
    y: torch.Tensor,
    clients: Coded | None,
    *,
    share: float,
    seed: int,
    marks: Sequence[bytes] | None = None,
) -> np.ndarray:
    """Marks about `share` of the rows for the test set: a coin for each, keyed by the seed and by nothing but the row itself.

    Guarantee: a row that comes or goes moves no other one between training and test, so that what an epsilon says about one row
    of the training set it says about one row of the file. Raises: BadData where no row is held out, or all of a client's are.

    >>> round(float(hold_out(torch.arange(1000.0)[:, None], torch.zeros(1000), None, share=0.2, seed=0).mean()), 1)
    0.2
    """
    coin = {"share": share, "seed": seed}
    held = coins(x, y, **coin) if marks is None else coins_of(marks, **coin)
    called, owner = clients or (("",), np.zeros(len(held), np.int64))
    kept = np.bincount(owner[~held], minlength=len(called))
    if held.any() and kept.all():
        return held
    who = f"every row of client {called[int(np.argmin(kept))]!r}" if held.any() and clients else "every row or none"
    raise BadData(
        f"The coins of data.test_share = {share:g} hold out {who}: clients this small need public test rows in data.test_path"
        " (or choose another share or seed.data)."
    )
