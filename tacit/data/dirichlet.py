"""Classes split among clients by Dirichlet proportions: small alpha gives each client few classes.

Hsu, Qi, Brown 2019, arXiv:1909.06335; one draw per class over the clients as in Yurochkin et al. 2019,
arXiv:1905.12022, with its smallest size. Where redrawing alone might never end, the largest clients give rows to the
smallest.
"""

import numpy as np

from tacit import check
from tacit.data.shares import Shares, first, grouped
from tacit.errors import BadInput

REDRAWS = 10  # then the nearest draw is repaired, so a partition always ends
TINIEST = 1e-300  # below, log(u)/alpha would overflow; a class belongs to one client long before


def dirichlet(y: np.ndarray, *, clients: int, alpha: float, min_size: int, rng: np.random.Generator) -> Shares:
    """Splits each class by Dir(alpha), drawn anew while a client has too few rows and repaired after the last draw.

    Guarantee: it ends, every row is used once, and no client has fewer than `min_size` rows. Raises: BadInput.
    """
    check.positive(alpha=alpha)
    check.at_least(1, min_size=min_size)
    if clients * min_size > len(y):
        raise BadInput(
            f"{clients} clients with at least {min_size} examples each need {clients * min_size} rows, but there are "
            f"{len(y)}: set min_size to at most {len(y) // clients} or use fewer clients."
        )
    sizes = _class_sizes(np.bincount(y), clients=clients, alpha=alpha, rng=rng)
    for _ in range(REDRAWS):
        if not _shortage(sizes, min_size):
            break
        again = _class_sizes(np.bincount(y), clients=clients, alpha=alpha, rng=rng)
        sizes = min(sizes, again, key=lambda draw: _shortage(draw, min_size))
    rows = rng.permutation(len(y))
    by_class = rows[np.argsort(y[rows], kind="stable")]
    owner = np.empty(len(y), np.int32)
    owner[by_class] = np.concatenate([np.repeat(np.arange(clients, dtype=np.int32), row) for row in sizes])
    return _repaired(owner, clients=clients, min_size=min_size, rng=rng)


def _shortage(sizes: np.ndarray, min_size: int) -> int:
    """How many rows the clients lack to hold `min_size` each."""
    return int(np.maximum(min_size - sizes.sum(axis=0), 0).sum())


def _class_sizes(classes: np.ndarray, *, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """How many rows of each class each client gets, [classes, clients], by proportions ~ Dir(alpha)."""
    sizes = np.empty((len(classes), clients), np.int64)
    for row, rows in zip(sizes, classes, strict=True):
        # Gamma(a) = Gamma(a + 1) u^(1/a), kept as a logarithm: at small alpha the plain draws would all be zero
        log = np.log(rng.standard_gamma(alpha + 1, clients)) + np.log(1 - rng.random(clients)) / max(alpha, TINIEST)
        edges = np.cumsum(np.exp(log - log.max()))
        cuts = np.floor(edges / edges[-1] * rows + 0.5).astype(np.int64)
        row[:] = np.diff(cuts, prepend=0)
    return sizes


def _repaired(owner: np.ndarray, *, clients: int, min_size: int, rng: np.random.Generator) -> Shares:
    """Moves random rows from the largest clients to those below `min_size`."""
    shares = grouped(owner, clients=clients, rng=rng)
    wanted = np.maximum(min_size - shares.sizes, 0)
    if not wanted.any():
        return shares
    _, moved = first(shares, _lowered(shares.sizes, int(wanted.sum())))
    owner[rng.permutation(moved)] = np.repeat(np.arange(clients, dtype=np.int32), wanted)
    return grouped(owner, clients=clients, rng=rng)


def _lowered(sizes: np.ndarray, surplus: int) -> np.ndarray:
    """Sizes after `surplus` rows were taken from the largest, which end at one level (or one above it)."""
    low, high = 0, int(sizes.max())
    while low < high:  # the highest level that frees enough rows
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= surplus else (low, middle - 1)
    lowered = np.minimum(sizes, low)
    spare = int((sizes - lowered).sum()) - surplus
    lowered[np.flatnonzero(sizes > low)[:spare]] += 1
    return lowered
