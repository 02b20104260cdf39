"""A data set in memory, checked once, whatever it came from; and the table of features, targets and clients that it is made of."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tacit.data import texts
from tacit.data.encoder import Encoder
from tacit.data.population import coins, coins_of, person_tags
from tacit.errors import BadData, BadInput

IGNORED = -100  # torch's word for a target that counts nothing
PART = 1 << 14  # rows looked at together


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows (perhaps none), with the client each training row belongs to where the source names clients. `y`
    holds classes (whole numbers) or numbers (floats), one or a row of them per example. Guarantee: every feature and number is
    finite, every class is in 0..classes-1, and rows, targets and clients have equal lengths. Raises: BadData.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> Dataset(name="tiny", x=x, y=y, test_x=x, test_y=y, class_names=("no", "yes")).classes
    2
    """

    name: str
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    test_x: torch.Tensor = field(repr=False)
    test_y: torch.Tensor = field(repr=False)
    class_names: tuple[str, ...]
    client: np.ndarray | None = field(default=None, repr=False)
    client_names: tuple[str, ...] | None = field(default=None, repr=False)
    person: np.ndarray | None = field(default=None, repr=False)  # the hash of each training row's person
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = field(default=None, repr=False)  # how raw rows became these; None: taken as they are
    unprotected: int = 0  # how many test rows are the clients' own, held out of training: no epsilon is about these
    mapped: bool = False  # the training rows lie in a file, client by client, and are not copied into memory

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or (not len(x) and part == "training"):
                raise BadData(
                    f"Expected {self.name} to hold {part} rows with one label each, got {len(x)} and {len(y)}."
                )
            if y.is_floating_point():
                where = f"the targets of {self.name}'s {part} data"
                refuse_not_finite(y.reshape(len(y), y.shape[1:].numel()), where=where)
                continue
            low = IGNORED if y.dim() > 1 else 0  # rows of tokens are filled up with what counts nothing
            odd = (y < 0) & (y != low) | (y >= self.classes)
            if odd.any():
                raise BadData(
                    f"Expected every {part} label of {self.name} in 0..{self.classes - 1}, got {int(y[odd].max())}."
                )
        if self.x.shape[1:] != self.test_x.shape[1:]:
            shapes = f"{list(self.x.shape[1:])} and {list(self.test_x.shape[1:])}"
            raise BadData(f"Expected training and test rows of {self.name} to have one shape, got {shapes}.")
        if self.client is not None and len(self.client) != len(self.y):
            raise BadData(f"Expected one client per row of {self.name}, got {len(self.client)} for {len(self.y)}.")
        if self.person is not None and len(self.person) != len(self.y):
            raise BadData(f"Expected one person per row of {self.name}, got {len(self.person)} for {len(self.y)}.")
        refuse_not_finite(self.x, where=f"{self.name} training data", client=self.client, names=self.client_names)
        refuse_not_finite(self.test_x, where=f"{self.name} test data")
        if self.y.shape[1:] != self.test_y.shape[1:] or self.y.dtype != self.test_y.dtype:
            raise BadData(f"Expected training and test targets of {self.name} to be of one kind and shape.")

    def noting(self, *words: str) -> "Dataset":
        """The same rows with more notes; rows that were checked are not checked again."""
        if not words:
            return self
        noted = copy.copy(self)
        object.__setattr__(noted, "notes", (*self.notes, *words))
        return noted

    @property
    def reading(self) -> Encoder:
        """How new rows are to be read for a model of this data."""
        return self.encoder or reading(self.x, self.y, self.class_names)

    @property
    def classes(self) -> int:
        """The number of classes; 0 where targets are numbers."""
        return len(self.class_names)

    @property
    def units(self) -> int:
        """How many there are of what is drawn: persons where rows have them, else rows."""
        return len(self.y) if self.person is None else len(np.unique(self.person))

    @property
    def classified(self) -> bool:
        """Whether each row has one class."""
        return self.y.dim() == 1 and not self.y.is_floating_point()

    @property
    def targets(self) -> str:
        """What the targets are, in a few words: "10 classes", "numbers in rows of 3"."""
        each = f" in rows of {self.y.shape[1]}" if self.y.dim() > 1 else ""
        return f"numbers{each}" if self.y.is_floating_point() else f"{self.classes} classes{each}"


