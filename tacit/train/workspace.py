"""Where one process trains: a model whose trainable parameters are views into one vector, and the loss that trains it."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from tacit.losses import Losses
from tacit.losses.cross_entropy import cross_entropy
from tacit.train.clipping import Clipper
from tacit.train.flat import flatten
from tacit.train.fresh import fresh, hooked
from tacit.train.frozen import frozen, training
from tacit.train.views import Viewed, over_views
from tacit.types import Private, Raw, Shared

OWN_CODE = ("torch.nn.modules.", "tacit.models")  # modules that remember in their buffers at most


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model and its flat trainable parameters `theta`; made once per process and used for every client it trains."""

    model: nn.Module
    theta: torch.Tensor
    clip: float | None
    physical_batch: int
    buffers: tuple[torch.Tensor, ...] = ()
    losses: Losses = cross_entropy
    kept: tuple[
        tuple[torch.Tensor, torch.Tensor], ...
    ] = ()  # frozen parameters that code could write into, as they were

    def forget(self) -> None:
        """Sets buffers and frozen parameters back to what they were, so that no client meets what another one left in them."""
        for buffer, first in zip(self.model.buffers(), self.buffers, strict=True):
            buffer.copy_(first)
        for parameter, first in self.kept:
            if not torch.equal(parameter, first):  # a look is cheap, and leaves memory shared between processes
                parameter.data.copy_(first)

    def forgetful(self) -> nn.Module:
        """The model with these parameters, remembering no client: where its own code could, a copy of it that nobody has used."""
        self.forget()
        return fresh(self.model) if self._could_remember else self.model

    @cached_property
    def _could_remember(self) -> bool:
        """Whether code runs in the model that is neither torch's nor Tacit's: it may keep anything in Python attributes."""
        return could_remember(self.model)

    @cached_property
    def clipped_sum(self) -> Clipper:
        """Sums of clipped per-example gradients; the path is chosen once, on synthetic rows."""
        return self._sums(self.model, self.losses)

    @cached_property
    def viewed_sum(self) -> Clipper:
        """The same for examples (views, ...) that come in several views: clipped is the mean over the views."""
        return self._sums(Viewed(self.model), over_views(self.losses))

    def _sums(self, model: nn.Module, losses: Losses) -> Clipper:
        if self.clip is None:
            raise ValueError("this workspace was made for training without clipping")
        return Clipper(model, clip=self.clip, physical_batch=self.physical_batch, losses=losses)


def workspace(
    model: nn.Module, *, clip: float | None, physical_batch: int, losses: Losses = cross_entropy
) -> Workspace:
    """Prepares a model for training; it is changed in place."""
    training(model)
    buffers = tuple(buffer.detach().clone() for buffer in model.buffers())
    guarded = could_remember(model) or any(map(rescales, model.modules()))
    kept = tuple((p.detach(), p.detach().clone()) for _, p in frozen(model)) if guarded else ()
    return Workspace(model, flatten(model), clip, physical_batch, buffers, losses, kept)


def could_remember(model: nn.Module) -> bool:
    """Whether code runs in a model that is neither torch's nor Tacit's."""
    return any(hooked(m) or not type(m).__module__.startswith(OWN_CODE) for m in model.modules())


def rescales(module: nn.Module) -> bool:
    """Whether it is a table whose rows are made shorter in place when they are looked up."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None


@dataclass(frozen=True)
class Trained:
    """What local training gives: the update, and numbers for the researcher that never leave the simulator."""

    update: Raw | Private | Shared
    info: dict[str, float] = field(default_factory=dict)
