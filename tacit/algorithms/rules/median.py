"""`median`: every coordinate's median over clients (Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498, Alg. 1, option I).
Sees: rows. A defence: fewer than half of the clients cannot move a coordinate beyond what honest ones sent. Where honest
clients differ it is no mean: what few of them have is lost."""

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.algorithms import Applied, Memory, Rule
from tacit.algorithms.rules import middle, rows_of
from tacit.types import Message


@dataclass(frozen=True)
class median(Rule):
    """The median of every coordinate; of an even number of clients, the mean of the two in the middle. Guarantee: with more honest
    clients than others, every coordinate lies between two honest clients' values. Nothing that a client states is believed."""

    sees = "rows"
    needs = ()

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        return Applied(middle(rows, (len(rows) - 1) // 2), memory)