def reading(x: torch.Tensor, y: torch.Tensor, class_names: tuple[str, ...], *, divide_by: float = 1.0) -> Encoder:
    """How new rows are read that are tensors like these: answered by a class, by numbers, or by a score for every token."""
    shape = tuple(x.shape[1:])
    if y.dim() == 1 and not y.is_floating_point():
        return Encoder(tuple(map(str, class_names)), shape, divide_by=divide_by)
    outputs = (y.shape[1] if y.dim() > 1 else 1) if y.is_floating_point() else len(class_names)
    return Encoder((), shape, divide_by=divide_by, outputs=outputs)


def refuse_not_finite(
    x: torch.Tensor, *, where: str, client: np.ndarray | None = None, names: tuple[str, ...] | None = None
) -> None:
    """Refuses NaN and infinity, naming the first row that holds one and its client. Raises: BadData."""
    # float32 values cannot overflow a double sum, so no mask is needed; in parts, because torch sums a double copy
    broken = [start for start, part in enumerate(x.split(PART)) if not torch.isfinite(part.sum(dtype=torch.float64))]
    if not broken:
        return
    part = x[broken[0] * PART : (broken[0] + 1) * PART]
    row = broken[0] * PART + int(torch.isfinite(part.flatten(1)).all(1).logical_not().nonzero()[0])
    of = "" if client is None or names is None else f" of client {names[client[row]]!r}"
    raise BadData(f"Row {row}{of} in {where} holds NaN or infinity (rows count from 0): correct it or leave it out.")


# Rows that came from a file or from a program, as one table.

NO_TEST_ROWS = "there are no public test rows: how good the model is in each round is not known"
PAIRS = "Expected a list of (x, y), one pair per client, or x and y, one label per row"
KINDS = ("rows of shape", "targets of shape", "labels that are")  # in what clients' rows are alike
OTHERWISE = {  # what to do where coins hold out too much, by the key that says their share
    "data.test_share": "clients this small need public test rows in data.test_path (or choose another share or data seed)",
    "test_share": "choose another share or test_seed, or pass test rows",
}


@dataclass(frozen=True, eq=False)
class Table:
    """Features, targets (as they were said, class indices, or numbers), and whose row each is where somebody said so."""

    x: torch.Tensor = field(repr=False)
    y: np.ndarray = field(repr=False)
    clients: texts.Coded | None = field(default=None, repr=False)
    mapped: bool = False  # whether the rows lie in a file, client by client
    digests: Sequence[bytes] | None = None  # of each row as it was written, where a later answer may scale it
    where: str = ""  # what its targets are called where something is wrong with one
    persons: np.ndarray | None = None  # the hash of each row's person


def dataset(
    name: str,
    rows: Table,
    test: Table | None,
    *,
    class_names: tuple[str, ...],
    share: float,
    seed: int,
    notes: Sequence[str] = (),
    encoder: Encoder | None = None,
    key: str = "data.test_share",
) -> Dataset:
    """The data set of rows with coded targets; without test rows about a share of the rows becomes the test set, or none.
    Raises: BadData, BadInput."""

    def targets(y: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False))

    client_names, client = rows.clients or (None, None)
    x, y, unprotected, person = rows.x, targets(rows.y), 0, rows.persons
    if test is not None:
        test_x, test_y = test.x, targets(test.y)
    elif share == 0:
        test_x, test_y, notes = x[:0], y[:0], (*notes, NO_TEST_ROWS)
    else:
        if rows.mapped:
            raise BadInput("Rows that stay in a file are not divided: pass test=(x, y) in the place of test_share.")
        digests = rows.digests if person is None else person.tolist()  # a person is on one side, whole
        held = hold_out(x, y, rows.clients, share=share, seed=seed, digests=digests, key=key)
        test_x, test_y, x, y = x[held], y[held], x[~held], y[~held]
        client, person = (None if part is None else part[~held] for part in (client, person))
        unprotected = int(held.sum())
        notes = (*notes, f"held out {unprotected} of the clients' rows as the test set: these are not protected")
    whose = {"client": client, "client_names": client_names, "person": person, "mapped": rows.mapped}
    more = {"notes": tuple(notes), "encoder": encoder, "unprotected": unprotected}
    return Dataset(name, x, y, test_x, test_y, class_names, **whose, **more)


