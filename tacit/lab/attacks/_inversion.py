"""A model that imprints records on its own update: Fowl et al. 2022, "Robbing the Fed" (arXiv:2110.13057), the sparse variant.

In front of the model that was agreed upon stands a layer of `bins`. All of them measure the same number h.x of a record, and bin i
lets a gradient through only for records between its edges. So its weights' gradient is the sum of d(x) x over them, and its bias'
that of d(x): where a bin has one record, their ratio is that record. What the layer adds to its input is tiny, so that training
goes on as before."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn
from torch.func import functional_call

from tacit.engine.assemble import Parts
from tacit.parts import models
from tacit.training.flat import blocks, trainable

FACTORY = "tacit.lab.attacks._inversion:imprinted"
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


# What noise leaves of a record: its posterior mean under a Gaussian prior from public rows, with the noise as it is
# known.

MOST_PUBLIC = 5000
STRENGTHS = 41  # values of a that are tried
REACH = 4.0  # standard deviations around what the bias shows
RIDGE = 1e-4  # of the mean variance: directions in which no public row differs


@dataclass(frozen=True, eq=False)
class Prior:
    """N(m, S) by the axes of S: `axes` (number, axis) and their variances."""

    mean: np.ndarray = field(repr=False)
    axes: np.ndarray = field(repr=False)
    variances: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, public: torch.Tensor) -> "Prior":
        """Mean and covariance of public rows."""
        rows = public[:MOST_PUBLIC].flatten(1).double().cpu().numpy()
        mean = rows.mean(0)
        variances, axes = np.linalg.eigh((rows - mean).T @ (rows - mean) / max(1, len(rows) - 1))
        return cls(mean, axes, np.maximum(variances, 0) + RIDGE * max(float(variances.mean()), 1e-12))


def posterior_means(
    prior: Prior, weights: np.ndarray, biases: np.ndarray, *, noise_std: float, largest: float, filled: float
) -> tuple[np.ndarray, np.ndarray]:
    """E[x] of every bin, (bin, number), and the log odds that it holds a record at all.

    `largest` bounds |a|, as the clip does; `filled` is the share of bins that hold a record before anything is seen.
    """
    s, y, m = noise_std, weights @ prior.axes, prior.mean @ prior.axes
    low, high = (np.clip(biases + away * s, -largest, largest) for away in (-REACH, REACH))  # u says so much about a
    fits, means = np.empty((STRENGTHS, len(y))), np.empty((STRENGTHS, *y.shape))
    for row, share in enumerate(np.linspace(0, 1, STRENGTHS)):
        a = (low + share * (high - low))[:, None]
        variances = a**2 * prior.variances + s**2
        away = y - a * m
        fits[row] = -0.5 * (away**2 / variances + np.log(variances)).sum(1) - 0.5 * ((biases - a[:, 0]) / s) ** 2
        means[row] = m + a * prior.variances / variances * away
    nothing = -0.5 * (y**2 / s**2 + np.log(s**2)).sum(1) - 0.5 * (biases / s) ** 2
    whole = logsumexp(fits, axis=0)
    before = np.log(np.maximum(high - low, 1e-30) / (2 * largest * STRENGTHS))  # a is anything up to the clip
    odds = whole + before - nothing + np.log(filled / (1 - filled))
    mean = np.einsum("ab,abj->bj", np.exp(fits - whole), means)
    return mean @ prior.axes.T, odds


# Rows whose gradients are those of an update: Geiping et al. 2020, "Inverting Gradients" (arXiv:2003.14053), cosine and
# total variation.

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
