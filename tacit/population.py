"""All clients of a federation in columns: 100,000 of them cost a few megabytes beyond their data.

Rows are laid out client by client, so a client's data is a slice of two tensors and building a `Client` copies nothing.
"""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tacit.data.dataset import Dataset
from tacit.data.shares import Shares
from tacit.types import Budget, Client, Unit


@dataclass(frozen=True, eq=False)
class Population:
    """Clients by index. `epsilons` may hold infinity for a client that said it sets no limit."""

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    epsilons: np.ndarray = field(repr=False)
    delta: float
    unit: Unit

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Client:
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        budget = Budget(float(self.epsilons[index]), self.delta, self.unit)
        return Client(index, self.names[index], budget, self.x[start:stop], self.y[start:stop])

    @property
    def sizes(self) -> np.ndarray:
        """The number of records of each client."""
        return np.diff(self.offsets)

    def to(self, device: torch.device) -> "Population":
        """The same clients with their rows on a device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def digest(self) -> str:
        """A hash of every row, label and boundary: what a repeated release must have in common with the first."""
        mark = hashlib.blake2b(digest_size=16)
        for part in (self.x.cpu().numpy(), self.y.cpu().numpy(), self.offsets):
            mark.update(repr((part.shape, str(part.dtype))).encode())
            mark.update(np.ascontiguousarray(part).data)
        return mark.hexdigest()


def populate(
    dataset: Dataset,
    shares: Shares,
    *,
    names: tuple[str, ...],
    epsilons: np.ndarray,
    delta: float,
    unit: Unit = "record",
) -> Population:
    """Lays the rows out client by client."""
    order = torch.from_numpy(shares.order)
    return Population(dataset.x[order], dataset.y[order], shares.offsets, names, epsilons, delta, unit)
