"""Three ways to add up clipped per-example gradients: book-keeping, vmap, and a loop over examples. Each adds sum_i min(1, C /
|g_i|) g_i to `out`, in its type; a gradient without a finite norm counts as zero. None can mix examples or remember them: the
first runs a graph of operations that keep them apart (`independence.py`), the others take the gradient of one example at a
time, of a model that is copied before each use (`flat.fresh`)."""

import operator
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.linalg import vector_norm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tacit.errors import ModelRefused
from tacit.parts.losses import Losses, cross_entropy
from tacit.training.flat import Block, blocks, fresh, settled, trainable, twin
from tacit.training.independence import LARGE, SMALL, Forward, Unsupported, analysed, places_of, reason_of, recorded
from tacit.training.layers import PART_FLOATS, RULES, Form, Rule, Uses, add_rows, row_norms

Result = tuple[torch.Tensor, torch.Tensor]  # norms and losses, one per example
Path = Callable[..., Result]  # (x, y, *, clip, out)
# of the clip, given away so that one example moves the sum by no more than it: norms are short by 3.7e-4 at most, and the sums with
# and without the example together wrong by 5.1e-4 clips (docs/derivations.md)
MARGIN = 2.0**-10
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)  # of the machine, not of an example


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
    """min(1, C (1 - MARGIN) / |g_i|), and 0 where the norm is infinite or no number."""
    return norms.reciprocal().mul_(clip * (1 - MARGIN)).clamp_(max=1.0).nan_to_num_(nan=0.0)


class BookKeeping:
    """One forward pass, one backward pass to the outputs of the layers, one product per parameter."""

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        self.losses = losses
        layers, self.blocks_of = layers_of(model)
        self.layers = list(layers.values())
        root, graph = analysed(fresh(model), like)
        self.forward = recorded(root, graph, places_of(layers))

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        tape = Tape()
        with torch.enable_grad():
            losses = self.losses(tape.run(self.forward, x), y)
            total = losses.sum()  # given the outputs' gradients instead, torch imports sympy: 32 MB in every site
        forms = tape.forms(total, len(y), self.layers, self.blocks_of, RULES)
        with torch.no_grad():
            norms = norms_of(forms, like=losses)
            weights = clip_weights(norms, clip)
            for block, form in forms:
                form.add_weighted(weights, block.of(out))
        return norms, losses.detach()


class Tape:
    """What the layers of one forward pass read, and where the gradients of their outputs will arrive: edges, which stay the layer's
    own where a later operation overwrites its output. An overwritten input is lost, and shows in its version counter."""

    def __init__(self) -> None:
        # the number of a layer, its input and the input's version, the edge of its output
        self.uses: list[tuple[int, torch.Tensor, int, GradientEdge]] = []

    def run(self, forward: Forward, x: torch.Tensor) -> torch.Tensor:
        logits = forward(x, self.record)
        if any(a._version != version for _, a, version, _ in self.uses):
            raise Unsupported("an operation overwrites in place what a layer has read")
        return logits

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None:
        if output.requires_grad:
            self.uses.append((index, a, a._version, get_gradient_edge(output)))

    def forms(
        self,
        total: torch.Tensor,
        batch: int,
        layers: Sequence[nn.Module],
        blocks_of: Sequence[Mapping[str, Block]],
        rules: Mapping[type[nn.Module], Rule],
    ) -> list[tuple[Block, Form]]:
        """The gradients of a sum of losses by every trainable parameter that was used, in the form its layer's rule gives them."""
        edges = [edge for *_, edge in self.uses]
        gradients = torch.autograd.grad(total, edges, allow_unused=True) if edges else ()
        uses: dict[int, Uses] = {}
        for (index, a, *_), d in zip(self.uses, gradients, strict=True):
            if d is not None:
                uses.setdefault(index, []).append((a, d))
        with torch.no_grad():
            return [
                (blocks_of[index][name], form)
                for index, pairs in uses.items()
                for name, form in rules[type(layers[index])](layers[index], pairs, batch).items()
                if name in blocks_of[index]
            ]


def norms_of(forms: Sequence[tuple[Block, Form]], *, like: torch.Tensor) -> torch.Tensor:
    squares = [form.squared_norms() for _, form in forms] or [torch.zeros_like(like)]
    return sum(squares[1:], start=squares[0]).sqrt_()


