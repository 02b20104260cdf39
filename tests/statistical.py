"""Verdicts on random numbers. Each is used both ways: it must accept what is claimed and reject what is near it."""

import numpy as np
from scipy import stats

DOUBT = 1e-6  # how unlikely an honest sample may look before it is rejected


def has_std(sample, std: float) -> bool:
    """Whether a normal sample of mean zero has this standard deviation (exact chi-square interval)."""
    sample = np.asarray(sample, dtype=float).ravel()
    total = float((sample**2).sum()) / std**2
    return bool(stats.chi2.ppf(DOUBT, len(sample)) < total < stats.chi2.ppf(1 - DOUBT, len(sample)))


def is_normal(sample, std: float) -> bool:
    """Whether a sample is N(0, std^2) in shape as well (Kolmogorov-Smirnov)."""
    return bool(stats.kstest(np.asarray(sample, dtype=float).ravel() / std, "norm").pvalue > DOUBT)


def is_poisson_sampling(batches, *, size: int, rate: float) -> bool:
    """Whether batches of indices take each of `size` records independently with probability `rate`."""
    counts = np.array([len(batch) for batch in batches])
    hits = np.bincount(np.concatenate([np.asarray(b, dtype=int) for b in batches]), minlength=size)
    once = all(len(set(map(int, batch))) == len(batch) for batch in batches)
    steps, spread = len(batches), size * rate * (1 - rate)
    z_mean = (counts.mean() - size * rate) / np.sqrt(spread / steps)
    low, high = stats.chi2.ppf([DOUBT, 1 - DOUBT], steps - 1)
    z_hits = (hits - steps * rate) / np.sqrt(steps * rate * (1 - rate))
    records = stats.chi2.ppf([DOUBT, 1 - DOUBT], size)
    right_spread = low < counts.var(ddof=1) * (steps - 1) / spread < high
    return bool(once and abs(z_mean) < 5 and right_spread and records[0] < (z_hits**2).sum() < records[1])


def has_masses(sample, mass) -> bool:
    """Whether integers follow the mass function (chi-square; cells of fewer than 20 expected join the outermost full one)."""
    sample = np.asarray(sample).ravel()
    reach = int(np.abs(sample).max()) + 60
    expected = np.asarray(mass(np.arange(-reach, reach + 1))) * len(sample)
    first, *_, last = np.flatnonzero(expected >= 20)
    counts = np.bincount(sample + reach, minlength=2 * reach + 1)
    marks = [0, *range(first + 1, last + 1)]
    seen, due = np.add.reduceat(counts, marks), np.add.reduceat(expected, marks)
    return bool(((seen - due) ** 2 / due).sum() < stats.chi2.ppf(1 - DOUBT, len(due) - 1))
