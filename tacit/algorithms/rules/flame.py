"""`flame`: keep the majority that points one way, clip to the median norm, average, add noise (Nguyen et al. 2022, FLAME,
arXiv:2101.02281, Algorithm 1).

Sees: rows. A defence of three: HDBSCAN on cosine distances finds the updates of at least half of the clients that lie together; all
of those are clipped to the median norm of the round's updates; and noise hides what is left. **The noise is no differential
privacy**: it is sized for no epsilon, and nothing is charged. Time n^2 d."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit import check
from tacit.algorithms.rules import Applied, Memory, Rule, rows_of
from tacit.algorithms.rules.norm_bound import clipped, with_weak_noise
from tacit.types import Message

FEWEST = 3  # of two nobody can say which is the odd one
TINY = 1e-300  # the length of an update of zeros, which points nowhere


@dataclass(frozen=True)
class flame(Rule):
    """The mean of the kept updates, each clipped to the median norm S; `noise` times S is the standard deviation that is added.

    Guarantee: fewer than half of the clients are never the majority that is kept; where HDBSCAN finds no majority at all, nobody
    is left out and only the clip is a defence. About privacy: none. Nothing that a client states is believed.
    """

    noise: float = (
        0.0  # how many median norms the deviation of the added noise is; no privacy; the paper has 0.001 for pictures
    )
    sees = "rows"
    needs = ()

    def __post_init__(self) -> None:
        check.at_least(0, **{"aggregate.noise": self.noise})

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        bound = float(rows.double().norm(dim=1).median())  # line 10
        kept = majority(rows)
        mean = torch.stack([clipped(row, bound) for row in rows[kept]]).mean(0)  # lines 11 to 13
        return Applied(with_weak_noise(mean, self.noise * bound), memory, {"bound": bound, "kept": int(kept.sum())})


def majority(rows: torch.Tensor) -> torch.Tensor:
    """Which rows belong to the cluster of at least half of them; all, where there is none (lines 6 to 9)."""
    count = len(rows)
    everybody = torch.ones(count, dtype=torch.bool)
    if count < FEWEST:
        return everybody
    from sklearn.cluster import HDBSCAN  # it takes a second to load, and only this rule needs it

    directions = rows.double() / rows.double().norm(dim=1, keepdim=True).clamp(min=TINY)
    distances = (1 - directions @ directions.T).clamp(min=0).cpu()
    distances = (distances + distances.T) / 2
    distances.fill_diagonal_(0.0)
    least = {"min_cluster_size": count // 2 + 1, "min_samples": 1, "allow_single_cluster": True}
    found = HDBSCAN(**least, metric="precomputed", copy=True).fit(distances.numpy())  # pyright: ignore[reportArgumentType]
    kept = torch.from_numpy(found.labels_ >= 0)
    return kept if bool(kept.any()) else everybody
