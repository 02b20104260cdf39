"""What noise leaves of a record: its posterior mean under a Gaussian prior from public rows, with the noise as it is known.

An attack that ignores the noise proves little by failing. Here U = a x + N(0, s^2 I) and u = a + N(0, s^2), with s known to
everybody, x ~ N(m, S) as public rows are, and a unknown up to the clip: the mean over a of E[x | U, u, a] = m + a S (a^2 S + s^2
I)^-1 (U - a m).
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import logsumexp

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
