"""`trimmed-mean`: every coordinate's mean without its extremes (Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498,
Algorithm 1, option II). Sees: rows. A defence against up to a `share` of malicious clients, which is beta in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.algorithms import Applied, Memory, Rule
from tacit.algorithms.rules import middle, refuse_half, rows_of, share_count
from tacit.types import Message


@dataclass(frozen=True)
class trimmed_mean(Rule):
    """The mean of what is left when `share` of the clients is cut off at each end, in every coordinate; rounded up. Guarantee: with
    at most that share of malicious clients in the round, every coordinate lies between two honest clients' values. A cohort drawn
    by chance may hold more of them than the population. Nothing that a client states is believed."""

    share: float = 0.2  # of the clients that is cut off at each end of a coordinate
    sees = "rows"
    needs = ()

    def __post_init__(self) -> None:
        refuse_half(self.share)

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        cut = share_count(self.share, len(rows))
        return Applied(middle(rows, cut), memory, {"trimmed": cut})
