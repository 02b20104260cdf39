"""Many clients at once for a model that cannot be read as a graph: gradients by `torch.func`, one client and example at a time.

Slower than `stacked_model`, and nothing can mix: a gradient is taken of one client's parameters, and a clipped one of one example.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.losses import Losses
from tacit.train.flat import blocks
from tacit.train.fresh import fresh
from tacit.train.per_example import row_norms
from tacit.train.per_example_paths import clip_weights
from tacit.train.stacked_model import Gradients, Rows

MOST_FLOATS = 1 << 29  # 2 GiB of per-example gradients at once


class VmappedModel(Rows):
    """The same questions as `StackedModel`, by `torch.func`. Assumes: `settle` has found that it agrees with single examples."""

    def __init__(self, model: nn.Module, losses: Losses):
        self.model, self.losses, self.blocks = model, losses, blocks(model)

    def gradients(
        self, parts: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> Gradients:
        """For each client the gradient of its weighted sum of losses, and that sum."""
        copied = fresh(self.model)

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (self.losses(functional_call(copied, own, (x,)), y) * w).sum()

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
            found, losses = vmap(grad_and_value(loss), randomness="different")(self._named(parts), x, y, weights)
        return Gradients([found[block.name].flatten(1) for block in self.blocks], losses)

    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each client the sum of g_i min(1, C/|g_i|) over its rows, and of every row its norm and its loss."""
        total, parts = torch.zeros_like(self.rows(theta[0], len(theta))), []

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.losses(functional_call(copied, own, (x[None],)), y[None]).sum()

        per_example = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        whole = len(theta) * sum(parameter.numel() for parameter in self.model.parameters())  # a frozen body counts too
        step = max(1, MOST_FLOATS // whole)
        for some, labels, own in zip(x.split(step, 1), y.split(step, 1), mask.split(step, 1), strict=True):
            copied = fresh(self.model)  # remembers nothing of the part before
            with sdpa_kernel(SDPBackend.MATH):
                found, losses = vmap(per_example, randomness="different")(self._named(self.cut(theta)), some, labels)
            rows = [found[block.name].flatten(2) for block in self.blocks]
            norms = torch.stack([row_norms(row) for row in rows]).square().sum(0).sqrt()
            weights = clip_weights(norms, clip) * own
            for block, row in zip(self.blocks, rows, strict=True):
                total[:, block.start : block.stop] += torch.bmm(weights[:, None], torch.nan_to_num(row))[:, 0]
            parts.append((norms, losses))
        norms, losses = (torch.cat(found, 1) for found in zip(*parts, strict=True))
        return total, norms, losses

    def _named(self, parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            block.name: part.unflatten(1, block.shape).detach() for block, part in zip(self.blocks, parts, strict=True)
        }
