"""A data set in memory, checked once, whatever file it came from."""

import copy
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.data.encoder import Encoder
from tacit.errors import BadData

IGNORED = -100  # torch's word for a target that counts nothing
PART = 1 << 14  # rows looked at together


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows (perhaps none), with the client each training row belongs to where the source names clients.

    `y` holds classes (whole numbers) or numbers (floats), one or a row of them per example.

    Guarantee: every feature is finite, every class is in 0..classes-1, every number finite, and rows, targets and clients have
    equal lengths.
    Raises: BadData.

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
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = field(
        default=None, repr=False
    )  # how raw rows became these; None: they are taken as they are
    unprotected: int = 0  # how many test rows are the clients' own, held out of training: no epsilon is about these
    mapped: bool = False  # the training rows lie in a file, client by client, and are not copied into memory

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or (not len(x) and part == "training"):
                raise BadData(
                    f"Expected {self.name} to hold {part} rows with one label each, got {len(x)} and {len(y)}."
                )
            self._refuse_targets(part, y)
        if self.x.shape[1:] != self.test_x.shape[1:]:
            shapes = f"{list(self.x.shape[1:])} and {list(self.test_x.shape[1:])}"
            raise BadData(f"Expected training and test rows of {self.name} to have one shape, got {shapes}.")
        if self.client is not None and len(self.client) != len(self.y):
            raise BadData(f"Expected one client per row of {self.name}, got {len(self.client)} for {len(self.y)}.")
        refuse_not_finite(self.x, where=f"{self.name} training data", client=self.client, names=self.client_names)
        refuse_not_finite(self.test_x, where=f"{self.name} test data")

        if self.y.shape[1:] != self.test_y.shape[1:] or self.y.dtype != self.test_y.dtype:
            raise BadData(f"Expected training and test targets of {self.name} to be of one kind and shape.")

    def _refuse_targets(self, part: str, y: torch.Tensor) -> None:
        if y.is_floating_point():
            refuse_not_finite(y.reshape(len(y), y.shape[1:].numel()), where=f"the targets of {self.name}'s {part} data")
            return
        low = IGNORED if y.dim() > 1 else 0  # rows of tokens are filled up with what counts nothing
        odd = (y < 0) & (y != low) | (y >= self.classes)
        if odd.any():
            raise BadData(
                f"Expected every {part} label of {self.name} in 0..{self.classes - 1}, got {int(y[odd].max())}."
            )

    def noting(self, *words: str) -> "Dataset":
        """The same rows with more notes. The rows are not looked at again: they were when they came.

        >>> rows = Dataset("t", torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, 1), torch.zeros(2), ())
        >>> rows.noting() is rows, rows.noting("a", "b").notes
        (True, ('a', 'b'))
        """
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
    def classified(self) -> bool:
        """Whether each row has one class."""
        return self.y.dim() == 1 and not self.y.is_floating_point()

    @property
    def targets(self) -> str:
        """What the targets are, in a few words.

        >>> Dataset("t", torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, 1), torch.zeros(2), ()).targets
        'numbers'
        """
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
