"""`median`: every coordinate's median over clients (Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498, Alg. 1, option I).

Sees: rows. A defence: fewer than half of the clients cannot move a coordinate beyond what honest ones sent. Where honest
clients differ it is no mean: what few of them have is lost."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit.algorithms.rules import Applied, Memory, Rule, middle, rows_of
from tacit.types import Message


@dataclass(frozen=True)
class median(Rule):
    """The median of every coordinate; of an even number of clients, the mean of the two in the middle.

    Guarantee: with more honest clients than others, every coordinate lies between two honest clients' values. Nothing that a
    client states is believed.

    >>> from tacit.algorithms.rules import combined
    >>> updates = [Message(name, {"update": torch.tensor([x])}) for name, x in (("a", 1.0), ("b", 2.0), ("c", 1e9))]
    >>> combined(median(), {}, updates).update
    tensor([2.])
    """

    sees = "rows"
    needs = ()

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        return Applied(median_of(rows_of(messages)), memory)


def median_of(rows: torch.Tensor) -> torch.Tensor:
    return middle(rows, (len(rows) - 1) // 2)
