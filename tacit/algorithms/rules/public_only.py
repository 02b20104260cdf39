"""`public-only`: the control that projection has to beat: average the public clients by epsilon and ignore the others.
Sees: sums. A round without a public client leaves the model as it is."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tacit.algorithms import Applied, Layout, Memory, PopulationStatistics, Sum
from tacit.algorithms.rules import refuse_unlimited
from tacit.algorithms.rules.pfa import Dividing
from tacit.errors import BadInput
from tacit.types import Message


@dataclass
class PublicSum:
    """The sum of the round's public updates, and the last update of all, whose shape a step of zero has."""

    public: Sum = field(default_factory=Sum)
    last: torch.Tensor | None = None


@dataclass(frozen=True)
class public_only(Dividing):
    """The public mean by epsilon. Clients are divided and told apart as by `pfa`; private ones upload as much, for nothing."""

    split: Literal["gmm", "kmeans", "top"] = "top"  # how clients are divided into public and private
    share: float = 0.1  # of the clients that `top` makes public
    sees = "sums"

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        refuse_unlimited(statistics)
        return {"threshold": torch.tensor(self.cut(statistics.epsilons), dtype=torch.float64)}

    def weight(self, facts: dict[str, Any]) -> float:
        return float(facts["epsilon"])

    def start(self) -> PublicSum:
        return PublicSum()

    def add(self, gathered: PublicSum, message: Message) -> None:
        gathered.last = message.tensors["update"]
        if message.facts.get("group") == "public":
            gathered.public.add(self.weight(message.facts), gathered.last, clients=message.facts.get("clients", 1))

    def apply(self, memory: Memory, gathered: PublicSum) -> Applied:
        if gathered.last is None:
            raise BadInput("Expected at least one update.")
        public = gathered.public
        update = public.mean() if public.clients else torch.zeros_like(gathered.last)
        return Applied(update, memory, {"public": public.clients})
