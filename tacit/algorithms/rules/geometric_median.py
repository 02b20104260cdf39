"""`geometric-median`: the point with the least sum of distances to all updates, by the smoothed Weiszfeld algorithm (Pillutla,
Kakade, Harchaoui 2022, RFA, arXiv:1912.13445, Algorithm 2).

Sees: rows. A defence: fewer than half of the clients cannot move it far, whatever they send. Unlike the paper's, each client counts
once, and it starts from the coordinates' median: from the mean, an enormous update would take a step for each of its digits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit import check
from tacit.algorithms.rules import Applied, Memory, Rule, rows_of
from tacit.algorithms.rules.median import median_of
from tacit.types import Message

STILL = 1e-7  # of the distances: a step that ends the search


@dataclass(frozen=True)
class geometric_median(Rule):
    """argmin over v of the sum of |v - update_k|; distances below `smoothing` count as that, so that nothing divides by zero.

    Guarantee: with a share rho < 1/2 of malicious clients it is within 2 (1 - rho)/(1 - 2 rho) of the honest updates' radius
    around any point (Lopuhaa and Rousseeuw 1991), up to the search's end. Nothing that a client states is believed.
    """

    smoothing: float = 1e-6  # distances below it count as that
    steps: int = 100  # of the search at most
    sees = "rows"
    needs = ()

    def __post_init__(self) -> None:
        check.positive(**{"aggregate.smoothing": self.smoothing})
        check.at_least(1, **{"aggregate.steps": self.steps})

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        wide = rows.double()
        v, beta = median_of(wide), torch.ones(len(wide), dtype=wide.dtype)
        for _ in range(self.steps):
            beta = 1 / (wide - v).norm(dim=1).clamp(min=self.smoothing)  # line 4
            before, v = v, (beta / beta.sum()) @ wide  # line 5
            if float((v - before).norm() * beta.mean()) <= STILL:
                break
        return Applied(v.to(rows.dtype), memory, {"least_weight": float(beta.min() / beta.mean())})