def hold_out(
    x: torch.Tensor,
    y: torch.Tensor,
    clients: texts.Coded | None,
    *,
    share: float,
    seed: int,
    digests: Sequence[bytes] | None = None,
    key: str = "data.test_share",
) -> np.ndarray:
    """Marks about `share` of the rows for the test set: a coin for each, keyed by the seed and by nothing but the row itself.
    Guarantee: a row that comes or goes moves no other one between training and test, so that what an epsilon says about one row
    of the training set it says about one row of the file. Raises: BadData where no row is held out, or all of a client's
    are."""
    held = coins(x, y, share=share, seed=seed) if digests is None else coins_of(digests, share=share, seed=seed)
    called, owner = clients or (("",), np.zeros(len(held), np.int64))
    kept = np.bincount(owner[~held], minlength=len(called))
    if held.any() and kept.all():
        return held
    alone = called[int(np.argmin(kept))]
    who = "no row" if not held.any() else f"every row of client {alone!r}" if clients else "every row"
    raise BadData(f"The coins of {key} = {share:g} hold out {who}: {OTHERWISE[key]}.")


def with_classes(
    tables: Sequence[Table], classes: texts.Classes | None, *, key: str
) -> tuple[list[Table], tuple[str, ...], tuple[str, ...]]:
    """The tables with class indices for labels, the class names, and a note where they were not declared; numbers stay numbers.
    Raises BadData for a label that `key` does not declare."""
    if classes == texts.NUMBERS:
        return list(tables), (), ()
    found, notes = texts.classes(classes, [texts.coded(one.y) for one in tables])
    return [replace(one, y=_class_indices(one, found, key=key)) for one in tables], found, notes


def _class_indices(table: Table, class_names: tuple[str, ...], *, key: str) -> np.ndarray:
    known, codes = texts.coded(table.y)
    positions = table.y.dtype.kind != "U" and not all(name.lstrip("-").isdecimal() for name in class_names)
    code_of = {str(code) if positions else name: code for code, name in enumerate(class_names)}
    for code, name in enumerate(known):
        if name not in code_of:
            row = int(np.argmax(codes == code))
            raise BadData(
                f"{table.where} has the label {name!r} in row {row}, which {key} does not declare: correct it or declare it.",
                cell=name,
            )
    return np.array([code_of[name] for name in known], np.int64)[codes]


# Arrays, tensors, lists, or a pair for each client: what a program hands over, and what an .npz file holds. Everything is copied.


def table(
    x: Any,
    y: Any,
    clients: Any = None,
    *,
    words: tuple[str, str, str] = ("x", "y", "clients"),
    numeric: bool = False,
    divide_by: float = 1.0,
    tokens: bool = False,
) -> Table:
    """One table, of rows with their labels (`numeric`: numbers), or of a pair for each client. Raises BadInput, BadData.
    `clients` names the client of each row, or of each pair; `words` are what each is called where something is wrong. With
    `tokens` whole numbers stay such, and targets are taken as they are."""
    if isinstance(x, Table):
        return x
    if y is None:
        return _pairs(x, clients, numeric=numeric)
    x, y = _array(x, where=words[0]), _array(y, where=words[1])
    owners = None
    if clients is not None:
        whose = _labels(_array(clients, where=words[2]), where=words[2], rows=len(x) if x.ndim else 0)
        owners = texts.merged([texts.coded(whose)])
    rows = _features(x, owners, where=words[0], divide_by=divide_by, tokens=tokens)
    if not tokens:
        y = (_numbers if numeric else _labels)(y, where=words[1], rows=len(rows))
    return Table(rows, y, owners, where=words[1])


