"""`krum`: the one update that lies closest to its neighbours (Blanchard, El Mhamdi, Guerraoui, Stainer 2017, arXiv:1703.02757);
with `keep` above 1 the mean of so many of them, Multi-Krum. Sees: rows. A defence against up to a `share` of malicious clients: f
of n. It takes time n^2 d. Malicious updates that lie close to each other and among honest ones are not found; and where clients'
data differ, one update stands for all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit import check
from tacit.algorithms import Applied, Memory, Rule
from tacit.algorithms.rules import refuse_half, rows_of, share_count
from tacit.types import Message


@dataclass(frozen=True)
class krum(Rule):
    """The mean of the `keep` updates with the smallest sum of squared distances to their n - f - 2 closest others. Guarantee: with
    keep = 1 the result is some client's own update. The paper's (in expectation within an angle of the true gradient) needs
    n >= 2f + 3 and honest updates of one distribution. Equals are told apart by the clients' names; nothing stated is believed."""

    share: float = 0.2  # of malicious clients in a round at most: f of n
    keep: int = 1  # how many updates are averaged; above 1: Multi-Krum
    sees = "rows"
    needs = ()

    def __post_init__(self) -> None:
        refuse_half(self.share)
        check.at_least(1, **{"aggregate.keep": self.keep})

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        near = max(1, len(rows) - share_count(self.share, len(rows)) - 2)
        scores = closeness(rows, near).tolist()
        order = sorted(range(len(rows)), key=lambda i: (scores[i], messages[i].sender))
        chosen = order[: min(self.keep, near)]
        return Applied(rows[chosen].mean(0), memory, {"kept": [messages[i].sender for i in chosen[:10]]})


def closeness(rows: torch.Tensor, near: int) -> torch.Tensor:
    """s(i): the sum of squared distances from every row to its `near` closest others, in double precision. The origin is where
    updates start from, so that an enormous update spoils no distance but its own."""
    wide = rows.double()
    products = wide @ wide.T
    lengths = products.diagonal()
    squares = (lengths[:, None] + lengths[None, :] - products - products.T).clamp(min=0)
    squares.fill_diagonal_(torch.inf)
    return squares.sort(1).values[:, : min(near, len(rows) - 1)].sum(1)
