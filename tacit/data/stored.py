"""Rows that do not fit into memory: loaded client by client once, and kept in a file of which memory holds what is being used.

The file has no name and goes with the process, so no copy of anybody's rows is left behind. It is mapped: a client's rows are read
when they are trained on, and the operating system forgets them when it needs the room. What was checked and hashed is what is
trained on, whatever happens to the place that the rows came from.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import plugin
from tacit.data.handed import Table, distinct, rows_and_labels
from tacit.errors import BadInput

Load = Callable[[Any], tuple[Any, Any]]


def stored(load: Load, clients: Iterable[Any], *, folder: Path | str | None = None, numeric: bool = False) -> Table:
    """The rows of all clients, one client after the other, as a map of a file. Raises BadInput, BadData by client."""
    if not callable(load) or isinstance(clients, str):
        raise BadInput("Expected a function that gives the (x, y) of a client, and the clients' names.")
    asked = list(clients)
    called, labels = distinct(asked, count=len(asked)), list[np.ndarray]()
    first: tuple[torch.Tensor, np.ndarray] | None = None
    with _file(folder) as file:
        for name, client in zip(called, asked, strict=True):
            with plugin.guarded(f"The rows of client {name!r} cannot be loaded"):
                pair = load(client)
            now = rows_and_labels(pair, name, first, called[0], numeric=numeric)
            first = first or (now[0][:1].clone(), now[1][:1])
            file.write(now[0].numpy().data)
            labels.append(now[1])
        if first is None:
            raise BadInput("There are no clients: name at least one.")
        file.flush()
        shape = (sum(map(len, labels)), *first[0].shape[1:])
        # copy on write: nobody writes, and torch wants no array that it could not write to
        x = torch.from_numpy(np.memmap(file, dtype=np.float32, mode="c", shape=shape))
    owner = np.repeat(np.arange(len(called), dtype=np.int32), [len(part) for part in labels])
    return Table(x, np.concatenate(labels), (called, owner), mapped=True)


def _file(folder: Path | str | None) -> Any:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise BadInput(f"{folder} cannot hold the rows ({error.strerror}): choose another folder.") from None
