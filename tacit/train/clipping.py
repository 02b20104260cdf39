"""Per-example gradient clipping: the sum of gradients, each scaled to norm at most C.

Source: Abadi et al. 2016, Algorithm 1, arXiv:1607.00133v2. Guarantee: one example more or less changes the sum by at
most C in Euclidean norm, up to float32 rounding. `clipped_sum_slow` says what is computed; `Clipper` computes it as
fast as the model allows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from tacit import check
from tacit.errors import BadInput
from tacit.losses import Losses
from tacit.losses.cross_entropy import cross_entropy
from tacit.train.flat import blocks, trainable
from tacit.train.per_example_check import refuse, settle
from tacit.train.per_example_paths import OUT_OF_MEMORY, PATHS, Looped, Path
from tacit.train.precision import full_precision
from tacit.types import Bounded

SMALLEST = (
    1e-12  # of a clip: entries whose squares leave float32, below 2^-63, are missing from a norm: 1e-16 of 10^6 of them
)
PROBED = 32  # examples that a path without a proof is tried with at once, where a physical batch holds so many

Public = tuple[torch.Size, torch.dtype, torch.Size, torch.dtype, bool]  # what a choice may depend on


def clipped_sum_slow(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, clip: float, losses: Losses = cross_entropy
) -> torch.Tensor:
    """The slow twin: one example at a time, by autograd. Flat, in the order of `flat.blocks`."""
    parameters = [parameter for _, parameter in trainable(model)]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), device=x.device)
    for i in range(len(y)):
        loss = losses(model(x[i : i + 1]), y[i : i + 1])[0]
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norm = gradient.norm()
        total += torch.where(norm.isfinite(), gradient * (clip / norm).clamp(max=1.0), 0.0)
    return total


@dataclass(frozen=True)
class NotPrivate:
    """What the researcher may look at and nobody may release: exact facts about the examples of a batch."""

    norms: torch.Tensor = field(repr=False)
    losses: torch.Tensor = field(repr=False)
    clip: float

    @property
    def examples(self) -> int:
        """How many examples the batch had."""
        return len(self.norms)

    @property
    def fraction_clipped(self) -> float:
        """The fraction of examples whose gradient was longer than the clip; 0 for an empty batch."""
        return float((self.norms > self.clip).float().mean()) if self.examples else 0.0

    @property
    def loss_sum(self) -> float:
        """The loss, summed over the examples that have one."""
        return float(self.losses.nan_to_num(0.0, 0.0, 0.0).sum())


class Clipper:
    """Sums the clipped per-example gradients of a model's loss; `losses` gives one number per example.

    `physical_batch` bounds how many examples are in memory at once. The `path` is "book-keeping" where every operation is known to
    keep examples apart and every trainable parameter belongs to a layer with a rule, else "vmap", else "loop"; it is chosen on
    synthetic rows of the first data's shape and type, and `reason` says why a faster one was not taken. Frozen parameters have
    no part in the sum; what is frozen, and on "book-keeping" what the model computes, is read once. The model stays as it is:
    parameters may be changed in place between calls. A caller who can give the rows `again` saves a copy: x is then written into.

    Guarantee: the vector changes by at most `clip` when an example comes or goes, up to float32 rounding, whatever the example and
    the parameters: a gradient without a finite norm counts as zero. Nothing that is raised depends on values in x and y.

    Raises: ModelRefused for a model that mixes or remembers examples; BadInput.

    >>> clipper = Clipper(nn.Linear(3, 2), clip=1.0)
    >>> bounded, not_private = clipper(torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    >>> bounded.sensitivity, not_private.examples, clipper.path
    (1.0, 5, 'book-keeping')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clip: float,
        physical_batch: int = 256,
        path: str | None = None,
        losses: Losses = cross_entropy,
    ):
        check.positive(clip=clip)
        check.at_least(SMALLEST, clip=clip)
        check.at_least(1, physical_batch=physical_batch)
        if path is not None:
            check.one_of(PATHS, path=path)
        refuse(model)
        self.model, self.clip, self.physical_batch = model, float(clip), int(physical_batch)
        self.path: str | None = None
        self.reason, self.losses = "", losses
        self._names = tuple(PATHS) if path is None else (path,)
        self._first = next(model.parameters(), torch.zeros(0))
        self._size = sum(block.stop - block.start for block in blocks(model))
        self._settled: dict[Public, tuple[str, Path, str]] = {}

    def __call__(
        self, x: torch.Tensor, y: torch.Tensor, *, again: Callable[[], torch.Tensor] | None = None
    ) -> tuple[Bounded, NotPrivate]:
        """The clipped sum over a batch, and what must not be released about it."""
        if len(x) != len(y):
            raise BadInput(f"Expected as many labels as examples, got {len(y)} for {len(x)}.")
        with full_precision(x.device):
            path = self._path(x, y)
            try:
                return self._sum(path, x if again else x.clone(), y)
            except OUT_OF_MEMORY:
                raise
            except Exception:  # noqa: BLE001 - rows of this shape went through, so that it depends on values: no word about it
                return self._sum(
                    Looped(self.model, x, self.losses), again() if again else x, y
                )  # not the rows that were written into

    def _path(self, x: torch.Tensor, y: torch.Tensor) -> Path:
        """The path for such examples, chosen once from what is public about them."""
        public = (x.shape[1:], x.dtype, y.shape[1:], y.dtype, self.model.training)
        if public not in self._settled:
            most = min(self.physical_batch, PROBED)
            self._settled[public] = settle(self.model, self._names, x, y, losses=self.losses, most=most)
        self.path, path, self.reason = self._settled[public]
        return path

    def _sum(self, path: Path, x: torch.Tensor, y: torch.Tensor) -> tuple[Bounded, NotPrivate]:
        """The sum over physical batches; of more than one in float64, which the noise makes float32 again."""
        vector = torch.zeros(self._size, device=self._first.device)
        if 0 < len(y) <= self.physical_batch:
            return Bounded(vector, self.clip), NotPrivate(*path(x, y, clip=self.clip, out=vector), self.clip)
        # of many batches float32 would round the sum by nearly what an example weighs; MPS has nothing else
        found, total = [], vector.clone() if vector.device.type == "mps" or not len(y) else vector.double()
        for i in range(0, len(y), self.physical_batch):
            part = slice(i, i + self.physical_batch)
            found.append(path(x[part], y[part], clip=self.clip, out=vector.zero_()))
            total.add_(vector)
        nothing = (vector.new_zeros(0), vector.new_zeros(0))
        norms, losses = map(torch.cat, zip(nothing, *found, strict=True))
        return Bounded(total, self.clip), NotPrivate(norms, losses, self.clip)
