"""`robust`: weights from an estimate of each client's noise, so that a client that lies about its epsilon gains nothing.
Source: Malekmohammadi, Yu, Cao 2024 (Robust-HDP, arXiv:2406.03519): split the matrix of updates M into low rank L plus noise S
by robust PCA and weigh client i by 1/|S_i|^2. Principal component pursuit by inexact augmented Lagrangians (Lin, Chen, Ma 2010,
arXiv:1009.5055), with the singular value step taken through the n x n Gram matrix; anew each round. Sees: rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit.algorithms import Applied, Memory, Rule, weighted_sum
from tacit.algorithms.rules import rows_of
from tacit.types import Message

ITERATIONS = 40
GROWTH = 1.5  # of the penalty; the authors' choice
CLOSE = 1e-6  # relative residual that ends the pursuit
FLOOR = 1e-12  # of the largest noise: a client without any noise must not divide by zero


@dataclass(frozen=True)
class robust(Rule):
    """The sum of update_i/|S_i|^2 over the sum of 1/|S_i|^2. Guarantee: nothing that a client states is believed; a client
    weighs by how far its update is from what all have in common. Assumes: every update carries noise, as under local DP: one of
    zeros would count nearly alone. Neither is it a defence against clients that lie alike."""

    sees = "rows"
    needs = ()

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        rows = rows_of(messages)
        noise = sparse_part(rows).square().sum(1)
        noise = noise.clamp(min=max(float(noise.max()) * FLOOR, 1e-300))
        total, weight = weighted_sum(zip((noise.min() / noise).tolist(), rows, strict=True))
        return Applied(total / weight, memory, {"noise_ratio": float((noise.max() / noise.min()).sqrt())})


def sparse_part(rows: torch.Tensor) -> torch.Tensor:
    """S of rows = L + S, minimising |L|_* + lambda |S|_1 with lambda = 1/sqrt(max(n, d)), in double precision.
    A single row, or rows of zeros, have nothing in common with others and come back as they are."""
    m = rows.double()
    if len(m) == 1 or not m.any():
        return m
    penalty_weight = max(m.shape) ** -0.5
    spectral = torch.linalg.eigvalsh(m @ m.T)[-1].sqrt()
    y = m / max(spectral, m.abs().max() / penalty_weight)
    low, s, mu = torch.zeros_like(m), torch.zeros_like(m), 1.25 / spectral
    for _ in range(ITERATIONS):
        low = _shrink_singular(m - s + y / mu, 1 / mu)
        rest = m - low + y / mu
        s = rest.sign() * (rest.abs() - penalty_weight / mu).clamp(min=0)
        gap = m - low - s
        y = y + mu * gap
        mu = mu * GROWTH
        if gap.norm() <= CLOSE * m.norm():
            break
    return m - low


def _shrink_singular(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    values, u = torch.linalg.eigh(x @ x.T)
    s = values.clamp(min=0).sqrt()
    scale = torch.where(s > by, 1 - by / s.clamp(min=1e-300), torch.zeros_like(s))
    return (u * scale) @ (u.T @ x)  # U diag(max(s - by, 0)/s) U^T x