GAPS = texts.MISSING | {"None", "<NA>"}  # whoever is not known is many persons, and would become one
LEARNED = "{} names a column that is a feature, the label or the client: ids would be learned, so give it one role."
FLOAT_IDS = "a float cannot tell long ids apart, and two persons would become one: write texts or whole numbers"


def tags_of(x: Any, y: Any, persons: Any) -> np.ndarray:
    """The persons of all rows: of one array, or where `x` has a pair for each client of an array for each. Raises BadInput,
    BadData."""
    if y is not None:
        return tags_in(persons, where="persons")
    if isinstance(x, Table):
        raise BadInput("Rows that stay in a file lie client by client, and have no persons: leave out persons=.")
    if isinstance(x, Mapping) and isinstance(persons, Mapping) and set(persons) == set(x):
        persons = [persons[name] for name in x]
    if not isinstance(persons, list | tuple) or len(persons) != len(x):
        raise BadInput(f"Expected persons to be {len(x)} arrays of ids, one for each client as in x.")
    return np.concatenate([tags_in(one, where="persons") for one in persons])


def tags_in(values: Any, *, where: str) -> np.ndarray:
    """The hash of each id in a column. Raises: BadData for an id that is missing, or is a float."""
    found = _array(values, where=where)
    if found.ndim != 1:
        raise BadData(f"Expected {where} to be one id per row, got {found.dtype} of shape {list(found.shape)}.")
    ids = list[str]()
    for row, value in enumerate(found.tolist()):
        said = str(value).strip()  # of a column that was made texts before, a gap is "nan"
        if value is None or said in GAPS or (isinstance(value, float) and math.isnan(value)):
            raise BadData(f"Row {row} of {where} names no person (rows count from 0): every row needs an id.")
        if isinstance(value, bool) or not isinstance(value, str | int):
            wrong = FLOAT_IDS if isinstance(value, float) else "expected a text or a whole number"
            raise BadData(f"Row {row} of {where} has the id {value!r} (rows count from 0): {wrong}.", cell=str(value))
        ids.append(said)
    return person_tags(ids)


def test_table(test: Any, *, numeric: bool) -> Table:
    if not isinstance(test, Sequence) or isinstance(test, str) or len(test) != 2:
        raise BadInput(
            f"Expected test to be a pair (x, y) of public rows and their labels, got a {type(test).__name__}."
        )
    return table(*test, words=("x of test", "the y of test", ""), numeric=numeric)


def _array(value: Any, *, where: str) -> np.ndarray:
    if hasattr(value, "iloc") and getattr(value, "ndim", 1) != 1:
        raise BadData(f"{where} is a DataFrame: tacit.Dataset.from_pandas(df, label=...) takes it with its columns.")
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise BadData(f"{where} is a sparse tensor: call to_dense() on it.")
        value = value.detach().cpu()
        return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise BadData(f"{where} cannot be made an array ({why}): every row needs the same shape.") from None


def _features(x: np.ndarray, owners: texts.Coded | None, *, where: str, divide_by: float, tokens: bool) -> torch.Tensor:
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise BadData(f"Expected {where} to be numbers of shape [rows, ...], got {x.dtype} of shape {list(x.shape)}.")
    if not len(x):
        raise BadData(f"{where} has no rows: pass some, or leave it out.")
    if tokens and x.dtype.kind in "iu":
        return torch.from_numpy(x.astype(np.int64))
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite and is refused below, by its row
        out = torch.from_numpy(x.astype(np.float32))
    out = out if divide_by == 1 else out / divide_by
    called, client = owners or (None, None)
    refuse_not_finite(out, where=where, client=client, names=called)
    return out


