"""`inverse-variance`: each client weighted by 1/sigma^2 of its noise: the mean of least variance if all clients want
the same.

The Gauss-Markov weights; they need no projection. A round whose cohort happens to hold little information (no loose
client was drawn) takes a proportionally smaller step: the sum is divided by the weight that a cohort of this size is
expected to have, where that is more. Clients whose data differ are not equal, though: see `random-effects`. Sees: sums.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tacit.errors import BadInput
from tacit.rules import Applied, Crowd, Layout, Memory, Rule, Sum
from tacit.types import Message


@dataclass(frozen=True)
class inverse_variance(Rule):
    """The sum of update_m/sigma_m^2 over the sum of 1/sigma_m^2, or over its expectation if that is larger.

    Guarantee: of all weighted means the one of least noise, if sigma_m is the clients' true noise. A client that states less
    than it has gets more weight than is its due; `robust` does not believe what is stated.
    """

    sees = "sums"
    needs = ("noise_std",)

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        """The noise variance of every client there is, for what a cohort is expected to weigh."""
        return {"variances": torch.as_tensor(crowd.noise_stds, dtype=torch.float64) ** 2}

    def weight(self, facts: dict[str, Any]) -> float:
        """1/sigma^2. Raises: ZeroDivisionError without noise; `add` says it by the client's name."""
        return float(facts["noise_std"]) ** -2

    def add(self, gathered: Sum, message: Message) -> None:
        """Adds an update by 1/sigma^2. Raises: BadInput, naming the client, for one that states no noise."""
        clients = message.facts.get("clients", 1)
        gathered.add(1 / variance(message), message.tensors["update"], clients=clients)

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        """The weighted mean, shortened in a round of little information (`information`); its length is `step` in the info."""
        total, weight = gathered.total, gathered.weight
        step = information(memory["variances"], weight, clients=gathered.clients, tau2=0.0)
        return Applied(total * (step / weight), memory, {"step": step})


def variance(message: Message) -> float:
    """The noise variance that a client states per coordinate.

    Raises: BadInput, naming the client, if there is no noise to weigh by.
    """
    sigma = float(message.facts.get("noise_std", 0.0))
    if sigma <= 0:
        raise BadInput(f"Client {message.sender} states no noise, so it cannot be weighed by it: use the rule mean.")
    return sigma**2


def information(variances: torch.Tensor, weight: float, *, clients: int, tau2: float) -> float:
    """The weight of this cohort over that of an average cohort of as many clients, at most 1.

    Between clients that differ by tau^2 the variances grow by it.

    >>> information(torch.tensor([1.0, 1.0, 4.0, 4.0]), 0.5, clients=2, tau2=0.0)
    0.4
    """
    return min(1.0, weight / (clients * float((1 / (variances + tau2)).mean())))
