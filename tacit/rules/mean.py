"""`mean`: FedAvg's average, each client weighted by its number of examples (McMahan et al. 2017, Algorithm 1).

Sees: sums. Good when all clients add the same noise; with unequal budgets the noisiest drown the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tacit.rules import Applied, Memory, Rule, weighted_sum
from tacit.types import Message


@dataclass(frozen=True)
class mean(Rule):
    """The sum of n_k/n times update k.

    >>> import torch
    >>> one = Message("a", {"update": torch.tensor([1.0])}, {"examples": 3})
    >>> other = Message("b", {"update": torch.tensor([5.0])}, {"examples": 1})
    >>> mean().apply({}, [one, other]).update
    tensor([2.])
    """

    sees = "sums"
    needs = ()

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["examples"])

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        total, n = weighted_sum((self.weight(m.facts), m.tensors["update"]) for m in messages)
        return Applied(total / n, memory)
