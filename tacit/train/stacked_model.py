"""A model with one set of parameters for every client: forward passes, gradients and clipped sums of a whole cohort at once.

What runs is the graph that `traced.py` has read, in which every operation keeps examples apart, with its trainable layers replaced
by those of `stacked_layers.py`. Since examples are apart, so are clients. A model that cannot be read so is not stacked.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tacit.losses import Losses
from tacit.train.flat import Block, blocks, trainable
from tacit.train.fresh import fresh
from tacit.train.per_example_paths import Tape, clip_weights, unsupported
from tacit.train.rowwise import Unsupported
from tacit.train.stacked_layers import RULES, STACKED, beginning
from tacit.train.stacked_pool import Pool
from tacit.train.traced import analysed, named_layers, recorded

ALIGNED = 32  # floats: rows of a stack begin at whole cache lines


class Stackable(Protocol):
    """What the steps of a cohort ask of a model: `StackedModel`, or `stacked_vmap.VmappedModel`."""

    blocks: tuple[Block, ...]

    def rows(self, start: torch.Tensor, clients: int) -> torch.Tensor:
        """So many rows of parameters that all begin at `start`."""
        ...

    def cut(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """The parameters of a stack by block."""
        ...

    def gradients(
        self, parts: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> "Gradients":
        """Every client's gradient of its weighted loss."""
        ...

    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Every client's sum of its clipped gradients, and of every row its norm and its loss."""
        ...


class Rows:
    """A stack's parameters as rows of one matrix."""

    blocks: tuple[Block, ...]

    def rows(self, start: torch.Tensor, clients: int) -> torch.Tensor:
        """So many rows that all begin at `start`."""
        size = self.blocks[-1].stop
        return start.new_zeros(clients, -(-size // ALIGNED) * ALIGNED)[:, :size].copy_(start)

    def cut(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """The blocks of a vector or of rows, as views."""
        return [theta[..., block.start : block.stop] for block in self.blocks]


class Layer(nn.Module):
    """A trainable layer of all clients: it is told their parameters before each pass."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer, self.own, self.read = layer, dict[str, torch.Tensor](), torch.zeros(0)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """The output for all clients' rows; what the layer's rule reads is kept until the recorder was told."""
        self.read, out = STACKED[type(self.layer)](self.layer, a, self.own)
        return beginning(out)


class StackedModel(Rows):
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
        layers = {name: module for name, module in model.named_modules() if _trains(module)}
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
    ) -> "Gradients":
        """For each client the gradient of its weighted sum of losses, by parameter; weights and rows are (client, example).

        `parts` are the clients' parameters, one matrix (client, size) for each block.
        """
        own = self._tell(parts)
        with torch.enable_grad():
            losses = self.losses(self.forward(x.flatten(0, 1), Nobody()), y.flatten(0, 1)).view(weights.shape)
            total = (losses * weights).sum()
        found = torch.autograd.grad(total, own, materialize_grads=True)
        return Gradients([gradient.flatten(1) for gradient in found], (losses.detach() * weights).sum(1))

    def clipped_sums(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, *, clip: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each client the sum of g_i min(1, C/|g_i|) over its rows, and of every row its norm and its loss.

        `mask` (client, example) is 0 for rows that fill the batch up, and 1 for the others.

        Guarantee: an example changes its own client's sum alone, and by at most `clip` up to float32 rounding.
        """
        clients, tape = len(theta), Kept(self.layers)
        self._tell(self.cut(theta), trained=False)
        with torch.enable_grad():
            losses = self.losses(tape.run(self.forward, x.flatten(0, 1)), y.flatten(0, 1))
            total = losses.sum()
        found = torch.autograd.grad(total, tape.edges, allow_unused=True) if tape.edges else ()
        sums = torch.zeros_like(self.rows(theta[0], clients))
        with torch.no_grad():
            layers = [layer.layer for layer in self.layers]
            forms = tape.forms(found, len(losses), layers=layers, blocks_of=self.own_blocks, rules=RULES)
            squares = [form.squared_norms() for _, form in forms] or [losses.new_zeros(len(losses))]
            norms = sum(squares[1:], start=squares[0]).sqrt_().view(mask.shape)
            weights = clip_weights(norms, clip) * mask
            for block, form in forms:
                form.add_stacked(weights, sums[:, block.start : block.stop].unflatten(1, block.shape))
        return sums, norms, losses.detach().view(mask.shape)

    def _tell(self, parts: Sequence[torch.Tensor], *, trained: bool = True) -> list[torch.Tensor]:
        """Gives every layer its clients' parameters, as leaves that have gradients if `trained`; in the order of `blocks`."""
        shaped = zip(self.blocks, parts, strict=True)
        own = {block.name: part.unflatten(1, block.shape).detach().requires_grad_(trained) for block, part in shaped}
        for layer, named in zip(self.layers, self.own_blocks, strict=True):
            layer.own = {part: own[block.name] for part, block in named.items()}
        return [own[block.name] for block in self.blocks]


class Gradients:
    """The gradients of all clients, one matrix (client, size) for each parameter, and each client's loss."""

    def __init__(self, blocks: list[torch.Tensor], losses: torch.Tensor):
        self.blocks, self.losses = blocks, losses


class Kept(Tape):
    """A tape of what the layers' rules read, which is what the stacked layers kept."""

    def __init__(self, layers: Sequence[Layer]):
        super().__init__()
        self.layers = layers

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        """Notes one use of a layer."""
        super().record(index, self.layers[index].read, output)
        self.layers[index].read = output.new_zeros(0)


class Nobody:
    """A recorder that keeps nothing."""

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        """Forgets it."""


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))
