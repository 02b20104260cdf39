"""Per-example gradients in the forms that make them cheap: as factors, as a few table rows, or as they are.

Source: Li et al. 2022 (ghost norms, arXiv:2110.05679v6, sec. 4.1) and Bu et al. 2023 (book-keeping,
arXiv:2210.00038v3). Each form answers two questions: the squared norm of every example's gradient, and the sum of the
gradients under given weights. An example without a finite norm has weight 0; since 0 times infinity is no number, what is not
finite is replaced by what is (`nan_to_num`: a selection, entry by entry) before it meets its weight. That is done in place:
forms own their factors, and the norms are asked before the sums.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nan_to_num
from torch.linalg import vector_norm

FLOAT_COST = 16  # products that one core does while it writes a float to memory and reads it back
KEEP_FLOATS = 1 << 20  # 4 MiB: gradients this small are kept whatever the activations take
KEEP_RATIO = 2  # otherwise kept gradients take at most twice the memory of their factors
PART_FLOATS = 1 << 23  # 32 MiB: more than this is never unfolded at once
ROUNDING = 2.0**-21  # 8 units in the last place: what the sum of a Gram product may lose
PIECE, LONGEST = 512, 4096  # entries whose squares are added up at once
LOST = 2.0**-63  # the square of a smaller entry is flushed to zero, and is missing from its norm

Rows = Callable[[slice], tuple[torch.Tensor, torch.Tensor]]
Arranged = Callable[[torch.Tensor], torch.Tensor]


class Form(Protocol):
    """The gradients of one parameter, one per example."""

    def squared_norms(self) -> torch.Tensor:
        """|g_i|^2 for every example i; asked once, before the sum."""
        ...

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """out += sum_i weights_i g_i, where `out` has the parameter's shape; weight 0 takes out whatever g_i is."""
        ...

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """The same for several clients: weights (client, example), examples client by client, one `out` for each client."""
        ...


class Dense:
    """Gradients (batch, size) as they are: biases and the scales of normalisation layers."""

    def __init__(self, gradients: torch.Tensor):
        self.gradients = gradients

    def squared_norms(self) -> torch.Tensor:
        return row_norms(self.gradients).square()

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.view(-1).addmv_(cleaned(self.gradients).t(), weights)

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(_summed(self.gradients, weights).view_as(out))


class Outer:
    """Gradients d_i a_i^T of a matrix that every example uses once."""

    def __init__(self, a: torch.Tensor, d: torch.Tensor):
        self.a, self.d = a, d

    def squared_norms(self) -> torch.Tensor:
        return (factor_norms(self.a) * factor_norms(self.d)).square_()

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.addmm_((cleaned(self.d) * weights[:, None]).t(), cleaned(self.a))

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        d, a = (cleaned(rows).unflatten(0, weights.shape) for rows in (self.d, self.a))
        out.baddbmm_((d * weights[:, :, None]).mT, a)


class Table:
    """Gradients of an embedding: (batch, time) places in a table, and what is added there. Equal places add up first."""

    def __init__(self, indices: torch.Tensor, gradients: torch.Tensor, *, rows: int):
        batch, time, width = gradients.shape
        first = torch.arange(0, batch * rows, rows, device=indices.device)
        kept = indices.clamp(0, rows - 1)  # a place outside would be another example's
        pairs, where = torch.unique(kept + first[:, None], return_inverse=True)
        self.batch, self.owner, self.row = batch, pairs // rows, pairs % rows
        merged = gradients.new_zeros(len(pairs), width)
        self.merged = merged.index_add_(0, where.view(-1), gradients.reshape(batch * time, width))

    def squared_norms(self) -> torch.Tensor:
        norms = row_norms(self.merged).square()
        return norms.new_zeros(self.batch).index_add_(0, self.owner, norms)

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.index_add_(0, self.row, cleaned(self.merged) * weights[self.owner][:, None])

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        client = self.owner // weights.shape[1]
        added = cleaned(self.merged) * weights.flatten()[self.owner][:, None]
        out.index_put_((client, self.row), added, accumulate=True)


