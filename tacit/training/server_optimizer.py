"""What the server does with the combined update: SGD, momentum (FedAvgM) or Adam (FedAdam). Post-processing, so it costs
no privacy.

Sources: Hsu, Qi, Brown 2019 (FedAvgM, arXiv:1909.06335), section 4; Reddi et al. 2021 (FedAdam, arXiv:2003.00295),
Algorithm 2, whose Adam has no bias correction. What an optimiser remembers is `State.optimizer`, so that a checkpoint
holds it."""

from dataclasses import dataclass
from typing import Protocol

import torch

Memory = dict[str, torch.Tensor]
BETA_2 = 0.99  # section 5.2 of arXiv:2003.00295


class ServerOptimizer(Protocol):
    """How the model moves by an update."""

    def init(self, params: torch.Tensor) -> Memory:
        """What it remembers before the first round."""
        ...

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        """The model after the update, and what to remember next."""
        ...


@dataclass(frozen=True)
class Sgd:
    """x <- x + eta Delta."""

    learning_rate: float = 1.0

    def init(self, params: torch.Tensor) -> Memory:
        return {}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        return params + self.learning_rate * update, {}


@dataclass(frozen=True)
class Momentum:
    """v <- beta v + Delta; x <- x + eta v."""

    learning_rate: float = 1.0
    momentum: float = 0.9

    def init(self, params: torch.Tensor) -> Memory:
        return {"v": torch.zeros_like(params)}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        v = self.momentum * memory["v"] + update
        return params + self.learning_rate * v, {"v": v}


@dataclass(frozen=True)
class Adam:
    """m <- b1 m + (1 - b1) Delta; v <- b2 v + (1 - b2) Delta^2; x <- x + eta m / (sqrt(v) + tau), with v_0 = tau^2."""

    learning_rate: float = 1.0
    momentum: float = 0.9
    adaptivity: float = 1e-3

    def init(self, params: torch.Tensor) -> Memory:
        return {"m": torch.zeros_like(params), "v": torch.full_like(params, self.adaptivity**2)}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        m = self.momentum * memory["m"] + (1 - self.momentum) * update
        v = BETA_2 * memory["v"] + (1 - BETA_2) * update.square()
        moved = params + self.learning_rate * m / (v.sqrt() + self.adaptivity)
        return moved, {"m": m, "v": v}
