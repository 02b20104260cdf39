"""A model that imprints records on its own update: Fowl et al. 2022, "Robbing the Fed" (arXiv:2110.13057), the sparse variant.

In front of the model that was agreed upon stands a layer of `bins`. All of them measure the same number h.x of a record, and bin i
lets a gradient through only for records between its edges. So its weights' gradient is the sum of d(x) x over them, and its bias'
that of d(x): where a bin has one record, their ratio is that record. What the layer adds to its input is tiny, so that training
goes on as before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit import models
from tacit.train.flat import blocks

FACTORY = "tacit.attacks._imprint:imprinted"
SCALE = 1e-5  # of the measurement in the weights: what the layer adds stays small, and float32 has room for updates
GAIN = 100.0  # how strongly a record's loss pulls at its bin, so that clipping leaves little room for other layers
SEED = 5  # of h: the attacker's own


class Imprint(nn.Module):
    """x + V g(h.x - c): each of the bins passes between its edges, and is level outside."""

    def __init__(self, shape: tuple[int, ...], edges: Sequence[float]):
        super().__init__()
        size, cuts = math.prod(shape), torch.tensor(edges)
        self.first, self.second = nn.Linear(size, len(cuts) - 1), nn.Linear(len(cuts) - 1, size, bias=False)
        self.register_buffer("top", SCALE * cuts.diff())
        signs = torch.randn(size, generator=torch.Generator().manual_seed(SEED + 1)).sign()
        with torch.no_grad():
            self.first.weight.copy_(SCALE * measurement(size).expand(len(cuts) - 1, size))
            self.first.bias.copy_(-SCALE * cuts[:-1])
            self.second.weight.copy_(GAIN * signs[:, None].expand(size, len(cuts) - 1))

    top: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, moved by next to nothing."""
        inside = torch.minimum(self.first(x.flatten(1)).clamp(min=0), self.top)
        return x + self.second(inside).view_as(x)


def imprinted(
    *, input_shape: tuple[int, ...], classes: int, base: str, edges: list[float], options: dict[str, Any] | None = None
) -> nn.Module:
    """The model `base`, with its options, behind the layer."""
    facts: dict[str, Any] = {"input_shape": input_shape, "classes": classes, "seed": SEED}
    return nn.Sequential(Imprint(input_shape, edges), models.build(base, **facts, options=options))


def measurement(size: int) -> torch.Tensor:
    """h: a direction of norm 1."""
    h = torch.randn(size, generator=torch.Generator().manual_seed(SEED))
    return h / h.norm()


def edges_of(public: torch.Tensor, bins: int) -> list[float]:
    """Edges between which public rows fall equally often; beyond the outermost nothing is let through."""
    measured = (public.flatten(1).double().cpu() @ measurement(public[0].numel()).double()).numpy()
    cuts = np.quantile(measured, np.linspace(0, 1, bins + 1))
    width = max(float(cuts[-1] - cuts[0]), 1e-6)
    cuts = np.maximum.accumulate(cuts + 1e-9 * width * np.arange(bins + 1))  # equal rows leave no empty bin
    cuts[0] -= width
    cuts[-1] += width
    return cuts.tolist()


@dataclass(frozen=True, eq=False)
class Imprints:
    """What a bin's weights and bias have moved by, the sign turned: a x and a, each with noise of deviation `noise_std`."""

    weights: np.ndarray = field(repr=False)
    biases: np.ndarray = field(repr=False)
    noise_std: float

    @classmethod
    def of(cls, model: nn.Module, update: torch.Tensor, noise_std: float) -> "Imprints":
        """Read off the update of an imprinted model."""
        found = {block.name: block.of(update).double().numpy() for block in blocks(model)}
        return cls(-found["0.first.weight"], -found["0.first.bias"], noise_std)

    def ratios(self) -> np.ndarray:
        """The record of each bin that has any, (bin, number): exact where there is no noise and the bin has one."""
        used = np.abs(self.biases) > 0
        return self.weights[used] / self.biases[used, None]
