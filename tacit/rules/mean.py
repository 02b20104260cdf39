"""`mean`: FedAvg's average, each client weighted by its number of examples (McMahan et al. 2017, Algorithm 1).

Sees: sums only. Post-processing: costs no privacy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tacit.errors import BadInput
from tacit.rules import Applied
from tacit.types import Message


@dataclass(frozen=True)
class mean:
    """The sum of n_k/n times update k.

    >>> one = Message("a", {"update": torch.tensor([1.0])}, {"examples": 3})
    >>> other = Message("b", {"update": torch.tensor([5.0])}, {"examples": 1})
    >>> mean().apply({}, [one, other]).update
    tensor([2.])
    """

    sees = "sums"

    def init(self) -> dict[str, torch.Tensor]:
        """Nothing is remembered."""
        return {}

    def apply(self, state: dict[str, torch.Tensor], messages: Iterable[Message]) -> Applied:
        """Adds the updates one at a time, so that memory does not grow with the cohort."""
        total, weight = None, 0.0
        for message in messages:
            n_k = float(message.facts["examples"])
            update = message.tensors["update"]
            total = update * n_k if total is None else total.add_(update, alpha=n_k)
            weight += n_k
        if total is None or weight <= 0:
            raise BadInput("A mean needs at least one update with a positive number of examples.")
        return Applied(total / weight, state, {})
