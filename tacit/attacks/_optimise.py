"""Rows whose gradients are those of an update: Geiping et al. 2020, "Inverting Gradients" (arXiv:2003.14053), cosine and total
variation.

With noise of a known deviation s the cosine says little; then the most probable rows are looked for, under a Gaussian prior from
public rows: |u - f(x)|^2/(2 s^2) + (x - m)^T S^-1 (x - m)/2, where f is what the client computes, clip included. Labels are taken
as known.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call

from tacit.attacks._posterior import Prior
from tacit.build.parts import Parts
from tacit.train.flat import blocks, trainable

STEP = 0.05  # of Adam, in units of the data's range
VARIATION = 1e-3  # the weight of total variation


@dataclass(frozen=True, eq=False)
class Sent:
    """An update that a client sent after one step, the noise on it, and what was agreed upon: rate and clip (None: no clip)."""

    update: torch.Tensor
    noise_std: float
    rate: float
    clip: float | None


def inverted(parts: Parts, sent: Sent, y: torch.Tensor, prior: Prior, *, steps: int, seed: int) -> np.ndarray:
    """The rows found, (row, number)."""
    shape = (len(y), *parts.dataset.x.shape[1:])
    known = parts.dataset.test_x
    low, high = float(known.min()), float(known.max())
    mean = torch.from_numpy(prior.mean).float().view(shape[1:])
    x = mean.expand(shape).clone()
    x += 0.1 * (high - low) * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x.requires_grad_()
    judged = _probable(parts, sent, y, prior) if sent.noise_std else _aligned(parts, sent, y)
    optimiser = torch.optim.Adam([x], lr=STEP * (high - low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        (x.grad,) = torch.autograd.grad(judged(x), x)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach().flatten(1).double().numpy()


def _aligned(parts: Parts, sent: Sent, y: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def judged(x: torch.Tensor) -> torch.Tensor:
        made = _update(parts, sent, x, y)
        cosine = (made * sent.update).sum() / (made.norm() * sent.update.norm()).clamp_min(1e-30)
        return 1 - cosine + VARIATION * variation(x)

    return judged


def _probable(parts: Parts, sent: Sent, y: torch.Tensor, prior: Prior) -> Callable[[torch.Tensor], torch.Tensor]:
    mean, axes, variances = (torch.from_numpy(part).float() for part in (prior.mean, prior.axes, prior.variances))

    def judged(x: torch.Tensor) -> torch.Tensor:
        away = (_update(parts, sent, x, y) - sent.update).square().sum() / (2 * sent.noise_std**2)
        return away + 0.5 * (((x.flatten(1) - mean) @ axes).square() / variances).sum()

    return judged


def _update(parts: Parts, sent: Sent, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What a client with these rows would send without noise: one step on all of them, each clipped; differentiable."""
    model, layout = parts.model, blocks(parts.model)
    theta = parts.params.detach().clone().requires_grad_()
    weights = {name: block.of(theta) for (name, _), block in zip(trainable(model), layout, strict=True)}
    losses = parts.losses(functional_call(model, weights, (x,)), y)
    if sent.clip is None:
        (total,) = torch.autograd.grad(losses.sum(), theta, create_graph=True)
    else:
        rows = [torch.autograd.grad(loss, theta, create_graph=True)[0] for loss in losses]
        total = sum(g * (sent.clip / g.norm().clamp_min(1e-30)).clamp(max=1.0) for g in rows)
    return -sent.rate / len(y) * torch.as_tensor(total)


def variation(x: torch.Tensor) -> torch.Tensor:
    """The mean difference of neighbouring pixels; of rows that are no pictures, nothing.

    >>> variation(torch.zeros(1, 1, 4, 4)), variation(torch.ones(2, 3))
    (tensor(0.), tensor(0.))
    """
    if x.dim() != 4:
        return torch.zeros(())
    return x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()