class Vmapped:
    """One gradient per example at once, by `torch.func`; as many examples at a time as memory allows."""

    def __init__(self, model: nn.Module, like: torch.Tensor, losses: Losses):
        self.model, self.losses = model, losses
        self.layout = blocks(model)
        self.step = max(1, PART_FLOATS // max(1, sum(block.stop - block.start for block in self.layout)))

    def __call__(self, x: torch.Tensor, y: torch.Tensor, *, clip: float, out: torch.Tensor) -> Result:
        named = dict(self.model.named_parameters())
        parameters = {block.name: named[block.name].detach() for block in self.layout}

        def loss(model: nn.Module, own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.losses(torch.func.functional_call(model, own, (x[None],)), y[None]).sum()

        parts = []
        for some, targets in zip(x.split(self.step), y.split(self.step), strict=True):
            each = torch.func.grad_and_value(partial(loss, fresh(self.model)))
            with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
                gradients, losses = torch.func.vmap(each, in_dims=(None, 0, 0), randomness="different")(
                    parameters, some, targets
                )
            rows = [gradients[block.name].flatten(1) for block in self.layout]
            norms = torch.stack([row_norms(row) for row in rows]).square().sum(0).sqrt()
            weights = clip_weights(norms, clip)
            for block, row in zip(self.layout, rows, strict=True):
                add_rows(out[block.start : block.stop], torch.nan_to_num(row), weights)
            parts.append((norms, losses))
        norms, losses = zip(*parts, strict=True)
        return torch.cat(norms), torch.cat(losses)


class Looped:
    """One example after the other. One that the model's code cannot read counts as zero: an error would tell."""

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
            except Exception:  # noqa: BLE001 - it depends on this example
                gradient, loss = torch.full_like(out, torch.nan, dtype=torch.float32), torch.tensor(torch.nan)
            norms.append(row_norms(gradient))
            losses.append(loss)
            out.add_(torch.nan_to_num(gradient) * clip_weights(norms[-1][None], clip))
        return torch.stack(norms), torch.stack(losses)


PATHS: dict[str, Callable[[nn.Module, torch.Tensor, Losses], Path]] = {
    "book-keeping": BookKeeping,
    "vmap": Vmapped,
    "loop": Looped,
}


def layers_of(model: nn.Module) -> tuple[dict[str, nn.Module], list[dict[str, Block]]]:
    """The layers that train by name, and where the parameters of each lie. Raises: Unsupported for parameters without a rule."""
    block_of = {id(p): block for (_, p), block in zip(trainable(model), blocks(model), strict=True)}
    layers, blocks_of, owner = dict[str, nn.Module](), list[dict[str, Block]](), dict[int, str]()
    for name, module in model.named_modules():
        own = {part: parameter for part, parameter in module.named_parameters(recurse=False) if parameter.requires_grad}
        for part, parameter in own.items():
            path = f"{name}.{part}".lstrip(".")
            if type(module) not in RULES or part not in ("weight", "bias"):
                raise Unsupported(f"{path!r} belongs to a {type(module).__name__}, which has no rule")
            if id(parameter) in owner:
                raise Unsupported(f"{path!r} is the same parameter as {owner[id(parameter)]!r}")
            owner[id(parameter)] = path
        if own:
            layers[name] = module
            blocks_of.append({part: block_of[id(parameter)] for part, parameter in own.items()})
    return layers, blocks_of


# Rows made up from public facts, their shape and type, on which a model is tried before it meets private ones.

SEED = 0


def synthetic(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` rows and labels of the shape and type of x and y; of their values nothing is read. Raises: ModelRefused."""
    reason = ""
    for rows in candidates(model, x, count):
        try:
            with torch.no_grad(), same_chance(x.device):
                scores = fresh(model)(rows)
            classes = max(1, min(scores.shape[1:], default=1))  # that each answer has a score for
            break
        except ModelRefused:
            raise
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything
            reason = reason or reason_of(error)
    else:
        raise ModelRefused(f"The model cannot read rows of {x.dtype} and shape {tuple(x.shape[1:])}: {reason}")
    generator, shape = torch.Generator().manual_seed(SEED), (count, *y.shape[1:])
    if not y.is_floating_point():
        return rows, torch.randint(0, classes, shape, generator=generator).to(y)
    numbers = torch.randn(shape, generator=generator).softmax(1) if len(shape) > 1 else torch.zeros(shape)
    return rows, numbers.to(y)  # which may be probabilities


def candidates(model: nn.Module, x: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Rows to try: numbers around zero; whole numbers that the smallest embedding has a place for, or small ones."""
    generator, shape = torch.Generator().manual_seed(SEED), (count, *x.shape[1:])
    if x.is_floating_point() or x.is_complex():
        yield torch.randn(shape, generator=generator).to(x)
        return
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    for low, high in ((0, min(tables, default=2)), (0, 2), (1, 2), (0, 1)):
        yield torch.randint(low, max(high, low + 1), shape, generator=generator).to(x)


@contextmanager
def same_chance(device: torch.device) -> Iterator[None]:
    """The same random numbers of torch, NumPy and Python every time; theirs go on afterwards as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


# What is refused before training, and how a path is chosen: on synthetic rows, never on private ones.

TOLERANCE = 1e-3  # relative, of norms: float32 products agree to 1e-5, mixed examples differ by more than 1e-2
BLOCK_TOLERANCE = 1e-2  # relative, of one parameter's part of the sum
BLOCK_FLOOR = 1e-4  # of the whole sum's norm: a parameter whose gradient cancels holds nothing but rounding
VECTORS = (0.4, 0.6)  # biases and scales for the check: far from zero, and not all the same
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
DROPOUT_PLACE = 4  # of dropout_p among the arguments of scaled_dot_product_attention
ALONE = 3  # examples that are compared one by one


def refuse(model: nn.Module) -> None:
    """Raises: ModelRefused for layers that mix examples or remember them, naming the layer and what to use instead."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or not settled(module)):
            raise ModelRefused(
                f"A layer mixes the examples of a batch: replace {name!r} ({kind}) by GroupNorm, or freeze it"
                " (requires_grad_(False)) where its statistics are public."
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise ModelRefused(
                f"A layer remembers examples: replace {name!r} ({kind}) by {kind}(track_running_stats=False)."
            )
        table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if table and (module.max_norm is not None or module.scale_grad_by_freq):
            raise ModelRefused(
                f"A layer depends on the whole batch: use {name!r} ({kind}) without max_norm and scale_grad_by_freq."
            )
    blocks(model)


def settle(
    model: nn.Module, names: Sequence[str], x: torch.Tensor, y: torch.Tensor, *, losses: Losses, most: int = ALONE
) -> tuple[str, Path, str]:
    """The first of the named paths that agrees with single examples: its name, itself, and why those before it do not. Of x and
    y only shape and type are used. `most` is how many examples a path is tried with at once. Raises: ModelRefused when no path
    agrees, or when the forward pass writes into the model or remembers elsewhere."""
    rows, labels = synthetic(model, x, y, count=SMALL + LARGE)
    few, reasons = (rows[:ALONE], labels[:ALONE]), []
    with same_chance(x.device), drawn(model):
        gradients = alone(model, *few, losses)
        for name in names:
            path: Path | None = None
            try:
                path = PATHS[name](model, rows, losses)
                reason = "" if name == "loop" else difference(model, path, gradients, *few)
                if name == "vmap" and not reason:
                    reason = disorder(path, *synthetic(model, x, y, count=most + 1), size=len(gradients[0]))
            except ModelRefused:
                raise
            except Exception as error:  # noqa: BLE001 - single examples went through: this path cannot take the model
                reason = reason_of(error)
            if path and not reason:
                if name != "book-keeping":
                    refuse_other_order(gradients, alone(model, few[0].flip(0), few[1].flip(0), losses).flip(0))
                return name, path, "; ".join(reasons)
            reasons.append(f"{name}: {reason}")
    raise ModelRefused(f"Do not ask for a path: the model cannot take this one ({'; '.join(reasons)}).")


def alone(model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> torch.Tensor:
    """The gradients of single examples. Raises: ModelRefused when computing them changes the model."""
    gradients = []
    for i in range(len(y)):
        used = twin(model)
        before = {name: (id(tensor), tensor._version) for name, tensor in _tensors(used)}
        try:
            with same_chance(x.device), Watched():
                gradients.append(example_gradient(used, x[i : i + 1].clone(), y[i : i + 1], losses)[0])
        except Exception as error:
            raise ModelRefused(f"The model cannot be trained on single examples: {reason_of(error)}") from error
        for name, tensor in _tensors(used):
            after, first = (operator.attrgetter(name)(one).detach().nan_to_num() for one in (used, model))
            same = before.get(name) == (id(tensor), tensor._version)
            if not same or not torch.equal(after, first):  # `.data` leaves no other trace
                raise ModelRefused(f"The forward pass writes into {name!r}, which would carry records past the noise.")
    return torch.stack(gradients)


def refuse_other_order(gradients: torch.Tensor, again: torch.Tensor) -> None:
    """Raises: ModelRefused where gradients of a copied model depend on the order of the rows."""
    floor = BLOCK_FLOOR * float(gradients.abs().max())
    if not torch.allclose(again, gradients, rtol=TOLERANCE, atol=floor, equal_nan=True):
        raise ModelRefused(
            "The model remembers examples outside itself, in a global or a closure: keep what it needs in its attributes."
        )


def disorder(path: Path, x: torch.Tensor, y: torch.Tensor, *, size: int) -> str:
    """How a path's answer for a whole batch differs from that for its parts in another order, or nothing."""
    sums = x.new_zeros(2, size, dtype=torch.float32)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
    with Watched():
        whole, _ = path(x.clone(), y, clip=1.0, out=sums[0])
        parts = [path(x[part], y[part], clip=1.0, out=sums[1])[0] for part in order.chunk(3)]
    floor = BLOCK_FLOOR * float(whole.nan_to_num().max())
    if not torch.allclose(whole[order], torch.cat(parts), rtol=TOLERANCE, atol=floor, equal_nan=True):
        return "an example's norm depends on its batch"
    same = float(vector_norm(sums[0] - sums[1])) <= TOLERANCE * len(y)
    return "" if same else "its sum depends on the order of the examples"


def difference(model: nn.Module, path: Path, gradients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    """How a path's norms or sum differ from those of single examples, or nothing."""
    norms = vector_norm(gradients, dim=1)
    clip = float(norms.min() / 2) or 1.0  # unequal weights, so that examples cannot be exchanged unseen
    expected, sums = clip_weights(norms, clip) @ gradients, torch.zeros_like(gradients[0])
    with warnings.catch_warnings(record=True) as raised, Watched():
        warnings.simplefilter("always")
        found, _ = path(x.clone(), y, clip=clip, out=sums)
    for text in (str(warning.message) for warning in raised):
        if "batching rule" in text:
            return text.partition(". ")[0]
    worst = float(((found - norms).abs() - TOLERANCE * norms).max())
    if not worst <= BLOCK_FLOOR * TOLERANCE * clip:
        return "its norms are not those of single examples"
    floor = BLOCK_FLOOR * float(vector_norm(expected))
    for block in blocks(model):
        want, got = block.of(expected), block.of(sums)
        if not float(vector_norm(want - got)) <= BLOCK_TOLERANCE * float(vector_norm(want)) + floor:
            return f"its sum differs in {block.name!r}"
    return ""


@contextmanager
def drawn(model: nn.Module) -> Iterator[None]:
    """Draws the parameters at random, the same way every time, and brings them back to the last bit."""
    generator = torch.Generator().manual_seed(0)
    parameters = [parameter.detach() for parameter in model.parameters() if parameter.is_floating_point()]
    kept = [parameter.clone() for parameter in parameters]
    try:
        for parameter in parameters:
            low, high = VECTORS
            if parameter.dim() > 1:
                high = (3 / max(1, parameter[0].numel())) ** 0.5  # a layer's answers are about as large as its inputs
                low = -high
            parameter.copy_(torch.empty(parameter.shape).uniform_(low, high, generator=generator))
        yield
    finally:
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)


class Watched(TorchFunctionMode):  # turns dropout off, leaving the model in training mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return kwargs["input"] if "input" in kwargs else args[0]
        if func is F.scaled_dot_product_attention and len(args) > DROPOUT_PLACE:
            args = (*args[:DROPOUT_PLACE], 0.0, *args[DROPOUT_PLACE + 1 :])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        elif func is F.multi_head_attention_forward:
            kwargs["training"] = False
        return func(*args, **kwargs)


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
