"""`norm-bound`: every update is clipped to one norm, then they are averaged; with `noise`, "weak DP" (Sun, Kairouz, Suresh, McMahan
2019, Can You Really Backdoor Federated Learning?, arXiv:1911.07963). Sees: rows, one at a time: with a `bound` a round holds one
sum. A defence: no client moves the mean by more than the bound over the number of clients. **It is not differential privacy**:
nothing is charged, the server sees updates as they are, and the noise is sized for no epsilon and can be drawn again by whoever
knows the mean. Clip with a proof is privacy.kind = "central"."""

from dataclasses import dataclass
from typing import Any

import torch

from tacit import check
from tacit.algorithms import Applied, Memory, Rule, Sum
from tacit.algorithms.rules import rows_of
from tacit.random import keyed
from tacit.types import Message
from tacit.wire import digest_of, tensor_bytes


@dataclass(frozen=True)
class norm_bound(Rule):
    """The mean of update_k min(1, bound/|update_k|), plus N(0, noise^2) in every coordinate where `noise` is said: a function
    of the mean, so that a repeated round repeats it. Without a `bound` it is the median norm of the round's updates: then all
    are kept until the last has come. Guarantee: with a bound, one client moves the mean by at most 2 bound/n; about privacy
    none.

    >>> from tacit.algorithms import combined
    >>> updates = [Message(name, {"update": torch.tensor([x])}) for name, x in (("a", 1.0), ("b", 100.0))]
    >>> combined(norm_bound(bound=2.0), {}, updates).update
    tensor([1.5000])
    """

    bound: float | None = None  # the norm that updates are clipped to; default: the median norm of a round
    noise: float = 0.0  # the deviation of the noise that is added to the mean; no privacy
    sees = "rows"
    needs = ()

    def __post_init__(self) -> None:
        if self.bound is not None:
            check.positive(**{"aggregate.bound": self.bound})
        check.at_least(0, **{"aggregate.noise": self.noise})

    def start(self) -> Any:
        return [] if self.bound is None else Sum("norm_bound")

    def add(self, gathered: Any, message: Message) -> None:
        if self.bound is None:
            gathered.append(message)
        else:
            gathered.add(1.0, clipped(message.tensors["update"], self.bound))

    def apply(self, memory: Memory, gathered: Any) -> Applied:
        if self.bound is not None:
            bound, mean = self.bound, gathered.mean()
        else:
            rows = rows_of(gathered)
            bound = float(rows.double().norm(dim=1).median())
            mean = torch.stack([clipped(row, bound) for row in rows]).mean(0)
        if self.noise:
            stream = keyed(bytes.fromhex(digest_of("weak noise", tensor_bytes(mean))))("noise")
            mean = mean.add(stream.normal_like(mean), alpha=self.noise)
        return Applied(mean, memory, {"bound": bound})


def clipped(update: torch.Tensor, bound: float) -> torch.Tensor:
    norm = float(update.double().norm())
    return update if norm <= bound else (update.double() * (bound / norm)).to(update.dtype)
