"""`pfa`: Projected Federated Averaging (Liu, Lou, Xiong, Liu, Meng, PVLDB 15(4), 2021), Algorithm 3: clients with a large
epsilon are "public", the private mean is projected onto the top-k subspace of the public updates, both means are averaged by
epsilon. Two readings, because the paper and its released code differ: `paper` takes the outer product of the public *mean*
(rank one, no centring, whole vector, split per round by a mixture); `code` takes the public updates centred by their mean, per
layer, split once by the top 10 % of all clients. Sees: rows of the public clients and the sum of the private ones (projection
is linear); in the paper's reading sums of both."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from tacit import check
from tacit.algorithms import Applied, Layout, Memory, PopulationStatistics, Rule, Sum, weighted_sum
from tacit.algorithms.rules import refuse_unlimited
from tacit.errors import BadInput
from tacit.types import Message

DEFAULTS = {"paper": {"blocks": "model", "split": "gmm"}, "code": {"blocks": "layer", "split": "top"}}
CHUNK = 1 << 14  # columns at a time in double precision
CHUNK_ON_DEVICE = 1 << 20  # enough to keep it busy
NEGLIGIBLE = 1e-10  # of the largest eigenvalue: float32 rows carry no more


class Dividing(Rule):
    """A rule that divides clients into public and private ones by a threshold on epsilon, which everybody in a round receives."""

    private_sum = True

    split: Any
    share: float

    def cut(self, epsilons: np.ndarray) -> float:
        return threshold(epsilons, how=str(self.split), share=self.share)

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        known = memory.get("threshold")  # the run's, or in the paper's reading that of the round's cohort
        return Message("server", {}, {"threshold": self.cut(epsilons) if known is None else float(known)})

    def refuse(self, received: Message, *, size: int) -> None:
        if type(received.facts.get("threshold")) not in (int, float):
            raise BadInput("The rule pfa needs to be told the threshold, a number.")

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], received: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The whole update, and which group the client is in: it compares its own epsilon with the threshold."""
        return {"update": update}, {"group": "public" if facts["epsilon"] >= received.facts["threshold"] else "private"}


@dataclass(frozen=True)
class pfa(Dividing):
    """PFA. k above the rank of the public updates adds nothing. Assumes: epsilons are stated truthfully; a client that states a
    large one is public and shapes the subspace, and counts for at most `aggregate.most_share` of the weight."""

    reading: Literal["paper", "code"] = "code"  # the paper's algorithm, or that of its released code
    rank: int = 1  # k, the directions of a block that private updates are projected on
    blocks: Literal["model", "layer"] | None = None  # what is projected as one; default: as the reading has it
    split: Literal["gmm", "kmeans", "top"] | None = None  # into public and private clients; default: by the reading
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

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        if self.weights == "epsilon":
            refuse_unlimited(statistics)
        memory = {"layout": torch.tensor([layout[0][0], *(stop for _, stop in layout)])}
        if self.reading == "code":  # split once, over all clients
            memory["threshold"] = torch.tensor(self.cut(statistics.epsilons), dtype=torch.float64)
        return memory

    def start(self) -> "Divided":
        return Divided()

    def add(self, gathered: "Divided", message: Message) -> None:
        gathered.add(self.weight(message.facts), message)

    def apply(self, memory: Memory, gathered: "Divided") -> Applied:
        """Lines 6-8 of Algorithm 3. Without a public client the update is zero, without a private one the public mean."""
        private = gathered.private_mean()
        if not gathered.rows and private is not None:
            return Applied(torch.zeros_like(private[1]), memory, gathered.info(0))
        if private is None:
            return Applied(gathered.public_mean(), memory, gathered.info(0))
        spaces = self.spaces(memory, gathered.rows, gathered.weights)
        for space, block in zip(spaces, self.parts(memory, private[1]), strict=True):
            block.copy_(space.point(space.coordinates(block)))  # in place: the private mean is not needed again
        return Applied(gathered.with_private(*private), memory, gathered.info(max(s.mix.shape[1] for s in spaces)))

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts[self.weights])

    def parts(self, memory: Memory, vector: torch.Tensor) -> list[torch.Tensor]:
        return [vector[start:stop] for start, stop in pairwise(self.offsets(memory))]

    def offsets(self, memory: Memory) -> list[int]:
        offsets = memory["layout"].tolist()
        return offsets if self.blocks == "layer" else [offsets[0], offsets[-1]]

    def spaces(self, memory: Memory, rows: list[torch.Tensor], weights: list[float]) -> "list[Subspace]":
        """Line 6: the top-k subspace of the public updates, block by block. A single row is not centred."""
        if self.reading == "paper":
            total, weight = weighted_sum(zip(weights, rows, strict=True))
            rows = [total / weight]
        blocks = zip(*(self.parts(memory, row) for row in rows), strict=True)
        return [subspace(block, rank=self.rank, centred=len(rows) > 1) for block in blocks]


