"""The clients of a deployment by name, size and budget: all that anybody but the site itself knows of them."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from tacit.population import Population
from tacit.types import Unit


@dataclass(frozen=True)
class Roster:
    """Names, sizes and epsilons in one order: the place in it is the client's index.

    >>> Roster(("a", "b"), (3, 4), (1.0, 2.0), delta=1e-5).population((2,))[1].size
    4
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    unit: Unit = "record"

    def population(self, shape: tuple[int, ...]) -> Population:
        """Clients without their rows: one zero stands for all of them, so sizes are right and nothing is held."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        rows = int(offsets[-1])
        x = torch.zeros((1,) * (len(shape) + 1)).expand(rows, *shape)
        y = torch.zeros(1, dtype=torch.int64).expand(rows)
        return Population(x, y, offsets, self.names, np.array(self.epsilons), self.delta, self.unit)

    def record(self) -> dict[str, Any]:
        """Plain values for the wire and for the disk."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Roster":
        """The roster that `record` described."""
        names, sizes = tuple(map(str, record["names"])), tuple(map(int, record["sizes"]))
        return cls(names, sizes, tuple(map(float, record["epsilons"])), float(record["delta"]), record["unit"])
