"""`digits`: optical digits, 8 x 8 (Alpaydin and Kaynak 1998), as they come with scikit-learn: no file, no download.

The last fifth after one fixed shuffle is the test set, so runs with different seeds are tested on the same rows.
"""

import gzip
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.random import seeded

LARGEST = 16  # every pixel counts the ink in a 4 x 4 block
TEST_SHARE = 0.2
SPLIT_SEED = 0  # public and fixed: part of the data set, not of the run


@dataclass(frozen=True)
class digits:
    """The digits; there is nothing to choose."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads them as [n, 1, 8, 8] in [0, 1]; the test rows are the same for every seed."""
        return read()


def read() -> Dataset:
    """The digits as [n, 1, 8, 8] in [0, 1]."""
    images, labels = _rows()
    order = np.argsort(seeded(SPLIT_SEED)("digits", "test").uniform(len(labels)))
    x = torch.from_numpy((images[order] / LARGEST).astype(np.float32)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order].astype(np.int64))
    train = len(y) - int(TEST_SHARE * len(y))
    return Dataset(
        name="digits",
        x=x[:train],
        y=y[:train],
        test_x=x[train:],
        test_y=y[train:],
        class_names=tuple("0123456789"),
    )


def _rows() -> tuple[np.ndarray, np.ndarray]:
    """What `sklearn.datasets.load_digits` returns, from its file: to import scikit-learn takes a second and 20 MB."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise BadData("The digits come with scikit-learn, which is not installed: pip install scikit-learn")
    table = _table(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz")
    return table[:, :-1], table[:, -1].astype(int)


@lru_cache(maxsize=1)
def _table(path: Path) -> np.ndarray:
    """The numbers of a file that nobody changes; they are 1 MB, and to parse them takes longer than a small round."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    table.setflags(write=False)
    return table