def _numbers(y: np.ndarray, *, where: str, rows: int) -> np.ndarray:
    """Targets as float32, one or a row of them for each example; Dataset refuses what is not finite."""
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or len(y) != rows:
        raise BadData(
            f"Expected {where} to be {rows} numbers or rows of numbers, got {y.dtype} of shape {list(y.shape)}."
        )
    with np.errstate(over="ignore"):
        return y.astype(np.float32)


def _labels(values: np.ndarray, *, where: str, rows: int) -> np.ndarray:
    """Labels, or the names of clients: a vector of integers or texts, one for each row; a float may be whole."""
    kind = values.dtype.kind
    if kind not in "iubfUO" or values.shape != (rows,):
        found = f"{values.dtype} of shape {list(values.shape)}"
        raise BadData(f"Expected {where} to be {rows} integers or texts, got {found}.")
    for row, value in enumerate(values.tolist()) if kind in "fO" else ():
        if not (value.is_integer() if kind == "f" else isinstance(value, str | int | np.integer) and value != ""):
            raise BadData(
                f"Row {row} of {where} says {value!r} (rows count from 0): expected a text or an integer in every row.",
                cell=str(value),
            )
    if kind == "O":
        return np.array([str(value) for value in values], dtype=str)
    return values.astype(np.int64) if kind in "bf" else values


def _pairs(parts: Any, given: Any, *, numeric: bool) -> Table:
    if isinstance(parts, Mapping):
        if given is not None:
            raise BadInput("The clients have their names in the dict already: leave out clients=.")
        given, parts = list(parts), list(parts.values())
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise BadInput(f"{PAIRS}; got a {type(parts).__name__} alone.")
    if not parts:
        raise BadInput(f"{PAIRS}; got no clients.")
    called = distinct(given, count=len(parts))
    tables = list[Table]()
    for name, pair in zip(called, parts, strict=True):
        tables.append(rows_of_client(pair, name, tables[0] if tables else None, called[0], numeric=numeric))
    x, y = torch.cat([one.x for one in tables]), np.concatenate([one.y for one in tables])
    return Table(x, y, owned(called, [len(one.y) for one in tables]), where="y")


def owned(called: tuple[str, ...], sizes: Sequence[int]) -> texts.Coded:
    """Whose each row is, where rows lie client by client."""
    return called, np.repeat(np.arange(len(called), dtype=np.int32), sizes)


def rows_of_client(pair: Any, name: str, first: Table | None, other: str, *, numeric: bool = False) -> Table:
    """The rows and labels of one client, like those of the first, which is called `other`. Raises BadInput, BadData."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise BadInput(f"{PAIRS}; what stands for client {name!r} is a {type(pair).__name__}.")
    now = table(*pair, words=(f"x of client {name!r}", f"y of client {name!r}", ""), numeric=numeric)
    for what, theirs, its in zip(KINDS, _kinds(first or now), _kinds(now), strict=True):
        if theirs != its:
            raise BadData(f"Client {other!r} has {what} {theirs} and client {name!r} {its}: all need the same.")
    return now


def _kinds(rows: Table) -> tuple[Any, ...]:
    return list(rows.x.shape[1:]), list(rows.y.shape[1:]), "texts" if rows.y.dtype.kind == "U" else "numbers"


def distinct(given: Any, *, count: int) -> tuple[str, ...]:
    """The names of so many clients. Raises BadInput where one is missing or stands for two."""
    if given is None:
        return tuple(f"client-{index}" for index in range(count))
    called = tuple(str(name) for name in given)
    if len(called) != count or len(set(called)) < count:
        raise BadInput(f"Expected clients to be {count} different names, one for each pair, got {list(called)[:20]}.")
    return called
