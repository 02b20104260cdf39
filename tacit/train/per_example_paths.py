"""Three ways to add up clipped per-example gradients: book-keeping, vmap, and a loop over examples.

Each is called with a batch and adds sum_i min(1, C / |g_i|) g_i to `out`, where a gradient without a finite norm counts as zero.
None can mix examples or remember them: the first runs a graph of operations that keep them apart (`traced.py`), the others take the
gradient of one example at a time, of a model that is copied before each use (`fresh.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.losses import Losses
from tacit.losses.cross_entropy import cross_entropy
from tacit.train.flat import Block, blocks, trainable, views
from tacit.train.fresh import fresh, twin
from tacit.train.layers import RULES, Rule
from tacit.train.per_example import PART_FLOATS, Form, row_norms
from tacit.train.rowwise import Unsupported
from tacit.train.traced import Forward, traced

Result = tuple[torch.Tensor, torch.Tensor]  # norms and losses, one per example
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)  # of the machine, not of an example


class Path(Protocol):
    """A way to the sum of clipped gradients."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result: ...


def example_gradient(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses = cross_entropy
) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat gradient of one example, given as a batch of one, and its loss."""
    with torch.enable_grad():
        loss = losses(model(x), y).sum()
    parameters = [parameter for _, parameter in trainable(model)]
    parts = torch.autograd.grad(loss, parameters, materialize_grads=True) if parameters else ()
    flat = [part.to_dense().reshape(-1) for part in parts] or [loss.new_zeros(0)]
    return torch.cat(flat), loss.detach()


def clip_weights(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """min(1, C / |g_i|), and 0 where the norm is infinite or no number."""
    return norms.reciprocal().mul_(clip).clamp_(max=1.0).nan_to_num_(nan=0.0)


class BookKeeping:
    """One forward pass, one backward pass to the outputs of the layers, one product per parameter."""

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        self.losses, reason = losses, unsupported(model)
        if reason:
            raise Unsupported(reason)
        self.layers = [module for module in model.modules() if _trainable(module)]
        self.forward = traced(model, self.layers, like)
        block_of = {id(p): block for (_, p), block in zip(trainable(model), blocks(model), strict=True)}
        self.blocks_of = [
            {name: block_of[id(p)] for name, p in layer.named_parameters(recurse=False) if p.requires_grad}
            for layer in self.layers
        ]

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        tape = Tape()
        with torch.enable_grad():
            losses = self.losses(tape.run(self.forward, x), y)
            total = losses.sum()  # given the outputs' gradients instead, torch imports sympy: 32 MB in every site
        found = torch.autograd.grad(total, tape.edges, allow_unused=True) if tape.edges else ()
        with torch.no_grad():
            forms = tape.forms(found, len(y), layers=self.layers, blocks_of=self.blocks_of, rules=RULES)
            squares = [form.squared_norms() for _, form in forms] or [out.new_zeros(len(y))]
            norms = sum(squares[1:], start=squares[0]).sqrt_()
            weights = clip_weights(norms, clip)
            for block, form in forms:
                form.add_weighted(weights, block.of(out))
        return norms, losses.detach()


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

    def run(self, forward: Forward, x: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        logits = forward(x, self)
        if any(a._version != version for a, version in zip(self.inputs, self.versions, strict=True)):
            raise Unsupported("an operation overwrites in place what a layer has read")
        return logits

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        """Notes one use of a layer."""
        if output.requires_grad:
            self.order.append(index)
            self.inputs.append(a)
            self.versions.append(a._version)
            self.edges.append(get_gradient_edge(output))

    def forms(
        self,
        found: Sequence[torch.Tensor | None],
        batch: int,
        *,
        layers: Sequence[nn.Module],
        blocks_of: Sequence[Mapping[str, Block]],
        rules: Mapping[type[nn.Module], Rule],
    ) -> list[tuple[Block, Form]]:
        """The gradients of every trainable parameter that was used, in the form its layer's rule gives them.

        `found` are the gradients of the recorded outputs, in their order; None where nothing depends on one.
        """
        uses: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for index, a, d in zip(self.order, self.inputs, found, strict=True):
            if d is not None:
                uses.setdefault(index, []).append((a, d))
        return [
            (blocks_of[index][name], form)
            for index, pairs in uses.items()
            for name, form in rules[type(layers[index])](layers[index], pairs, batch).items()
            if name in blocks_of[index]
        ]


class Vmapped:
    """One gradient per example at once, by `torch.func`; as many examples at a time as memory allows."""

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        self.model, self.losses = model, losses
        self.layout = blocks(model)
        self.step = max(1, PART_FLOATS // max(1, sum(block.stop - block.start for block in self.layout)))

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
        model = fresh(self.model)

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.losses(torch.func.functional_call(model, own, (x[None],)), y[None]).sum()

        gradients = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
            found, losses = gradients(parameters, x, y)
        rows = [found[block.name].flatten(1) for block in self.layout]
        norms = torch.stack([row_norms(row) for row in rows]).square().sum(0).sqrt()
        weights = clip_weights(norms, clip)
        for view, row in zip(views(out, self.layout), rows, strict=True):
            view.view(-1).addmv_(torch.nan_to_num(row).t(), weights)
        return norms, losses


class Looped:
    """One example after the other: always right, for models that nothing else can take.

    An example that the model's code refuses to read, with whatever error, counts as zero too: an error would tell about it.
    """

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        self.model, self.losses = model, losses

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        norms, losses = [], []
        for i in range(len(y)):
            model = twin(self.model)
            try:
                gradient, loss = example_gradient(model, x[i : i + 1], y[i : i + 1], self.losses)
            except OUT_OF_MEMORY:
                raise
            except Exception:  # noqa: BLE001 - whatever it was, it depends on this example
                gradient, loss = torch.full_like(out, torch.nan), out.new_tensor(torch.nan)
            norms.append(row_norms(gradient))
            losses.append(loss)
            out.add_(torch.nan_to_num(gradient) * clip_weights(norms[-1][None], clip))
        return torch.stack(norms), torch.stack(losses)


PATHS: dict[str, Callable[[nn.Module, torch.Tensor, Losses], Path]] = {
    "book-keeping": BookKeeping,
    "vmap": Vmapped,
    "loop": Looped,
}


def unsupported(model: nn.Module) -> str:
    """Why book-keeping cannot take the model, or nothing."""
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            parameter_path = f"{name}.{parameter_name}".lstrip(".")
            if not parameter.requires_grad:
                continue
            if type(module) not in RULES or parameter_name not in ("weight", "bias"):
                return f"{parameter_path!r} belongs to a {type(module).__name__}, which has no rule"
            if id(parameter) in owner:
                return f"{parameter_path!r} is the same parameter as {owner[id(parameter)]!r}"
            owner[id(parameter)] = parameter_path
    return ""


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
