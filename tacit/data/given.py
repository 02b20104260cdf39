"""`tacit.Dataset`: rows that a program hands over, where an experiment file would name a source.

Whatever turned raw values into these features must be public: a constant, or declared, never learned from clients' rows. The
labels are declared too (`classes`), or made public in so many words ("from-data")."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import check, plugin
from tacit.data import names
from tacit.data.frames import frame_arrays, item_arrays, listed, saved_arrays
from tacit.data.names import NUMBERS
from tacit.data.population import HASH_BYTES
from tacit.data.table import Table, dataset, distinct, rows_of_client, table, test_table, with_classes
from tacit.errors import BadInput
from tacit.plugin import PYTHON

Classes = int | str | Sequence[Any]
NO_TEST = (
    "There are no test rows: pass test=..., public rows that no epsilon covers, or test_share=0.2, which holds out about that"
    " share of the clients' own rows and leaves it unprotected, or test_share=0 for none."
)


def _declared(classes: Classes | None) -> names.Classes:
    if classes is not None and not isinstance(classes, str | int | np.integer):
        classes = tuple(str(name) for name in classes)
    said = int(classes) if isinstance(classes, np.integer) else classes
    names.refuse_classes(said, key="classes")  # pyright: ignore[reportArgumentType]
    return said  # pyright: ignore[reportReturnType]


def _refuse_test(test: Any, share: float | None) -> None:
    if test is None and share is None:
        raise BadInput(NO_TEST)
    if test is not None and share is not None:
        raise BadInput("test= and test_share= say twice where the test rows come from: leave one of them out.")
    if share is not None and share != 0:  # 0: nobody's rows are made public
        check.probability(test_share=share)


class Dataset:
    """Rows, their labels and, where they are named, the clients that hold them; checked and copied when it is made.

    `x` and `y` are arrays, tensors or lists, with `clients` naming the client of each row; or `x` is a list of (x, y), one pair
    for each client, or a dict of them by name. Features become float32. `classes` are the labels as a list, a number c for
    0..c-1, "from-data", which makes the labels found public, or "numbers" where y are numbers (a regression). `test` has rows
    that are public; without any, `test_share` holds out about that share: a coin for each record, keyed by `test_seed` and the
    record alone; 0 makes nobody's rows public, and how good the model is in each round is then not known.

    Raises BadInput or BadData in one sentence.

    >>> Dataset([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], classes=2, test=([[3.0]], [1]))
    Dataset(3 rows of shape [1], 2 clients, 2 classes, 1 test row)
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        clients: Any = None,
        classes: Classes | None = None,
        test: Any = None,
        test_share: float | None = None,
        test_seed: int = 0,
    ):
        said = _declared(classes)
        _refuse_test(test, test_share)
        numeric = said == NUMBERS
        tables = [] if test is None else [test_table(test, numeric=numeric)]
        tables.insert(0, table(x, y, clients, numeric=numeric))
        (rows, *tests), named, notes = with_classes(tables, said, places=("y", "the y of test"), key="classes")
        how: dict[str, Any] = {"class_names": named, "notes": notes, "share": test_share or 0.0, "seed": test_seed}
        self._held_out = {} if test_share is None else {"test_share": test_share, "test_seed": test_seed}
        self.rows = dataset(PYTHON, rows, tests[0] if tests else None, **how, key="test_share")

    @classmethod
    def from_pandas(
        cls, df: Any, *, label: str, client: str | None = None, columns: Sequence[str] | None = None, **how: Any
    ) -> "Dataset":
        """Takes a DataFrame: `label` and `client` name columns; the others, or those in `columns`, are the features.

        The rest is as for `Dataset`, with `test` another DataFrame that has the same columns. Raises BadData for a column that
        is no number or has no value somewhere, by its name, and for an index in which a label stands twice.
        """
        x, y, clients = frame_arrays(df, label=label, client=client, columns=columns)
        if how.get("test") is not None:
            kept = columns or [name for name in df.columns if name not in (label, client)]
            how["test"] = frame_arrays(how["test"], label=label, columns=kept, of="test")[:2]
        return cls(x, y, clients=clients, **how)

    @classmethod
    def from_torch(cls, dataset: Any, **how: Any) -> "Dataset":
        """Takes a torch dataset of (x, y) items, or a list or dict of them, one for each client; every item is read once.

        The rest is as for `Dataset`, with `test` another torch dataset. Without `classes`, those that the dataset lists
        (`dataset.classes`, as torchvision's do) are taken.
        """
        classes = listed(dataset) if how.get("classes") is None else None
        how["classes"] = classes or how.get("classes")
        if how.get("test") is not None:
            how["test"] = item_arrays(how["test"], classes, of=" of test")
        if isinstance(dataset, Mapping):
            parts = {name: item_arrays(one, classes, of=f" of client {name!r}") for name, one in dataset.items()}
            return cls(parts, **how)
        if isinstance(dataset, list | tuple):
            return cls([item_arrays(one, classes, of=f" of client {k}") for k, one in enumerate(dataset)], **how)
        return cls(*item_arrays(dataset, classes), **how)

    @classmethod
    def from_hf(
        cls,
        path: Any,
        *,
        label: str = "label",
        client: str | None = None,
        columns: Sequence[str] | None = None,
        split: str = "train",
        test_split: str | None = None,
        **how: Any,
    ) -> "Dataset":
        """Takes what Hugging Face's `datasets` saved at `path` (`save_to_disk`); nothing is downloaded, and no code is run.

        `split` has the clients' rows and `test_split` public ones; without it and without `test_share`, the split "test" is
        taken. Without `classes`, the names of the label's ClassLabel are. The rest is as for `Dataset`. Needs `datasets`.
        """
        splits = {"split": split, "test_split": test_split, "share": how.get("test_share")}
        x, y, clients, found = saved_arrays(path, label=label, client=client, columns=columns, **splits)
        return cls(x, y, clients=clients, **found | {key: value for key, value in how.items() if value is not None})

    @classmethod
    def from_loader(
        cls,
        load: Callable[[Any], tuple[Any, Any]],
        clients: Iterable[Any],
        *,
        folder: Path | str | None = None,
        **how: Any,
    ) -> "Dataset":
        """Takes rows that do not fit into memory: `load(client)` gives the (x, y) of one client, and is called once for each.

        The rows are kept in a nameless file in `folder` (the system's place for temporary files if left out) that goes with the
        process; memory holds those of clients that train. The rest is as for `Dataset`, without `test_share`.
        """

        _declared(how.get("classes"))  # before hours of loading
        _refuse_test(how.get("test"), how.get("test_share"))
        return cls(stored(load, clients, folder=folder, numeric=how.get("classes") == NUMBERS), **how)

    def __repr__(self) -> str:
        rows, tests = self.rows, len(self.rows.test_y)
        clients = f"{len(rows.client_names)} clients, " if rows.client_names else ""
        sizes = f"{len(rows.y)} rows of shape {list(rows.x.shape[1:])}, {clients}{rows.targets}"
        return f"Dataset({sizes}, {tests} test row{'s' * (tests != 1)})"

    def settings(self) -> dict[str, Any]:
        """What is said of the rows beside the rows: part of what a run's noise is keyed by."""
        return {"classes": self.rows.class_names, "shape": list(self.rows.x.shape[1:]), **self._held_out}

    @property
    def passed(self) -> str:
        """What a run's file says of the rows: how many there are."""
        return f"{len(self.rows.y)} rows, {len(self.rows.test_y)} test rows"


