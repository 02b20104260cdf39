"""`inverse-variance`: each client weighted by 1/sigma^2 of its noise (Gauss-Markov): the mean of least variance if all clients
want the same; where their data differ see `random-effects`. Sees: sums. A round whose cohort holds less information than a
cohort of its size is expected to have takes a proportionally smaller step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.algorithms import Applied, Layout, Memory, PopulationStatistics, Rule, Sum
from tacit.errors import BadInput
from tacit.types import Message

MOST_VALUES = 4096
NEAR = 0.01  # of many clients, those within 1 % of each other have one variance


@dataclass(frozen=True)
class inverse_variance(Rule):
    """The sum of update_m/sigma_m^2 over the sum of 1/sigma_m^2, or over its expectation if that is larger. A client that
    states less noise than it has gets more weight than is its due; `robust` does not believe what is stated."""

    sees = "sums"
    needs = ("noise_std",)

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        return variances_of(statistics)

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["noise_std"]) ** -2

    def add(self, gathered: Sum, message: Message) -> None:
        clients = message.facts.get("clients", 1)
        gathered.add(1 / variance(message), message.tensors["update"], clients=clients)

    def apply(self, memory: Memory, gathered: Sum) -> Applied:
        total, weight = gathered.total, gathered.weight
        step = information(memory, weight, clients=gathered.clients)
        return Applied(total * (step / weight), memory, {"step": step})


def variance(message: Message) -> float:
    """The noise variance that a client states per coordinate. Raises: BadInput, naming the client, if it states none."""
    sigma = float(message.facts.get("noise_std", 0.0))
    if sigma <= 0:
        raise BadInput(f"Client {message.sender} states no noise, so it cannot be weighed by it: use the rule mean.")
    return sigma**2


def variances_of(statistics: PopulationStatistics) -> Memory:
    """The clients' noise variances and how many have each.

    >>> {name: part.tolist() for name, part in variances_of(PopulationStatistics(np.ones(3), np.array([1.0, 2.0, 1.0]))).items()}
    {'variances': [1.0, 4.0], 'counts': [2.0, 1.0]}
    """
    squares = np.asarray(statistics.noise_stds, dtype=np.float64) ** 2
    values, counts = np.unique(squares, return_counts=True)
    if len(values) > MOST_VALUES and values[0] > 0:
        steps, where = np.unique(np.round(np.log(values) / NEAR).astype(int), return_inverse=True)
        counts = np.bincount(where, weights=counts)
        values = np.exp(NEAR * steps)
    return {"variances": torch.from_numpy(values), "counts": torch.from_numpy(counts.astype(np.float64))}


def information(memory: Memory, weight: float, *, clients: int, horizon: float = 1.0, tau2: float = 0.0) -> float:
    """The weight of this cohort over that of an average cohort of as many clients, at most 1. Variances are over the horizon, and
    between clients that differ by tau^2 they grow by it.

    >>> memory = {"variances": torch.tensor([1.0, 4.0]), "counts": torch.tensor([2.0, 2.0])}
    >>> information(memory, 0.5, clients=2)
    0.4
    """
    counts = memory["counts"]
    average = float((counts / (memory["variances"] / horizon + tau2)).sum() / counts.sum())
    return min(1.0, weight / (clients * average))