@dataclass(frozen=True)
class Divided:
    """The public updates of a round one by one, with their weights, and the sum of the private ones."""

    rows: list[torch.Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    private: Sum = field(default_factory=Sum)

    def add(self, weight: float, message: Message) -> None:
        if message.facts.get("group") == "public":
            self.rows.append(message.tensors["update"])
            self.weights.append(weight)
        else:
            (sent,) = message.tensors.values()  # an update, or its coordinates
            self.private.add(weight, sent)

    def private_mean(self) -> tuple[float, torch.Tensor] | None:
        """(weight, mean) of the private updates, or None without any. It takes the place of their sum: use it once."""
        private = self.private
        return (private.weight, private.total.div_(private.weight)) if private.clients else None

    def public_mean(self) -> torch.Tensor:
        total, weight = weighted_sum(zip(self.weights, self.rows, strict=True))
        return total / weight

    def with_private(self, weight: float, projected: torch.Tensor) -> torch.Tensor:
        """Line 8: (sum of epsilons * public mean + sum of epsilons * projected private mean) / all epsilons."""
        total, weights = weighted_sum(zip([*self.weights, weight], [*self.rows, projected], strict=True))
        return total.div_(weights)

    def info(self, rank: int) -> dict[str, int]:
        return {"public": len(self.rows), "rank": rank}


# The top-k subspace of a few long vectors, exactly, from their Gram matrix: O(n^2 d), never a d x d matrix. For rows X (n x d),
# centred by mu or not, X X^T = U S^2 U^T gives V = X^T U / S. Nothing as long as V is kept: projecting x needs X x and X^T a only.


@dataclass(frozen=True, eq=False)
class Subspace:
    """The top directions of the rows of one block of coordinates, written as V = (X - mu)^T mix: never as long as V.

    >>> line = subspace([torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0])], rank=1, centred=False)
    >>> line.point(line.coordinates(torch.tensor([5.0, 7.0]))).round(decimals=3)
    tensor([5., 0.])
    """

    rows: Sequence[torch.Tensor] = field(repr=False)
    centre: torch.Tensor | None = field(repr=False)
    mix: torch.Tensor = field(repr=False)  # (n, k): V = (X - mu)^T mix

    def coordinates(self, x: torch.Tensor) -> torch.Tensor:
        """V^T (x - mu), in double precision, on the CPU."""
        inner = torch.stack([_dot(row, x, self.centre) for row in self.rows])
        if self.centre is not None:
            inner = inner - _dot(self.centre, x, self.centre)
        return self.mix.T @ inner

    def point(self, coordinates: torch.Tensor) -> torch.Tensor:
        """V c + mu, in the rows' own precision: with `coordinates` the orthogonal projection of x onto mu + span V."""
        weights = (self.mix @ coordinates).tolist()
        total = torch.zeros_like(self.rows[0])
        for weight, row in zip(weights, self.rows, strict=True):
            total.add_(row, alpha=weight)
        return total if self.centre is None else total.add_(self.centre, alpha=1 - sum(weights))

    def basis(self) -> torch.Tensor:
        """V itself, (d, k), as long as k models: only for clients who have to project (`pfa-plus`)."""
        basis = torch.zeros(len(self.rows[0]), self.mix.shape[1], device=self.rows[0].device)
        mix = self.mix.float().to(basis.device)
        for weights, row in zip(mix, self.rows, strict=True):
            basis.add_(row[:, None] * weights)
        return basis if self.centre is None else basis.sub_(self.centre[:, None] * mix.sum(0))


def subspace(rows: Sequence[torch.Tensor], *, rank: int, centred: bool) -> Subspace:
    """The top `rank` directions of the rows, around their mean if `centred`; fewer if the rows have fewer. Guarantee: V is
    orthonormal and spans the directions of the largest singular values, without those whose square is below NEGLIGIBLE of the
    largest: a rank above that of the rows lets no noise in. Assumes: at least one row; they are not copied."""
    n, step = len(rows), _chunk(rows[0])
    gram = torch.zeros(n, n, dtype=torch.float64, device=rows[0].device)
    for start in range(0, len(rows[0]), step):
        part = torch.stack([row[start : start + step] for row in rows]).double()
        gram += part @ part.T
    gram, centre = gram.cpu(), None
    if centred:
        if n * len(rows[0]) <= CHUNK:
            centre = torch.stack(list(rows)).mean(0)
        else:  # nothing as long as all rows is made
            centre = torch.zeros_like(rows[0])
            for row in rows:
                centre.add_(row, alpha=1 / n)
        away = torch.eye(n, dtype=torch.float64) - 1.0 / n
        gram = away @ gram @ away
    values, vectors = torch.linalg.eigh(gram)
    order = torch.argsort(values, descending=True)[:rank]
    order = order[values[order] > max(NEGLIGIBLE * float(values.max()), 1e-300)]
    return Subspace(rows, centre, vectors[:, order] / values[order].sqrt())


def _chunk(row: torch.Tensor) -> int:
    return CHUNK_ON_DEVICE if row.is_cuda else CHUNK


def _dot(a: torch.Tensor, b: torch.Tensor, centre: torch.Tensor | None) -> torch.Tensor:
    # a . (b - centre), with an error that does not grow with the length, and nothing as long as b made on the way
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    step = _chunk(a)
    for part in (slice(i, i + step) for i in range(0, len(a), step)):
        away = b[part].double() if centre is None else b[part].double() - centre[part]
        total += a[part].double() @ away
    return total.cpu()


# Who is "public" (section 4.3): a client with epsilon >= threshold.


def threshold(epsilons: np.ndarray, *, how: str, share: float) -> float:
    """The smallest epsilon that counts as public. `gmm`: two Gaussians fitted to the epsilons; `kmeans`: the exact best cut in
    two; `top`: the `share` of clients with the largest. Guarantee: it is one of the epsilons, so at least one client is public;
    equal ones are all public. If one is infinite, the infinite ones are the public ones.

    >>> threshold(np.array([0.1, 0.12, 9.0, 11.0]), how="kmeans", share=0.1)
    9.0
    """
    values = np.sort(np.asarray(epsilons, dtype=float))
    if np.isinf(values[-1]):
        return np.inf
    if how == "top":
        return float(values[-max(1, round(share * len(values)))])
    if values[0] == values[-1]:
        return float(values[0])
    return _two_means(values) if how == "kmeans" or len(np.unique(values)) < 3 else _two_gaussians(values)


def _two_means(values: np.ndarray) -> float:
    # the cut that leaves the least squared error, over all cuts between different values
    n, total, squares = len(values), np.cumsum(values), np.cumsum(values**2)
    k = np.arange(1, n)
    error = squares[-1] - total[:-1] ** 2 / k - (total[-1] - total[:-1]) ** 2 / (n - k)
    error[values[1:] == values[:-1]] = np.inf
    return float(values[np.argmin(error) + 1])


def _two_gaussians(values: np.ndarray) -> float:
    from sklearn.exceptions import ConvergenceWarning  # 20 MB and half a second, and only this split needs it
    from sklearn.mixture import GaussianMixture

    start = np.array([[values[0]], [values[-1]]])
    mixture = GaussianMixture(2, means_init=start, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fit that still moves is as good a split
        component = mixture.fit_predict(values[:, None])
    means = np.asarray(mixture.means_)[:, 0]
    upper = component == np.argmax(means)
    # a wide upper component may also claim what lies below the lower one: only values above the lower mean can be public
    public = values[upper & (values > means.min())]
    return float(public[0]) if len(public) else float(values[-1])
