"""`inverse-variance`: each client weighted by 1/sigma^2 of its noise: the mean of least variance if all clients want
the same.

Sees: sums. The Gauss-Markov weights; they need no projection. Clients whose data differ are not equal, though: see
`random-effects`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tacit.errors import BadInput
from tacit.rules import Applied, Memory, Rule, weighted_sum
from tacit.types import Message


@dataclass(frozen=True)
class inverse_variance(Rule):
    """The sum of update_m/sigma_m^2 over the sum of 1/sigma_m^2."""

    sees = "sums"
    needs = ("noise_std",)

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        total, weight = weighted_sum((1 / variance(m), m.tensors["update"]) for m in messages)
        return Applied(total / weight, memory)


def variance(message: Message) -> float:
    """The noise variance a client states per coordinate. Raises BadInput by client if there is no noise to weigh by."""
    sigma = float(message.facts.get("noise_std", 0.0))
    if sigma <= 0:
        raise BadInput(f"Client {message.sender} states no noise, so it cannot be weighed by it: use the rule mean.")
    return sigma**2