def digest_of(data: Dataset) -> bytes:
    """A hash of every row in its order, test rows included; made anew at every call, for nothing keeps rows from being edited.

    It tells a guessed row from a wrong one: it is written nowhere but under a ledger's key.
    """
    rows = data.rows
    made = hashlib.blake2b(repr((data.settings(), rows.client_names)).encode(), digest_size=HASH_BYTES)
    for part in (rows.x.numpy(), rows.y.numpy(), rows.test_x.numpy(), rows.test_y.numpy(), rows.client):
        if part is not None:
            made.update(repr((part.shape, part.dtype.str)).encode())
            made.update(np.ascontiguousarray(part).data)
    return made.digest()


# Rows that do not fit into memory: loaded client by client once, and kept in a file of which memory holds what is being used.


def stored(
    load: Callable[[Any], tuple[Any, Any]],
    clients: Iterable[Any],
    *,
    folder: Path | str | None = None,
    numeric: bool = False,
) -> Table:
    """The rows of all clients, one client after the other, as a map of a file. Raises BadInput, BadData by client."""
    if not callable(load) or isinstance(clients, str):
        raise BadInput("Expected a function that gives the (x, y) of a client, and the clients' names.")
    asked = list(clients)
    called, labels = distinct(asked, count=len(asked)), list[np.ndarray]()
    first: Table | None = None
    with _file(folder) as file:
        for name, client in zip(called, asked, strict=True):
            with plugin.guarded(f"The rows of client {name!r} cannot be loaded"):
                pair = load(client)
            now = rows_of_client(pair, name, first, called[0], numeric=numeric)
            first = first or Table(now.x[:1].clone(), now.y[:1])
            file.write(now.x.numpy().data)
            labels.append(now.y)
        if first is None:
            raise BadInput("There are no clients: name at least one.")
        file.flush()
        shape = (sum(map(len, labels)), *first.x.shape[1:])
        # copy on write: nobody writes, and torch wants no array that it could not write to
        x = torch.from_numpy(np.memmap(file, dtype=np.float32, mode="c", shape=shape))
    owner = np.repeat(np.arange(len(called), dtype=np.int32), [len(part) for part in labels])
    return Table(x, np.concatenate(labels), (called, owner), mapped=True)


def _file(folder: Path | str | None) -> Any:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise BadInput(f"{folder} cannot hold the rows ({error.strerror}): choose another folder.") from None
