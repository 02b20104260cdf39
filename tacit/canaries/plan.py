"""Who has which canaries, where each is, and which of them take part."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tacit.build.parts import Parts
from tacit.digest import mark
from tacit.errors import BadInput
from tacit.random import keyed

SIGHT = "canaries"  # the key of what the researcher is told of them, by a client's training or a server's round
KNOWN = 4096  # clients whose canaries are held


@dataclass(frozen=True)
class Canaries:
    """`count` canaries of `clients` clients in a model of `size` parameters. All else follows from the key.

    Each is a coordinate of its own: in the vector that its client releases, or, where the clients' are summed (`shared`), in the
    sum.

    >>> canaries = Canaries(b"secret", count=5, clients=2, size=10)
    >>> canaries.of(0), canaries.of(1), len(set(canaries.places(0).tolist()))
    (range(0, 3), range(3, 5), 3)
    """

    key: bytes
    count: int
    clients: int
    size: int
    shared: bool = False
    only: int | None = None  # whose all of them are, where a site audits itself

    @cached_property
    def commitment(self) -> str:
        """A hash of the key and of all coins: whoever has it can check them later, and learns nothing before."""
        sizes = repr((self.count, self.clients, self.size, self.shared, self.only))
        return mark("canaries", self.key, sizes, *(np.packbits(self.coins(k)).tobytes() for k in self.owners))

    @property
    def most(self) -> int:
        """How many would fit."""
        return self.size if self.only is not None else most_canaries(self.size, self.clients, shared=self.shared)

    @property
    def owners(self) -> Sequence[int]:
        """The clients who have some."""
        return range(min(self.clients, self.count)) if self.only is None else (self.only,)

    def of(self, client: int) -> range:
        """The numbers of a client's canaries: as even as can be."""
        if self.only is not None:
            return range(self.count if client == self.only else 0)
        each, more = divmod(self.count, self.clients)
        first = client * each + min(client, more)
        return range(first, first + each + (client < more))

    @lru_cache(maxsize=KNOWN)  # noqa: B019 - there is one of them in a run
    def places(self, client: int) -> np.ndarray:
        """The coordinate of each of a client's canaries."""
        mine = self.of(client)
        if self.shared:
            return self._order[mine.start : mine.stop]
        return keyed(self.key)("places", client).generator().permutation(self.size)[: len(mine)]

    @lru_cache(maxsize=KNOWN)  # noqa: B019
    def coins(self, client: int) -> np.ndarray:
        """Which of them take part: a fair coin each, the same in every round."""
        return (keyed(self.key)("coins", client).words(len(self.of(client))) & 1).astype(bool)

    @cached_property
    def _order(self) -> np.ndarray:
        return keyed(self.key)("places").generator().permutation(self.size)


def sizes_of(parts: Parts) -> tuple[int, int, int, bool]:
    """What `Canaries` are made of beside their key.

    Raises: BadInput for more than there are coordinates, with the number that fits.
    """
    count, size, everybody = parts.experiment.audit.canaries or 0, parts.params.numel(), len(parts.population)
    shared = parts.plan.summed
    refuse_more(count, everybody, size, shared=shared)
    return count, everybody, size, shared


def most_canaries(size: int, everybody: int, *, shared: bool) -> int:
    """How many fit: each needs a coordinate of its own, in the sum over clients where they are summed.

    >>> most_canaries(18, 3, shared=False), most_canaries(18, 3, shared=True)
    (54, 18)
    """
    return size if shared else size * everybody


def refuse_more(count: int, everybody: int, size: int, *, shared: bool) -> None:
    """Raises BadInput for more canaries than there are coordinates, with the number that fits."""
    most = most_canaries(size, everybody, shared=shared)
    if count > most:
        where = "the sum over clients has" if shared else f"the updates of {everybody} clients have together"
        raise BadInput(
            f"Expected audit.canaries <= {most}, got {count}: each needs a coordinate of its own, and {where} so many."
        )
