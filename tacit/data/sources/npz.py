"""`npz`: arrays from one .npz file: x [n, ...] and y [n], and where they exist client [n], x_test and y_test.

Pickled objects are never loaded. Labels are texts or integers; integers are class names where every declared class is
an integer, else positions in the declared list.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from tacit import check
from tacit.data import names
from tacit.data.dataset import Dataset, reading
from tacit.data.handed import class_indices, client_codes, features, numbers, one_label_each
from tacit.data.held_out import Rows, dataset
from tacit.errors import BadData, BadInput

ARRAYS = ("x", "y", "client", "x_test", "y_test")
TOKENS = 2  # dimensions of rows of token numbers
BROKEN = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True)
class npz:
    """How an .npz file is read.

    `classes` are the labels as a list, a number c for 0..c-1 (also of rows of tokens), "from-data", or "numbers" where y are
    numbers, or rows of 0 and 1 for several labels. x is divided by the public constant `divide_by`. Without test rows
    about `test_share` of the rows is held out, by a coin for each that is keyed by the run's seed. `shape` is that of one row of x,
    `label_shape` that of one of y; other rows are refused, and who has no rows knows by it what they look like.
    """

    path: str | None = None  # the .npz file
    classes: names.Classes | None = None  # the labels as a list, a number c for 0..c-1, "from-data", or "numbers"
    test_path: str | None = None  # an .npz file of public test rows; nothing: x_test and y_test, else `test_share`
    test_share: float = 0.2  # of the rows, held out by a coin for each where there are no test rows; 0: none
    divide_by: float = 1.0  # the public constant that x is divided by
    shape: tuple[int, ...] | None = None  # of one row of x; other rows are refused
    label_shape: tuple[int, ...] = ()  # of one row of y: of numbers, of 0 and 1, or of tokens

    def __post_init__(self) -> None:
        names.refuse_undeclared("npz", self.path, self.classes)
        if self.test_share != 0:  # 0: nobody's rows are made public
            check.probability(**{"data.test_share": self.test_share})
        check.positive(**{"data.divide_by": self.divide_by})
        for key, sides in (("shape", self.shape or ()), ("label_shape", self.label_shape)):
            for side in sides:
                check.at_least(1, **{f"data.{key}": side})
        if self.shape is None and self.label_shape:
            raise BadInput("data.label_shape is for rows of y beside those of x: set data.shape too.")

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads the arrays. Raises BadData naming the file and array, and the client and row of NaN or infinity."""
        return rows_of(self, seed=seed)


def rows_of(source: npz, *, seed: int) -> Dataset:
    """The file's rows as a data set. Raises BadData."""
    path = str(source.path)
    arrays = read(path)
    clients = (
        client_codes(arrays["client"], where=f"client of {path}", rows=len(arrays["y"])) if "client" in arrays else None
    )
    vocabulary = source.classes if isinstance(source.classes, int) and arrays["y"].ndim == TOKENS else 0
    how: dict[str, Any] = {"divide_by": source.divide_by, "tokens": vocabulary > 0}
    _refuse_other_shapes(arrays, source)
    x = features(arrays.pop("x"), where=f"x of {path}", clients=clients, **how)
    test_path, tests = _tests(arrays, source)
    targets = [(arrays["y"], f"y of {path}", len(x))]
    targets += [(tests[1], f"the test labels of {test_path}", len(tests[0]))] if tests else []
    if source.classes == names.NUMBERS:
        codes, class_names, notes = [numbers(y, where=where, rows=rows) for y, where, rows in targets], (), []
    elif vocabulary:
        codes, class_names, notes = [y for y, _, _ in targets], tuple(map(str, range(vocabulary))), []
    else:
        labels = [one_label_each(y, where=where, rows=rows) for y, where, rows in targets]
        class_names, notes = names.classes(source.classes, [names.coded(part) for part in labels])
        codes = [
            class_indices(part, class_names, where=file, key="data.classes")
            for part, file in zip(labels, (path, test_path), strict=False)
        ]
    test_x = features(tests[0], where=f"the test rows of {test_path}", **how) if tests else None
    return dataset(
        source,
        Rows(x=x, y=codes[0], clients=clients),
        None if test_x is None else Rows(x=test_x, y=codes[1]),
        class_names=class_names,
        seed=seed,
        notes=notes,
        encoder=reading(x, torch.from_numpy(codes[0]), class_names, divide_by=source.divide_by),
    )


def _refuse_other_shapes(arrays: dict[str, np.ndarray], source: npz) -> None:
    """Refuses rows of another shape than the declared one. Raises BadData."""
    for name, wanted in (("x", source.shape), ("y", source.label_shape)) if source.shape is not None else ():
        if arrays[name].shape[1:] != wanted:
            found, key = list(arrays[name].shape[1:]), "data.shape" if name == "x" else "data.label_shape"
            raise BadData(f"{name} of {source.path} has rows of shape {found}, and {key} says {list(wanted or ())}.")


def read(path: str, *, key: str = "data.path") -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which `key` names. Raises: BadData if it is no such file, or holds other arrays than these."""
    if not Path(path).expanduser().is_file():
        raise BadData(f"{path} does not exist: correct {key}.")
    try:
        with Path(path).expanduser().open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (*BROKEN, AttributeError, TypeError) as error:
        raise BadData(
            f"{path} cannot be read as an .npz file of plain arrays ({error}): save it with numpy.savez."
        ) from error
    for name in arrays:
        check.one_of(ARRAYS, **{f"the arrays of {path}": name})
    if absent := {"x", "y"}.difference(arrays):
        raise BadData(f"{path} lacks the array {' and '.join(sorted(absent))}: it holds {', '.join(arrays) or 'none'}.")
    return arrays


def _tests(arrays: dict[str, np.ndarray], source: npz) -> tuple[str, tuple[np.ndarray, np.ndarray] | None]:
    """The test arrays and the file they come from."""
    inside = [name for name in ("x_test", "y_test") if name in arrays]
    if source.test_path is not None:
        if inside:
            raise BadData(f"{source.path} holds {' and '.join(inside)}, so data.test_path must go: choose one of them.")
        other = read(source.test_path, key="data.test_path")
        return source.test_path, (other["x"], other["y"])
    if len(inside) == 1:
        raise BadData(f"{source.path} holds {inside[0]} alone: expected x_test and y_test together.")
    return str(source.path), (arrays["x_test"], arrays["y_test"]) if inside else None
