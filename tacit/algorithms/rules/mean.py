"""`mean`: FedAvg's average, each client weighted by its number of examples (McMahan et al. 2017, Algorithm 1).

Sees: sums. Good when all clients add the same noise; with unequal budgets the noisiest drown the others.
"""

from dataclasses import dataclass
from typing import Any

from tacit.algorithms.rules import Applied, Memory, Rule, Sum


@dataclass(frozen=True)
class mean(Rule):
    """The sum of n_k/n times update k.

    >>> import torch
    >>> from tacit.algorithms.rules import combined
    >>> from tacit.types import Message
    >>> one = Message("a", {"update": torch.tensor([1.0])}, {"examples": 3})
    >>> other = Message("b", {"update": torch.tensor([5.0])}, {"examples": 1})
    >>> combined(mean(), {}, [one, other]).update
    tensor([2.])
    """

    sees = "sums"
    needs = ()

    def weight(self, facts: dict[str, Any]) -> float:
        """The number of examples."""
        return float(facts["examples"])

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        """The mean. Raises: BadInput where nobody has an example."""
        return Applied(gathered.mean(), memory)
