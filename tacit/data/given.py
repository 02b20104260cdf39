"""`tacit.Dataset`: rows that a program hands over, where an experiment file would name a source. Whatever turned raw values
into these features must be public: a constant, or declared, never learned from clients' rows. The labels are declared too
(`classes`), or made public in so many words ("from-data")."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from tacit import check, plugin
from tacit.data import frames, texts
from tacit.data.dataset import (
    Table,
    dataset,
    distinct,
    owned,
    rows_of_client,
    table,
    tags_of,
    test_table,
    with_classes,
)
from tacit.data.encoder import REFUSE, Encoder
from tacit.data.frames import NOTHING
from tacit.data.population import HASH_BYTES
from tacit.data.texts import NUMBERS
from tacit.errors import BadData, BadInput
from tacit.plugin import PYTHON

Classes = int | str | Sequence[Any]
NO_TEST = (
    "There are no test rows: pass test=..., public rows that no epsilon covers, or test_share=0.2, which holds out about that"
    " share of the clients' own rows and leaves it unprotected, or test_share=0 for none."
)


def _declared(classes: Classes | None) -> texts.Classes:
    if classes is not None and not isinstance(classes, str | int | np.integer):
        classes = tuple(str(name) for name in classes)
    said = int(classes) if isinstance(classes, np.integer) else classes
    texts.refuse_classes(said, key="classes")  # pyright: ignore[reportArgumentType]
    return said  # pyright: ignore[reportReturnType]


def _refuse_test(test: Any, share: float | None) -> None:
    if test is None and share is None:
        raise BadInput(NO_TEST)
    if test is not None and share is not None:
        raise BadInput("test= and test_share= say twice where the test rows come from: leave one of them out.")
    if share is not None and share != 0:  # 0: nobody's rows are made public
        check.probability(test_share=share)


class Dataset:
    """Rows, their labels and, where they are named, the clients that hold them; checked and copied when it is made. `x` and `y`
    are arrays, tensors or lists, with `clients` naming the client of each row; or `x` is a list of (x, y), one pair for each
    client, or a dict of them by name. `persons` has the id of each row's person in the same form, for `privacy.unit = "person"`;
    only a hash of each is kept. Features become float32. `classes` are the labels as a list, a number c for 0..c-1,
    "from-data", which makes the labels found public, or "numbers" where y are numbers (a regression). `test` has rows that are
    public; without any, `test_share` holds out about that share: a coin for each record, keyed by `test_seed` and the record
    alone; 0 makes nobody's rows public, and how good the model is in each round is then not known. Raises BadInput or BadData
    in one sentence.

    >>> Dataset([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], classes=2, test=([[3.0]], [1]))
    Dataset(3 rows of shape [1], 2 clients, 2 classes, 1 test row)
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        clients: Any = None,
        persons: Any = None,
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
        if persons is not None:
            tables[0] = replace(tables[0], persons=tags_of(x, y, persons))
        (rows, *tests), named, notes = with_classes(tables, said, key="classes")
        how: dict[str, Any] = {"class_names": named, "notes": notes, "share": test_share or 0.0, "seed": test_seed}
        self._held_out = {} if test_share is None else {"test_share": test_share, "test_seed": test_seed}
        self.rows = dataset(PYTHON, rows, tests[0] if tests else None, **how, key="test_share")

    @classmethod
    def from_pandas(
        cls,
        df: Any,
        *,
        label: str,
        client: str | None = None,
        person: str | None = None,
        columns: Sequence[str] | None = None,
        numeric: Mapping[str, Sequence[float]] = NOTHING,
        categorical: Mapping[str, Sequence[Any]] = NOTHING,
        missing: Any = REFUSE,
        **how: Any,
    ) -> "Dataset":
        """Takes a DataFrame: `label`, `client` and `person` name columns; the others, or those in `columns`, are the features.
        A column of numbers is taken as it stands, or scaled from its public range, `numeric={"age": [0, 100]}`; one of texts has
        its public values listed in `categorical`; `missing` says what stands in for a gap, as `data.missing` of a csv file does.
        The model of such a run predicts DataFrames by the names of their columns. The rest is as for `Dataset`, with `test`
        another DataFrame that has the same columns. Raises BadData for a column that is not declared and no number, or has no value
        somewhere, by its name, and for an index in which a label stands twice."""
        kept = frames.features(df, (label, client, person), columns)
        read = frames.columns_of(kept, numeric=numeric, categorical=categorical, missing=missing)
        x, y, clients, persons = frames.arrays(df, read, label=label, client=client, person=person)
        if how.get("test") is not None:
            how["test"] = frames.arrays(how["test"], read, label=label, of="test")[:2]
        made = cls(x, y, clients=clients, **({} if persons is None else {"persons": persons}), **how)
        classes = made.rows.class_names
        encoder = Encoder(classes, (x.shape[1],), read, label=label, outputs=0 if classes else 1)
        made.rows = replace(made.rows, encoder=encoder)
        return made

    @classmethod
    def from_torch(cls, dataset: Any, **how: Any) -> "Dataset":
        """Takes a torch dataset of (x, y) items, or a list or dict of them, one for each client; every item is read once. The
        rest is as for `Dataset`, with `test` another torch dataset. Without `classes`, those that the dataset lists
        (`dataset.classes`, as torchvision's do) are taken."""
        classes = _classes_listed(dataset) if how.get("classes") is None else None
        how["classes"] = classes or how.get("classes")
        if how.get("test") is not None:
            how["test"] = _item_arrays(how["test"], classes, of=" of test")
        if isinstance(dataset, Mapping):
            parts = {name: _item_arrays(one, classes, of=f" of client {name!r}") for name, one in dataset.items()}
            return cls(parts, **how)
        if isinstance(dataset, list | tuple):
            return cls([_item_arrays(one, classes, of=f" of client {k}") for k, one in enumerate(dataset)], **how)
        return cls(*_item_arrays(dataset, classes), **how)

    @classmethod
    def from_hf(
        cls,
        path: Any,
        *,
        label: str = "label",
        client: str | None = None,
        person: str | None = None,
        columns: Sequence[str] | None = None,
        split: str = "train",
        test_split: str | None = None,
        **how: Any,
    ) -> "Dataset":
        """Takes what Hugging Face's `datasets` saved at `path` (`save_to_disk`); nothing is downloaded, and no code is run.
        `split` has the clients' rows and `test_split` public ones; without it and without `test_share`, the split "test" is
        taken. Without `classes`, the names of the label's ClassLabel are. The rest is as for `Dataset`. Needs `datasets`."""
        rows, tests = _opened(path, split=split, test_split=test_split, share=how.get("test_share"))
        roles = [name for name in (label, client, person) if name is not None]
        kept = [name for name in rows.column_names if name not in roles] if columns is None else list(columns)
        frames.refuse_absent(path, (*roles, *kept), rows.column_names)
        frames.refuse_learned(person, (label, client), kept)
        classes = getattr(rows.features[label], "names", None)

        def arrays(part: Any) -> tuple[np.ndarray, np.ndarray]:
            labels = _column(part, label)
            return _feature_columns(part, kept, path), _by_position(labels, classes, of=f" of {label!r}")

        found: dict[str, Any] = {} if tests is None else {"test": arrays(tests)}
        found |= {"classes": classes} if classes else {}
        whose = None if client is None else _column(rows, client)
        found |= {} if person is None else {"persons": _column(rows, person)}
        more = {key: value for key, value in how.items() if value is not None}
        return cls(*arrays(rows), clients=whose, **found | more)

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
        process; memory holds those of clients that train. The rest is as for `Dataset`, without `test_share`."""

        _declared(how.get("classes"))  # before hours of loading
        _refuse_test(how.get("test"), how.get("test_share"))
        return cls(_stored(load, clients, folder=folder, numeric=how.get("classes") == NUMBERS), **how)

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
    It tells a guessed row from a wrong one: it is written nowhere but under a ledger's key."""
    rows = data.rows
    made = hashlib.blake2b(repr((data.settings(), rows.client_names)).encode(), digest_size=HASH_BYTES)
    for part in (rows.x.numpy(), rows.y.numpy(), rows.test_x.numpy(), rows.test_y.numpy(), rows.client, rows.person):
        if part is not None:
            made.update(repr((part.shape, part.dtype.str)).encode())
            made.update(np.ascontiguousarray(part).data)
    return made.digest()


