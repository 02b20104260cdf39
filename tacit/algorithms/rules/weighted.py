"""`weighted`: WeiAvg of Liu et al. (PVLDB 15(4), 2021), section 4.1: each client weighted by its epsilon. Sees: sums.
With noise of std c/epsilon this gives every client the same share of the noise, so many tight clients still drown a few loose
ones; `inverse-variance` weighs by epsilon squared there."""

from dataclasses import dataclass
from typing import Any

from tacit.algorithms import Applied, Layout, Memory, PopulationStatistics, Rule, Sum
from tacit.algorithms.rules import refuse_unlimited


@dataclass(frozen=True)
class weighted(Rule):
    """The sum of epsilon_m update_m over the sum of epsilon_m. Assumes: epsilons are stated truthfully; a client that states more
    weighs more, up to `aggregate.most_share`."""

    sees = "sums"

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        refuse_unlimited(statistics)
        return {}

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["epsilon"])

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        return Applied(gathered.mean(), memory)
