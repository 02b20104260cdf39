"""Per-example gradient clipping: the sum of gradients, each scaled to norm at most C.

Source: Abadi et al. 2016, Algorithm 1, arXiv:1607.00133v2. Guarantee: one example more or less changes the sum by at
most C in Euclidean norm, up to float32 rounding. `clipped_sum_slow` says what is computed; `Clipper` computes it as
fast as the model allows.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from tacit import check
from tacit.errors import BadInput, ModelRefused
from tacit.train.flat import blocks
from tacit.train.per_example_check import refuse, settle
from tacit.train.per_example_paths import PATHS, Looped, Path, Unsupported
from tacit.types import Bounded

CHECKED = 3  # examples that a path is checked on
SHOWS_MIXING = 2  # fewer examples cannot show that a model mixes them


def clipped_sum_slow(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, clip: float) -> torch.Tensor:
    """The slow twin: one example at a time, by autograd. Flat, in the order of `flat.blocks`; zeros for frozen parameters."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    places = torch.cat([torch.full(p.shape, p.requires_grad).reshape(-1) for p in model.parameters()])
    total = torch.zeros(len(places), device=x.device)
    for i in range(len(y)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        parts = torch.autograd.grad(loss, trainable, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        total[places] += gradient * min(1.0, clip / gradient.norm())
    return total


def refuse_coarse_products() -> None:
    """Raises: BadInput where torch may round the factors of a product: a sum of clipped gradients could exceed the clip."""
    if torch.get_float32_matmul_precision() != "highest":
        raise BadInput("Call torch.set_float32_matmul_precision('highest'): coarser products can exceed the clip.")


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
        """The cross-entropy, summed over the examples."""
        return float(self.losses.sum())


class Clipper:
    """Sums the clipped per-example gradients of a model's cross-entropy.

    `physical_batch` bounds how many examples are in memory at once. The `path` is "book-keeping" where every trainable
    parameter belongs to a layer with a rule, else "vmap", else "loop"; it is chosen on the first data, where the choice is
    checked against single examples, and `reason` says why a faster one was not taken. Frozen parameters have zeros in the
    sum; what is frozen is read once, here. The model stays as it is: parameters may be changed in place between calls.

    Guarantee: the vector changes by at most `clip` when an example comes or goes, up to float32 rounding.

    Raises: ModelRefused for a model that mixes or remembers examples; BadInput; TrainingDiverged for a gradient without a
    finite norm (an event that depends on the data, so it must not be shown to others).

    >>> clipper = Clipper(nn.Linear(3, 2), clip=1.0)
    >>> bounded, not_private = clipper(torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    >>> bounded.sensitivity, not_private.examples, clipper.path
    (1.0, 5, 'book-keeping')
    """

    def __init__(self, model: nn.Module, *, clip: float, physical_batch: int = 256, path: str | None = None):
        check.positive(clip=clip)
        check.at_least(1, physical_batch=physical_batch)
        if path is not None:
            check.one_of(PATHS, path=path)
        refuse(model)
        self.model, self.clip, self.physical_batch = model, float(clip), int(physical_batch)
        self.path: str | None = None
        self.reason = ""
        self._names = tuple(PATHS) if path is None else (path,)
        self._first = next(model.parameters(), torch.zeros(0))
        self._size = sum(block.stop - block.start for block in blocks(model))
        self._run: Path = Looped(model)
        self._seen = 0
        self._known: set[tuple[int, ...]] = set()

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Bounded, NotPrivate]:
        """The clipped sum over a batch, and what must not be released about it."""
        if len(x) != len(y):
            raise BadInput(f"Expected as many labels as examples, got {len(y)} for {len(x)}.")
        refuse_coarse_products()
        if self._seen < min(len(y), SHOWS_MIXING):
            self._settle(x, y)
        try:
            result = self._sum(x, y)
        except Unsupported as error:
            self.reason = f"{self.path}: {error}"
            self._names = self._names[1:]
            if not self._names:
                raise ModelRefused(f"Do not ask for a path: the model cannot take this one ({self.reason}).") from error
            self._settle(x, y)
            return self(x, y)
        if self._run.orders <= self._known:
            return result
        before = self.path
        self._settle(x, y)
        return result if self.path == before else self(x, y)

    def _settle(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Chooses the path on these examples, never a faster one than before."""
        orders = self._run.orders
        self.path, self._run, reason = settle(self.model, self._names, x[:CHECKED], y[:CHECKED])
        self._names = self._names[self._names.index(self.path) :]
        self.reason = "; ".join(filter(None, (self.reason, reason)))
        self._run.orders |= orders
        self._known = set(self._run.orders)
        self._seen = max(self._seen, min(len(y), CHECKED))

    def _sum(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Bounded, NotPrivate]:
        """The sum over physical batches."""
        vector = torch.zeros(self._size, device=self._first.device)
        found = [
            self._run(x[i : i + self.physical_batch], y[i : i + self.physical_batch], clip=self.clip, out=vector)
            for i in range(0, len(y), self.physical_batch)
        ]
        nothing = (vector.new_zeros(0), vector.new_zeros(0))
        norms, losses = found[0] if len(found) == 1 else map(torch.cat, zip(nothing, *found, strict=True))
        return Bounded(vector, self.clip), NotPrivate(norms, losses, self.clip)
