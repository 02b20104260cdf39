"""The clients of a deployment by name, size and budget: all that anybody but the site itself knows of them."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from tacit import parse
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.types import Unit

MOST_SITES = 100_000
MOST_ROWS = 10**9  # of one site


@dataclass(frozen=True)
class Roster:
    """Names, sizes and epsilons in one order: the position in it is the client's index. One delta and one unit hold for all.

    All of it is public among the server and the sites: noise, weights and prices are computed from it everywhere.

    >>> Roster(("a", "b"), (3, 4), (1.0, 2.0), delta=1e-5).population((2,))[1].size
    4
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    unit: Unit = "record"

    def population(self, shape: tuple[int, ...]) -> Population:
        """Clients without their rows: one zero stands for all of them, so sizes are right and no memory is taken.

        `shape` is that of one row.
        """
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        rows = int(offsets[-1])
        x = torch.zeros((1,) * (len(shape) + 1)).expand(rows, *shape)
        y = torch.zeros(1, dtype=torch.int64).expand(rows)
        return Population(x, y, offsets, self.names, np.array(self.epsilons), self.delta, self.unit)

    def record(self) -> dict[str, Any]:
        """Plain values for the wire and for the disk, which `of` reads back.

        >>> one = Roster(("a",), (3,), (1.0,), delta=1e-5)
        >>> Roster.of(one.record()) == one
        True
        """
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of(cls, record: object) -> "Roster":
        """The roster that `record` described; it comes from outside.

        Guarantee: at least one site and at most `MOST_SITES`, each named once by a printable text, with a size from 1 to
        `MOST_ROWS` and an epsilon above zero (infinity is one); delta is between 0 and 1, and the unit one of the two.

        Raises: BadInput for anything else.
        """
        parts = parse.fields(record, "names", "sizes", "epsilons", "delta", "unit", what="The list of sites")
        lists = [parse.several(part, what="A column of the list of sites", most=MOST_SITES) for part in parts[:3]]
        if not lists[0] or len({len(column) for column in lists}) > 1:
            raise BadInput("The list of sites is empty, or does not have one size and one epsilon for each name.")
        names = tuple(parse.text(name, what="A site's name") for name in lists[0])
        if len(set(names)) < len(names):
            raise BadInput("The list of sites names one of them twice.")
        sizes = tuple(parse.whole(size, what="A site's size", least=1, most=MOST_ROWS) for size in lists[1])
        epsilons = tuple(parse.number(value, what="A site's epsilon", infinite=True) for value in lists[2])
        delta, unit = parse.number(parts[3], what="The list's delta"), parts[4]
        if unit not in ("record", "client") or delta >= 1:
            raise BadInput("The list of sites has no unit (record or client), or a delta that is not below 1.")
        return cls(names, sizes, epsilons, delta, unit)

    def digest(self) -> str:
        """The SHA-256 of every name, size and epsilon, of delta and unit; the order of the sites counts."""
        return hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()