class Product:
    """Gradients sum_t d_t a_t^T, kept as factors: `rows(part)` gives a (examples, time, groups, p) and d (..., q).

    `gradients`, where it is given, is a shorter way to all of them, (batch, groups * q * p). `arranged` gives a sum (groups, q, p)
    the shape of the parameter. Of two ways to the norm the cheaper is taken: the Gram matrices of a and d for few rows of many
    columns, and otherwise the gradients themselves, which are kept for the sum where they are small.
    """

    def __init__(
        self,
        rows: Rows,
        arranged: Arranged,
        *,
        batch: int,
        time: int,
        groups: int,
        p: int,
        q: int,
        gradients: Callable[[], torch.Tensor] | None = None,
    ):
        self.rows, self.arranged, self.batch, self.time = rows, arranged, batch, time
        self.groups, self.p, self.q, self.gradients = groups, p, q, gradients
        self.kept: torch.Tensor | None = None

    def squared_norms(self) -> torch.Tensor:
        if self._keeps() and self._gram_cost() >= FLOAT_COST * self.p * self.q:
            self.kept = self.gradients() if self.gradients else multiplied(*self.rows(slice(None)))
            return row_norms(self.kept).square()
        again = (FLOAT_COST + 2 * self.time) * self.p * self.q
        norms = gram_norms if self._gram_cost() < again else multiplied_norms
        return torch.cat([norms(*self.rows(part)) for part in self._parts()])

    def add_weighted(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        if self.kept is not None:
            out.add_(self.arranged(torch.mv(cleaned(self.kept).t(), weights)))
            return
        for part in self._parts():
            a, d = self.rows(part)
            out.add_(self.arranged(weighted(cleaned(a), cleaned(d) * weights[part, None, None, None])))

    def add_stacked(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        if self.kept is not None:
            out.add_(torch.stack([self.arranged(total) for total in _summed(self.kept, weights)]))
            return
        examples = weights.shape[1]
        each = examples * self.groups * self.time * (self.p + self.q)
        step = max(1, PART_FLOATS // each)  # clients
        for first in range(0, len(weights), step):
            own, into = weights[first : first + step], out[first : first + step]
            a, d = self.rows(slice(first * examples, (first + len(own)) * examples))
            sums = weighted_each(cleaned(a), cleaned(d) * own.reshape(-1, 1, 1, 1), len(own))
            into.add_(torch.stack([self.arranged(total) for total in sums]))

    def _gram_cost(self) -> int:
        return 2 * self.time**2 * (self.p + self.q + FLOAT_COST)

    def _keeps(self) -> bool:
        gradient, factors = self.p * self.q, self.time * (self.p + self.q)
        return self.batch * self.groups * gradient <= KEEP_FLOATS or gradient <= KEEP_RATIO * factors

    def _parts(self) -> list[slice]:
        """The examples in parts whose rows, Gram matrices or gradients fit PART_FLOATS."""
        each = self.groups * (self.time * (self.p + self.q) + min(2 * self.time**2, self.p * self.q))
        step = max(1, PART_FLOATS // each)
        return [slice(start, start + step) for start in range(0, self.batch, step)]


def _summed(gradients: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sums (client, size) of gradients (client x example, size)."""
    return torch.bmm(weights[:, None], cleaned(gradients).unflatten(0, weights.shape))[:, 0]


def cleaned(rows: torch.Tensor) -> torch.Tensor:
    """`nan_to_num`, in place where that can be: a copy would cost more than the selection, and nobody needs the rows again."""
    return rows.nan_to_num_() if rows.is_contiguous() else nan_to_num(rows)


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Norms along the last dimension, of long rows piece by piece: a long sum in float32 loses what is small beside its first part.

    (Of 10^7 entries it lost 2 % of the norm.) A piece and every level above it lose at most 512 units in the last place.
    """
    size = rows.shape[-1]
    if size <= LONGEST:
        return vector_norm(rows, dim=-1)
    whole = size // PIECE * PIECE
    parts = vector_norm(rows[..., :whole].unflatten(-1, (-1, PIECE)), dim=-1)
    return row_norms(torch.cat([parts, rows[..., whole:]], dim=-1))


def factor_norms(rows: torch.Tensor) -> torch.Tensor:
    """Norms along the last dimension, rounded up by what squares below float32 may have lost: the other factor may be huge."""
    return row_norms(rows).add_(LOST * rows.shape[-1] ** 0.5)


def multiplied(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """The gradients (batch, groups * q * p) of their factors."""
    if a.shape[2] == 1:
        return torch.bmm(d[:, :, 0].mT, a[:, :, 0]).flatten(1)
    return (d.permute(0, 2, 3, 1) @ a.transpose(1, 2)).flatten(1)


def weighted(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """The sum of the gradients over the examples."""
    if a.shape[2] == 1:
        return torch.mm(d.reshape(-1, d.shape[3]).t(), a.reshape(-1, a.shape[3]))
    return torch.bmm(d.permute(2, 3, 0, 1).flatten(2), a.permute(2, 0, 1, 3).flatten(1, 2))


def weighted_each(a: torch.Tensor, d: torch.Tensor, clients: int) -> torch.Tensor:
    """The sums (client, groups, q, p) over the examples of each of some clients."""
    d, a = (
        rows.unflatten(0, (clients, -1)).flatten(1, 2).transpose(1, 2) for rows in (d, a)
    )  # (client, groups, row, ...)
    return d.mT @ a


def multiplied_norms(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Squared norms from the gradients, which are thrown away."""
    return row_norms(multiplied(a, d)).square()


def gram_norms(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Squared norms sum_tu (a_t.a_u)(d_t.d_u), rounded up: where the sum cancels, rounding may only clip more, never less."""
    a, d = a.transpose(1, 2), d.transpose(1, 2)
    sums = ((a @ a.mT) * (d @ d.mT)).sum((1, 2, 3))
    a_norms, d_norms = factor_norms(a), factor_norms(d)
    reach = (a_norms * d_norms).sum(-1)  # sum_t |a_t||d_t| >= |g|
    lost = LOST * (a.shape[-1] ** 0.5 * d_norms + d.shape[-1] ** 0.5 * a_norms).sum(
        -1
    )  # products of what a square loses
    return sums + (ROUNDING * reach.square() + lost.square()).sum(-1)
