"""Three ways to add up clipped per-example gradients: book-keeping, vmap, and a loop over examples.

Each is called with a batch and adds sum_i min(1, C / |g_i|) g_i to `out`. The last two take the gradient of one example
at a time by construction, whatever the model does; the first is right for models whose every parameter is used by a
layer with a rule, which `per_example_check.py` verifies on data.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.errors import TrainingDiverged
from tacit.train.flat import Block, blocks, views
from tacit.train.layers import RULES
from tacit.train.per_example import PART_FLOATS, Form

Result = tuple[torch.Tensor, torch.Tensor]  # norms and losses, one per example


class Unsupported(RuntimeError):
    """Says why a path cannot take this model; the next one is tried."""


class Path(Protocol):
    """A way to the sum of clipped gradients. `orders` are the sequences of layer calls it has seen, where that matters."""

    orders: set[tuple[int, ...]]

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result: ...


def example_losses(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per example; an example with several targets counts their mean."""
    losses = F.cross_entropy(logits, y, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def example_gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat gradient of one example, given as a batch of one, and its loss. Frozen parameters have zeros."""
    with torch.enable_grad():
        loss = example_losses(model(x), y).sum()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = iter(torch.autograd.grad(loss, trainable, materialize_grads=True) if trainable else ())
    parts = [
        next(found) if parameter.requires_grad else torch.zeros_like(parameter) for parameter in model.parameters()
    ]
    return torch.cat([part.to_dense().reshape(-1) for part in parts]), loss.detach()


def clip_weights(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """min(1, C / |g_i|). Raises: TrainingDiverged when a norm is not finite, before anything is added."""
    if not math.isfinite(norms.sum().item()):
        count = int((~norms.isfinite()).sum())
        raise TrainingDiverged(f"{count} of {len(norms)} examples have a gradient without a finite norm.")
    return (clip / norms).clamp_(max=1.0)


class BookKeeping:
    """One forward pass, one backward pass to the outputs of the layers, one product per parameter."""

    def __init__(self, model: nn.Module):
        reason = unsupported(model)
        if reason:
            raise Unsupported(reason)
        self.model, self.orders = model, set[tuple[int, ...]]()
        self.layers = [module for module in model.modules() if _trainable(module)]
        place = {id(parameter): block for parameter, block in zip(model.parameters(), blocks(model), strict=True)}
        self.places = [
            {name: place[id(p)] for name, p in layer.named_parameters(recurse=False) if p.requires_grad}
            for layer in self.layers
        ]

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        tape = Tape()
        with torch.enable_grad():
            losses = example_losses(tape.run(self.model, self.layers, x, batch=len(y)), y)
            total = losses.sum()  # given the outputs' gradients instead, torch imports sympy: 32 MB in every site
        self.orders.add((self.model.training, *tape.order))
        found = torch.autograd.grad(total, tape.edges, allow_unused=True) if tape.edges else ()
        with torch.no_grad():
            forms = self._forms(tape, found, len(y))
            norms = sum((form.squared_norms() for _, form in forms), start=out.new_zeros(len(y))).sqrt_()
            weights = clip_weights(norms, clip)
            for block, form in forms:
                form.add_weighted(weights, out[block.start : block.stop].view(block.shape))
        return norms, losses.detach()

    def _forms(self, tape: "Tape", found: tuple[torch.Tensor | None, ...], batch: int) -> list[tuple[Block, Form]]:
        """The gradients of every trainable parameter that was used, in the form its layer's rule gives them."""
        uses: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for index, a, d in zip(tape.order, tape.inputs, found, strict=True):
            if d is not None:
                uses.setdefault(index, []).append((a, d))
        return [
            (self.places[index][name], form)
            for index, pairs in uses.items()
            for name, form in RULES[type(self.layers[index])](self.layers[index], pairs, batch).items()
            if name in self.places[index]
        ]


class Tape:
    """What the layers of one forward pass read, and where the gradients of their outputs will arrive.

    A gradient edge belongs to the layer's own output even if a later operation overwrites it in place. An input that is
    overwritten after the layer read it is lost, and shows in its version counter.
    """

    def __init__(self) -> None:
        self.order: list[int] = []
        self.inputs: list[torch.Tensor] = []
        self.versions: list[int] = []
        self.edges: list[GradientEdge] = []

    def run(self, model: nn.Module, layers: list[nn.Module], x: torch.Tensor, *, batch: int) -> torch.Tensor:
        """The model's output. Hooks live for this call only: the model can be copied, saved and evaluated as ever."""
        hooks = [
            layer.register_forward_hook(self._record(index, batch), prepend=True) for index, layer in enumerate(layers)
        ]
        try:
            logits = model(x)
        finally:
            for hook in hooks:
                hook.remove()
        if any(a._version != version for a, version in zip(self.inputs, self.versions, strict=True)):
            raise Unsupported("an operation overwrites in place what a layer has read")
        return logits

    def _record(self, index: int, batch: int) -> Callable[[nn.Module, tuple, torch.Tensor], None]:
        def record(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
            if not output.requires_grad:
                return
            if len(args) != 1 or args[0].dim() == 0 or args[0].shape[0] % batch or output.shape[0] % batch:
                raise Unsupported(f"a {type(module).__name__} is not called with one batch of examples")
            self.order.append(index)
            self.inputs.append(args[0])
            self.versions.append(args[0]._version)
            self.edges.append(get_gradient_edge(output))

        return record


class Vmapped:
    """One gradient per example at once, by `torch.func`; as many examples at a time as memory allows."""

    def __init__(self, model: nn.Module):
        self.model, self.orders = model, set[tuple[int, ...]]()
        layout = blocks(model)
        self.layout = tuple(b for b, p in zip(layout, model.parameters(), strict=True) if p.requires_grad)
        self.step = max(1, PART_FLOATS // max(1, sum(block.stop - block.start for block in self.layout)))
        per_example = torch.func.grad_and_value(self._loss)
        self.gradients = torch.func.vmap(per_example, in_dims=(None, 0, 0), randomness="different")

    def _loss(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return example_losses(torch.func.functional_call(self.model, parameters, (x[None],)), y[None]).sum()

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        named = dict(self.model.named_parameters())
        parameters = {block.name: named[block.name].detach() for block in self.layout}
        parts = [
            self._part(parameters, x[i : i + self.step], y[i : i + self.step], clip, out)
            for i in range(0, len(y), self.step)
        ]
        norms, losses = zip(*parts, strict=True)
        return torch.cat(norms), torch.cat(losses)

    def _part(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, clip: float, out: torch.Tensor
    ) -> Result:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
            found, losses = self.gradients(parameters, x, y)
        rows = [found[block.name].flatten(1) for block in self.layout]
        norms = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).square().sum(0).sqrt()
        weights = clip_weights(norms, clip)
        for view, row in zip(views(out, self.layout), rows, strict=True):
            view.view(-1).addmv_(row.t(), weights)
        return norms, losses


class Looped:
    """One example after the other: always right, for models that nothing else can take."""

    def __init__(self, model: nn.Module):
        self.model, self.orders = model, set[tuple[int, ...]]()

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        norms, losses = [], []
        for i in range(len(y)):
            gradient, loss = example_gradient(self.model, x[i : i + 1], y[i : i + 1])
            norms.append(torch.linalg.vector_norm(gradient))
            losses.append(loss)
            out.add_(gradient * clip_weights(norms[-1][None], clip))
        return torch.stack(norms), torch.stack(losses)


PATHS: dict[str, Callable[[nn.Module], Path]] = {"book-keeping": BookKeeping, "vmap": Vmapped, "loop": Looped}


def unsupported(model: nn.Module) -> str:
    """Why book-keeping cannot take the model, or nothing."""
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            place = f"{name}.{parameter_name}".lstrip(".")
            if not parameter.requires_grad:
                continue
            if type(module) not in RULES or parameter_name not in ("weight", "bias"):
                return f"{place!r} belongs to a {type(module).__name__}, which has no rule"
            if id(parameter) in owner:
                return f"{place!r} is the same parameter as {owner[id(parameter)]!r}"
            owner[id(parameter)] = place
    return ""


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
