"""`pfa`: Projected Federated Averaging (Liu, Lou, Xiong, Liu, Meng, PVLDB 15(4), 2021), Algorithm 3.

Clients with a large epsilon are "public", the others "private". The private mean is projected onto the top-k subspace
of the public updates, then both means are averaged by their epsilons. Two readings, because the paper and its released
code differ: `paper` takes the outer product of the public *mean* (rank one, no centring, whole vector, split per round
by a mixture); `code` takes the public updates centred by their mean, per layer, split once by the top 10 % of all
clients.

Sees: rows of the public clients and the sum of the private ones (projection is linear); in the paper's reading sums of
both. A round without a public client cannot project and leaves the model as it is. One public client is not centred. k
above the rank of the public updates adds nothing.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from tacit import check
from tacit.algorithms.rules import Applied, Crowd, Layout, Memory, Rule, Sum, weighted_sum
from tacit.algorithms.rules._ceiling import refuse_unlimited
from tacit.algorithms.rules._split import threshold
from tacit.algorithms.rules._subspace import Subspace, subspace
from tacit.errors import BadInput
from tacit.types import Message

DEFAULTS = {"paper": {"blocks": "model", "split": "gmm"}, "code": {"blocks": "layer", "split": "top"}}


@dataclass(frozen=True)
class pfa(Rule):
    """PFA. `blocks` and `split` follow the reading unless they are named.

    `rank` is k, the directions of a block; `share` is how many clients `top` makes public; `weights` says by what clients are
    averaged. `sees` is "sums" in the paper's reading and "rows" in the code's.

    Assumes: epsilons are stated truthfully. A client that states a large one is public and shapes the subspace, and counts for at
    most `aggregate.most_share` of the weight.

    Raises: BadInput for an unknown reading, a rank below 1, or a share outside (0, 1).
    """

    reading: Literal["paper", "code"] = "code"  # the paper's algorithm, or that of its released code
    rank: int = 1  # k, the directions of a block that private updates are projected on
    blocks: Literal["model", "layer"] | None = None  # what is projected as one; nothing: as the reading has it
    split: Literal["gmm", "kmeans", "top"] | None = None  # into public and private clients; nothing: by the reading
    share: float = 0.1  # of the clients that `top` makes public
    weights: Literal["epsilon", "examples"] = "epsilon"  # by what clients are averaged

    def __post_init__(self) -> None:
        check.one_of(DEFAULTS, **{"aggregate.reading": self.reading})
        check.at_least(1, **{"aggregate.rank": self.rank})
        check.probability(**{"aggregate.share": self.share})
        for key, value in DEFAULTS[self.reading].items():
            object.__setattr__(self, key, getattr(self, key) or value)
        if type(self) is pfa and self.reading == "paper":  # the outer product of the public mean needs no rows
            object.__setattr__(self, "sees", "sums")

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        """The blocks of the model; in the code's reading also the threshold, once, over all clients.

        Raises: BadInput for an infinite epsilon, where clients are weighed by it.
        """
        if self.weights == "epsilon":
            refuse_unlimited(crowd)
        memory = {"layout": torch.tensor([layout[0][0], *(stop for _, stop in layout)])}
        if self.reading == "code":  # split once, over all clients
            memory["threshold"] = torch.tensor(
                threshold(crowd.epsilons, how=str(self.split), share=self.share), dtype=torch.float64
            )
        return memory

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        """The epsilon from which a client is public: the run's, or in the paper's reading that of the round's cohort."""
        cut = (
            float(memory["threshold"])
            if "threshold" in memory
            else threshold(epsilons, how=str(self.split), share=self.share)
        )
        return Message("server", {}, {"threshold": cut})

    def refuse(self, received: Message, *, size: int) -> None:
        """Raises: BadInput without a threshold that is a number."""
        if type(received.facts.get("threshold")) not in (int, float):
            raise BadInput("The rule pfa needs to be told the threshold, a number.")

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], received: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The whole update, and which group the client is in: it compares its own epsilon with the threshold."""
        return {"update": update}, {"group": "public" if facts["epsilon"] >= received.facts["threshold"] else "private"}

    def start(self) -> "Divided":
        """Two heaps: public updates one by one, and the sum of the private ones."""
        return Divided()

    def add(self, gathered: "Divided", message: Message) -> None:
        """Keeps a public update, adds a private one."""
        gathered.add(self.weight(message.facts), message)

    def apply(self, memory: Memory, gathered: "Divided") -> Applied:
        """Lines 6-8 of Algorithm 3. Without a public client the update is zero, without a private one the public mean.

        Raises: BadInput where nothing was gathered.
        """
        public, private = gathered.public, gathered.private_mean()
        if not public.rows and private is not None:
            return Applied(torch.zeros_like(private[1]), memory, public.info(0))
        if private is None:
            total, weight = weighted_sum(public.pairs())
            return Applied(total / weight, memory, public.info(0))
        spaces = self.spaces(memory, public.rows, public.weights)
        for space, block in zip(spaces, self.parts(memory, private[1]), strict=True):
            block.copy_(space.point(space.coordinates(block)))  # in place: the private mean is not needed again
        return Applied(combine(public, private), memory, public.info(self.largest_rank(spaces)))

    def weight(self, facts: dict[str, Any]) -> float:
        """Epsilon, or the number of examples."""
        return float(facts[self.weights])

    def parts(self, memory: Memory, vector: torch.Tensor) -> list[torch.Tensor]:
        """The blocks of a vector, as views: every parameter by itself, or the whole model."""
        return [vector[start:stop] for start, stop in pairwise(self.marks(memory))]

    def marks(self, memory: Memory) -> list[int]:
        """Where the blocks begin, and where the last one ends."""
        marks = memory["layout"].tolist()
        return marks if self.blocks == "layer" else [marks[0], marks[-1]]

    def spaces(self, memory: Memory, rows: list[torch.Tensor], weights: list[float]) -> list[Subspace]:
        """Line 6: the top-k subspace of the public updates, block by block. A single row is not centred."""
        if self.reading == "paper":
            total, weight = weighted_sum(zip(weights, rows, strict=True))
            rows = [total / weight]
        blocks = zip(*(self.parts(memory, row) for row in rows), strict=True)
        return [subspace(block, rank=self.rank, centred=len(rows) > 1) for block in blocks]

    def largest_rank(self, spaces: list[Subspace]) -> int:
        """The largest rank among the blocks: at most `rank`, less where the public updates have less."""
        return max(space.mix.shape[1] for space in spaces)


@dataclass(frozen=True)
class Public:
    """The public updates of a round and their weights."""

    rows: list[torch.Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def pairs(self) -> list[tuple[float, torch.Tensor]]:
        """Weight and update of every public client."""
        return list(zip(self.weights, self.rows, strict=True))

    def info(self, rank: int) -> dict[str, int]:
        """What the reader is shown: how many clients were public, and how many directions were used."""
        return {"public": len(self.rows), "rank": rank}


@dataclass(frozen=True)
class Divided:
    """The public updates of a round one by one, and the sum of the private ones, which are added as they arrive."""

    public: Public = field(default_factory=Public)
    private: Sum = field(default_factory=Sum)

    def add(self, weight: float, message: Message) -> None:
        """Takes one message by its group. Whoever states none is private."""
        if message.facts.get("group") == "public":
            self.public.rows.append(message.tensors["update"])
            self.public.weights.append(weight)
        else:
            (sent,) = message.tensors.values()  # an update, or its coordinates
            self.private.add(weight, sent)

    def private_mean(self) -> tuple[float, torch.Tensor] | None:
        """(weight, mean) of the private updates, or None without any. It takes the place of their sum: ask once."""
        private = self.private
        return (private.weight, private.total.div_(private.weight)) if private.clients else None


def combine(public: Public, private: tuple[float, torch.Tensor]) -> torch.Tensor:
    """Line 8: (sum of epsilons * public mean + sum of epsilons * projected private mean) / all epsilons.

    `private` is (weight, projected mean), and counts as one more public client of that weight.
    """
    total, weight = weighted_sum([*public.pairs(), private])
    return total.div_(weight)
