"""Models with one set of parameters for every client: forward passes, gradients and clipped sums of a whole cohort at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.errors import ModelRefused
from tacit.parts.losses import Losses
from tacit.training.clipping import clipped_sum_slow
from tacit.training.flat import Block, blocks, flatten, fresh, trainable
from tacit.training.independence import LARGE, SMALL, Unsupported, analysed, named_layers, recorded
from tacit.training.layers import row_norms, sum_type, summed
from tacit.training.optimizer import full_precision
from tacit.training.per_example import (
    BLOCK_FLOOR,
    TOLERANCE,
    Tape,
    Watched,
    clip_weights,
    drawn,
    norms_of,
    refuse,
    same_chance,
    settle,
    synthetic,
    trains,
    unsupported,
)
from tacit.training.stacked_layers import RULES, STACKED, Pool, beginning

ALIGNED = 32  # floats: rows of a stack begin at whole cache lines


class Stackable(ABC):
    """What the steps of a cohort ask of a model whose parameters are rows (client, parameter) of one matrix."""

    blocks: tuple[Block, ...]

    @abstractmethod
    def gradients(
        self, parts: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> "Gradients":
        """For each client the gradient of its weighted sum of losses, by parameter; weights and rows are (client, example).

        `parts` are the clients' parameters, one matrix (client, size) for each block.
        """

    @abstractmethod
    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each client the sum of g_i min(1, C/|g_i|) over its rows, and of every row its norm and its loss.

        `mask` (client, example) is 0 for rows that fill the batch up, and 1 for the others.
        Guarantee: an example changes its own client's sum alone, and by at most `clip`.
        """

    def rows(self, start: torch.Tensor, clients: int) -> torch.Tensor:
        size = self.blocks[-1].stop
        return start.new_zeros(clients, -(-size // ALIGNED) * ALIGNED)[:, :size].copy_(start)

    def sums(self, theta: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Zeros for the sums of every client's examples."""
        return torch.zeros_like(self.rows(theta[0], len(theta)), dtype=sum_type(theta.device, mask.shape[1]))

    def cut(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """The blocks of a vector or of rows, as views."""
        return [theta[..., block.start : block.stop] for block in self.blocks]


@dataclass(frozen=True)
class Gradients:
    """The gradients of all clients, one matrix (client, size) for each parameter, and each client's loss."""

    blocks: list[torch.Tensor]
    losses: torch.Tensor


class Layer(nn.Module):
    """A trainable layer of all clients: it is told their parameters before each pass."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer, self.own, self.read = layer, dict[str, torch.Tensor](), torch.zeros(0)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.read, out = STACKED[type(self.layer)](self.layer, a, self.own)
        return beginning(out)


class StackedModel(Stackable):
    """The model of many clients. Parameters are rows (client, parameter) of one matrix, as `flat` orders them.

    Guarantee: what a client's row gives depends on that row and on the client's own examples alone, up to rounding.
    Raises: Unsupported with the reason for a model that cannot be stacked.
    """

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        reason = unsupported(model)
        if reason:
            raise Unsupported(reason)
        self.losses, self.blocks = losses, blocks(model)
        block_of = {name: block for (name, _), block in zip(trainable(model), self.blocks, strict=True)}
        layers = {name: module for name, module in model.named_modules() if trains(module)}
        copied = fresh(model)
        for place, module in list(copied.named_modules()):
            if like.is_cuda and getattr(module, "only_for_cpu", False):
                copied.set_submodule(place, nn.Identity())
        for module in copied.modules():  # what stacked layers answer are views, whose history an overwriting would cut
            if getattr(module, "inplace", False) is True:
                module.inplace = False  # type: ignore[assignment]
        root, graph = analysed(copied, like)
        self.layers = [Layer(root.get_submodule(place)) for place in named_layers(layers)]
        for place, layer in zip(named_layers(layers), self.layers, strict=True):
            root.set_submodule(place, layer)
        for place, module in list(root.named_modules()):
            if type(module) is nn.MaxPool2d and Pool.fits(module, like):
                root.set_submodule(place, Pool(module))
        self.own_blocks = [
            {
                part: block_of[f"{name}.{part}".lstrip(".")]
                for part, p in module.named_parameters(recurse=False)
                if p.requires_grad
            }
            for name, module in layers.items()
        ]
        self.forward = recorded(root, graph, {place: k for k, place in enumerate(named_layers(layers))})

    def gradients(
        self, parts: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> Gradients:
        own = self._tell(parts)
        with torch.enable_grad():
            losses = self.losses(self.forward(x.flatten(0, 1), Nobody()), y.flatten(0, 1)).view(weights.shape)
            total = (losses * weights).sum()
        found = torch.autograd.grad(total, own, materialize_grads=True)
        return Gradients([gradient.flatten(1) for gradient in found], (losses.detach() * weights).sum(1))

    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tape = Kept(self.layers)
        self._tell(self.cut(theta), trained=False)
        with torch.enable_grad():
            losses = self.losses(tape.run(self.forward, x.flatten(0, 1)), y.flatten(0, 1))
            total = losses.sum()
        layers = [layer.layer for layer in self.layers]
        forms = tape.forms(total, len(losses), layers=layers, blocks_of=self.own_blocks, rules=RULES)
        sums = self.sums(theta, mask)
        with torch.no_grad():
            norms = norms_of(forms, like=losses).view(mask.shape)
            weights = clip_weights(norms, clip) * mask
            for block, form in forms:
                form.add_stacked(weights, sums[:, block.start : block.stop].unflatten(1, block.shape))
        return sums, norms, losses.detach().view(mask.shape)

    def _tell(self, parts: Sequence[torch.Tensor], *, trained: bool = True) -> list[torch.Tensor]:
        shaped = zip(self.blocks, parts, strict=True)
        own = {block.name: part.unflatten(1, block.shape).detach().requires_grad_(trained) for block, part in shaped}
        for layer, named in zip(self.layers, self.own_blocks, strict=True):
            layer.own = {part: own[block.name] for part, block in named.items()}
        return [own[block.name] for block in self.blocks]


class Kept(Tape):
    """A tape of what the layers' rules read, which is what the stacked layers kept."""

    def __init__(self, layers: Sequence[Layer]):
        super().__init__()
        self.layers = layers

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        super().record(index, self.layers[index].read, output)
        self.layers[index].read = output.new_zeros(0)


class Nobody:
    """A recorder that keeps nothing."""

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        """Forgets it."""


MOST_FLOATS = 1 << 29  # 2 GiB of per-example gradients at once


class VmappedModel(Stackable):
    """For a model that cannot be read as a graph: by `torch.func`. Assumes: `settle` has found it to agree with single examples."""

    def __init__(self, model: nn.Module, losses: Losses):
        self.model, self.losses, self.blocks = model, losses, blocks(model)

    def gradients(
        self, parts: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> Gradients:
        copied = fresh(self.model)

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (self.losses(functional_call(copied, own, (x,)), y) * w).sum()

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
            found, losses = vmap(grad_and_value(loss), randomness="different")(
                self._named(parts), x.contiguous(), y, weights
            )
        return Gradients([found[block.name].flatten(1) for block in self.blocks], losses)

    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total, parts = self.sums(theta, mask), []

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.losses(functional_call(copied, own, (x[None],)), y[None]).sum()

        per_example = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        whole = len(theta) * sum(parameter.numel() for parameter in self.model.parameters())  # a frozen body counts too
        step = max(1, MOST_FLOATS // whole)
        for some, labels, own in zip(x.contiguous().split(step, 1), y.split(step, 1), mask.split(step, 1), strict=True):
            copied = fresh(self.model)  # remembers nothing of the part before
            with sdpa_kernel(SDPBackend.MATH):
                found, losses = vmap(per_example, randomness="different")(self._named(self.cut(theta)), some, labels)
            rows = [found[block.name].flatten(2) for block in self.blocks]
            norms = torch.stack([row_norms(row) for row in rows]).square().sum(0).sqrt()
            weights = clip_weights(norms, clip) * own
            for block, row in zip(self.blocks, rows, strict=True):
                total[:, block.start : block.stop] += summed(row.flatten(0, 1), weights, total.dtype)
            parts.append((norms, losses))
        norms, losses = (torch.cat(found, 1) for found in zip(*parts, strict=True))
        return total, norms, losses

    def _named(self, parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            block.name: part.unflatten(1, block.shape).detach() for block, part in zip(self.blocks, parts, strict=True)
        }


TRIED = 3  # examples
NO_CLIP = 1e30


def stack_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> Stackable:
    """The fastest stack that agrees with single examples; of x and y only shape and type are used. Raises: Unsupported.

    Whole numbers (tokens) are left to graphs alone: `torch.func` would look one that is in no table up in another client's.
    """
    try:
        refuse(model)
        rows, labels = synthetic(model, x, y, count=SMALL + LARGE)
        exact = full_precision(x.device, clipped=False)  # a rounded convolution is not the stack's, which has none
        with exact, same_chance(x.device), drawn(model):
            reason = _difference(model, rows, labels, losses)
        if not reason:
            return StackedModel(model, rows, losses)
        if not x.is_floating_point():
            raise Unsupported(reason)
        name, _, more = settle(model, ("vmap", "loop"), x, y, losses=losses)
        if name == "vmap":
            return VmappedModel(model, losses)
        raise Unsupported(f"{reason}; {more}")
    except ModelRefused as error:
        raise Unsupported(str(error)) from error


def _difference(model: nn.Module, rows: torch.Tensor, labels: torch.Tensor, losses: Losses) -> str:
    try:
        stack, (x, y) = StackedModel(model, rows, losses), (rows[:TRIED], labels[:TRIED])
        with Watched():  # dropout off
            theta = stack.rows(flatten(model), 2)
            a, b, ones = x.expand(2, *x.shape), y.expand(2, *y.shape), torch.ones(2, len(y), device=x.device)
            whole = clipped_sum_slow(model, x.clone(), y, clip=NO_CLIP, losses=losses)
            found = torch.cat(stack.gradients(stack.cut(theta), a, b, ones).blocks, dim=1)
            clip = float(stack.clipped_sums(theta, a, b, ones, clip=NO_CLIP)[1].min()) / 2 or 1.0  # unequal weights
            clipped = clipped_sum_slow(model, x.clone(), y, clip=clip, losses=losses)
            sums = stack.clipped_sums(theta, a, b, ones, clip=clip)[0]
    except ModelRefused:
        raise
    except Exception as error:  # noqa: BLE001 - single examples go through: this path cannot take the model
        return str(error).partition("\n")[0] or type(error).__name__
    for some, alone in ((found, whole), (sums, clipped)):
        for block in stack.blocks:
            part, own = some[:, block.start : block.stop], alone[block.start : block.stop]
            near = TOLERANCE * float(own.norm()) + BLOCK_FLOOR * float(alone.norm())
            if not float((part - own).norm(dim=1).max()) <= near:
                return f"its gradients of {block.name!r} are not those of single examples"
    return ""
