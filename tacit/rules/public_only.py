"""`public-only`: the control that projection has to beat: average the public clients by epsilon and ignore the others.

Sees: sums. A round without a public client leaves the model as it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from tacit.errors import BadInput
from tacit.rules import Applied, Crowd, Layout, Memory, Rule
from tacit.rules.pfa import pfa
from tacit.types import Message


@dataclass(frozen=True)
class public_only(Rule):
    """The public mean. `split` and `share` as in `pfa`."""

    split: Literal["gmm", "kmeans", "top"] = "top"
    share: float = 0.1
    sees = "sums"

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        return self._pfa().init(layout, crowd)

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        return self._pfa().tell(memory, epsilons)

    def refuse(self, told: Message, *, size: int) -> None:
        self._pfa().refuse(told, size=size)

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], told: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return self._pfa().send(update, facts, told)

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["epsilon"])

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        total, weight, count = None, 0.0, 0
        for message in messages:
            update, epsilon = message.tensors["update"], float(message.facts["epsilon"])
            total = torch.zeros_like(update) if total is None else total
            if message.facts.get("group") == "public":
                total.add_(update, alpha=epsilon)
                weight, count = weight + epsilon, count + message.facts.get("clients", 1)
        if total is None:
            raise BadInput("Expected at least one update.")
        return Applied(total / weight if weight else total, memory, {"public": count})

    def _pfa(self) -> pfa:
        return pfa(split=self.split, share=self.share)
