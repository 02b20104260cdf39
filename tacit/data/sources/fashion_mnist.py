"""`fashion-mnist`: Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747), from files as MNIST has them."""

from dataclasses import dataclass

from rich.progress import Progress

from tacit.data.dataset import Dataset
from tacit.data.sources.mnist import read


@dataclass(frozen=True)
class fashion_mnist:
    """Fashion-MNIST. `path` is its folder; None looks in $TACIT_DATA and the cache, and downloads it."""

    path: str | None = None  # its folder; nothing: $TACIT_DATA and the cache are searched, else it is downloaded

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 1, 28, 28] in [0, 1]. Raises BadData."""
        return read("fashion-mnist", path=self.path, progress=progress)
