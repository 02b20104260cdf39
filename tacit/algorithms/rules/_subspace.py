"""The top-k subspace of a few long vectors, exactly, from their Gram matrix: O(n^2 d), never a d x d matrix.

For rows X (n x d), centred by mu or not, X X^T = U S^2 U^T gives V = X^T U / S. Nothing as long as V is kept:
projecting x needs X x and X^T a only, so the memory is the rows themselves and the result. Directions whose singular
value is rounding are dropped, so a rank above that of the rows lets no noise in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

CHUNK = 1 << 14  # columns at a time in double precision
CHUNK_ON_DEVICE = 1 << 20
NEGLIGIBLE = 1e-10  # of the largest eigenvalue: float32 rows carry no more


@dataclass(frozen=True, eq=False)
class Subspace:
    """The top directions of the rows of one block of coordinates, written as V = (X - mu)^T mix: never as long as V.

    >>> line = subspace([torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0])], rank=1, centred=False)
    >>> line.point(line.coordinates(torch.tensor([5.0, 7.0]))).round(decimals=3)
    tensor([5., 0.])
    """

    rows: Sequence[torch.Tensor] = field(repr=False)
    centre: torch.Tensor | None = field(repr=False)
    mix: torch.Tensor = field(repr=False)  # (n, k): V = (X - mu)^T mix

    def coordinates(self, x: torch.Tensor) -> torch.Tensor:
        """V^T (x - mu), in double precision, on the CPU."""
        inner = torch.stack([_dot(row, x, self.centre) for row in self.rows])
        if self.centre is not None:
            inner = inner - _dot(self.centre, x, self.centre)
        return self.mix.T @ inner

    def point(self, coordinates: torch.Tensor) -> torch.Tensor:
        """V c + mu, in the rows' own precision: with `coordinates` the orthogonal projection of x onto mu + span V."""
        weights = (self.mix @ coordinates).tolist()
        total = torch.zeros_like(self.rows[0])
        for weight, row in zip(weights, self.rows, strict=True):
            total.add_(row, alpha=weight)
        return total if self.centre is None else total.add_(self.centre, alpha=1 - sum(weights))

    def basis(self) -> torch.Tensor:
        """V itself, (d, k), as long as k models: only for clients who have to project by themselves (`pfa-plus`)."""
        basis = torch.zeros(len(self.rows[0]), self.mix.shape[1], device=self.rows[0].device)
        mix = self.mix.float().to(basis.device)
        for weights, row in zip(mix, self.rows, strict=True):
            basis.add_(row[:, None] * weights)
        return basis if self.centre is None else basis.sub_(self.centre[:, None] * mix.sum(0))


def subspace(rows: Sequence[torch.Tensor], *, rank: int, centred: bool) -> Subspace:
    """The top `rank` directions of the rows, around their mean if `centred`; fewer if the rows have fewer.

    Guarantee: the columns of V are orthonormal and span the directions of the largest singular values; directions whose
    squared singular value is below NEGLIGIBLE of the largest are dropped.

    Assumes: at least one row, all of one length. They are kept and not copied.
    """
    n = len(rows)
    gram, step = torch.zeros(n, n, dtype=torch.float64, device=rows[0].device), _chunk(rows[0])
    for start in range(0, len(rows[0]), step):
        part = torch.stack([row[start : start + step] for row in rows]).double()
        gram += part @ part.T
    gram, centre = gram.cpu(), None
    if centred:
        centre = torch.stack(list(rows)).mean(0) if n * len(rows[0]) <= CHUNK else _mean(rows)
        away = torch.eye(n, dtype=torch.float64) - 1.0 / n
        gram = away @ gram @ away
    values, vectors = torch.linalg.eigh(gram)
    order = torch.argsort(values, descending=True)[:rank]
    order = order[values[order] > max(NEGLIGIBLE * float(values.max()), 1e-300)]
    return Subspace(rows, centre, vectors[:, order] / values[order].sqrt())


def _chunk(row: torch.Tensor) -> int:
    """How many columns are taken at a time: on a device enough to keep it busy."""
    return CHUNK_ON_DEVICE if row.is_cuda else CHUNK


def _mean(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(rows[0])
    for row in rows:
        total.add_(row, alpha=1 / len(rows))
    return total


def _dot(a: torch.Tensor, b: torch.Tensor, centre: torch.Tensor | None) -> torch.Tensor:
    """a . (b - centre), with an error that does not grow with the length, and nothing as long as b made on the way."""
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    step = _chunk(a)
    for part in (slice(i, i + step) for i in range(0, len(a), step)):
        away = b[part].double() if centre is None else b[part].double() - centre[part]
        total += a[part].double() @ away
    return total.cpu()
