"""`weighted`: WeiAvg of Liu et al. (PVLDB 15(4), 2021), section 4.1: each client weighted by its epsilon.

Sees: sums. With noise of std c/epsilon this gives every client the same share of the noise, so many tight clients still
drown a few loose ones; `inverse-variance` weighs by epsilon squared there.
"""

from dataclasses import dataclass
from typing import Any

from tacit.rules import Applied, Memory, Rule, Sum


@dataclass(frozen=True)
class weighted(Rule):
    """The sum of epsilon_m update_m over the sum of epsilon_m.

    Assumes: epsilons are stated truthfully; a client that states more weighs more.
    """

    sees = "sums"

    def weight(self, facts: dict[str, Any]) -> float:
        """Epsilon itself. An infinite one is refused by the sum: nobody without noise can be weighed by epsilon."""
        return float(facts["epsilon"])

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        """The mean. Raises: BadInput without an update."""
        return Applied(gathered.mean(), memory)