def _stored(
    load: Callable[[Any], tuple[Any, Any]], clients: Iterable[Any], *, folder: Path | str | None, numeric: bool
) -> Table:
    if not callable(load) or isinstance(clients, str):
        raise BadInput("Expected a function that gives the (x, y) of a client, and the clients' names.")
    asked = list(clients)
    called, labels = distinct(asked, count=len(asked)), list[np.ndarray]()
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed below
    except OSError as error:
        raise BadInput(f"{folder} cannot hold the rows ({error.strerror}): choose another folder.") from None
    first: Table | None = None
    with file:
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
    owners = owned(called, [len(part) for part in labels])
    return Table(x, np.concatenate(labels), owners, mapped=True, where="y")


# Torch datasets and saved Hugging Face datasets, as arrays. A column is a feature only if it holds numbers in every row: what
# text or a gap becomes is somebody's public decision, not ours. None of their packages is imported before it is needed.


def _item_arrays(dataset: Any, classes: Sequence[str] | None = None, *, of: str = "") -> tuple[Any, Any]:
    """Features and labels of all items, the latter by name where the dataset lists its classes and counts their positions."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], _by_position(dataset.tensors[1], classes, of=of)
    try:
        count = len(dataset)
    except TypeError:
        raise BadInput(
            f"The torch dataset{of} does not say how many items it has: make a list of them, or a TensorDataset."
        ) from None
    if not count:
        raise BadData(f"The torch dataset{of} has no items.")
    rows, labels = list[np.ndarray](), list[Any]()
    for index in range(count):  # each is read once, so a random transform is applied once
        with plugin.guarded(f"Item {index} of the torch dataset{of} cannot be read"):
            item = dataset[index]
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise BadInput(
                f"Expected items (x, y) in the torch dataset{of}, and item {index} is a {type(item).__name__}."
            )
        x, y = item
        row = x.detach().cpu().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
        if row.dtype.kind not in "fiub":
            raise BadData(
                f"The x of item {index} of the torch dataset{of} is a {type(x).__name__} and no tensor: give the dataset a"
                " transform that makes tensors, such as torchvision's ToTensor."
            )
        rows.append(row.reshape(1) if row.ndim == 0 else row)
        labels.append(y.item() if isinstance(y, torch.Tensor | np.generic) else y)
        if rows[index].shape != rows[0].shape:
            shapes = f"{list(rows[0].shape)} and item {index} {list(rows[index].shape)}"
            raise BadData(f"Item 0 of the torch dataset{of} has the shape {shapes}: all need one shape.")
    return np.stack(rows), _by_position(np.array(labels), classes, of=of)


def _classes_listed(dataset: Any) -> list[str] | None:
    if isinstance(dataset, Mapping | list | tuple):
        found = [_classes_listed(one) for one in (dataset.values() if isinstance(dataset, Mapping) else dataset)]
        return found[0] if found and all(one == found[0] for one in found) else None
    whole = dataset.dataset if isinstance(dataset, Subset) else dataset
    classes = getattr(whole, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, Sequence) and not isinstance(classes, str) else None


def _by_position(labels: Any, classes: Sequence[str] | None, *, of: str) -> Any:
    codes = np.asarray(labels) if classes else labels
    if not classes or codes.dtype.kind not in "iub":
        return codes
    outside = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(outside):
        raise BadData(
            f"Row {outside[0]}{of} has the label {int(codes[outside[0]])}, and there are {len(classes)} classes, from 0 on."
        )
    return np.array(classes, dtype=str)[codes.astype(np.int64)]


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


def _feature_columns(rows: Any, columns: list[str], path: Any) -> np.ndarray:
    parts = [_column(rows, name) for name in columns]
    for name, part in zip(columns, parts, strict=True):
        if part.dtype.kind not in "fiub":
            raise BadData(
                f"Column {name!r} of {path} does not hold numbers of one shape ({rows.features[name]}): encode it"
                " with values that are public, or name the features in columns=[...]."
            )
    if len(parts) == 1 and parts[0].ndim > 1:
        return parts[0]
    return np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)


def _column(rows: Any, name: str) -> np.ndarray:
    return np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
