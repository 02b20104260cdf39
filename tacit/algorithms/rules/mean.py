"""`mean`: FedAvg's average, each client weighted by its number of examples (McMahan et al. 2017, Algorithm 1).
Sees: sums. Good when all clients add the same noise; with unequal budgets the noisiest drown the others."""

from dataclasses import dataclass
from typing import Any

from tacit.algorithms import Applied, Memory, Rule, Sum


@dataclass(frozen=True)
class mean(Rule):
    """The sum of n_k/n times update k."""

    sees = "sums"
    needs = ()

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["examples"])

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        return Applied(gathered.mean(), memory)
