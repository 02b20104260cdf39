"""From tables that a program handed over to a checked data set: labels by class, and the test rows given or held out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit import check
from tacit.data import names
from tacit.data.arrays import class_indices
from tacit.data.dataset import Dataset
from tacit.data.handed import Table
from tacit.data.held_out import NO_TEST_ROWS
from tacit.data.row_hashes import coins
from tacit.errors import BadData, BadInput
from tacit.plugin import PYTHON

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
