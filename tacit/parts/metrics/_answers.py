"""What a metric is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model answered to the test rows: targets, and predictions as the task reads them, one row per answer.

    A test row has one answer, or, of tokens, one per position: `row` says then which test row each answer is of. Targets of -100
    (`ignored`) count nothing; they and their predictions are left out.
    """

    kind: str
    targets: np.ndarray = field(repr=False)
    predictions: np.ndarray = field(repr=False)
    class_names: tuple[str, ...] = ()
    row: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def test_rows(self) -> int:
        """How many test rows were answered."""
        return len(self.targets) if self.row is None else int(self.row.max(initial=-1)) + 1

    def rows(self, index: np.ndarray) -> "Answers":
        """The answers of some test rows, perhaps more than once."""
        if self.row is not None:
            index = np.concatenate([np.flatnonzero(self.row == one) for one in index])
        return replace(self, targets=self.targets[index], predictions=self.predictions[index], row=None)

    @property
    def labels(self) -> np.ndarray:
        """The class, or each label, that is predicted."""
        if self.kind == "multilabel":
            return (self.predictions > 0.5).astype(int)
        return self.predictions.argmax(-1)

    @property
    def classes(self) -> Sequence[int]:
        """Every class by its number, whether test rows have it or not."""
        return range(self.predictions.shape[-1])
