"""What is refused before training, and the check on data that a fast path computes per-example gradients.

The check compares norms and sum with the gradients of single examples, at randomly moved parameters: a layer whose
weights start at zero would otherwise hide everything below it. It sees parameters used behind a layer's back, modules
that mix the examples of a batch, and batch dimensions in unexpected places. A forward pass that reads values into
Python, as `if x.sum() > 0` does, is not trusted with a batch, because three examples may not show what it decides. What
the check cannot see: tensor operations that mix examples only at values these three do not have, such as experts with a
limited capacity.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.linalg import vector_norm
from torch.overrides import TorchFunctionMode

from tacit.errors import ModelRefused, TrainingDiverged
from tacit.train.flat import blocks, views
from tacit.train.per_example_paths import PATHS, Path, clip_weights, example_gradient

TOLERANCE = 1e-3  # relative, of norms: float32 products agree to 1e-5, mixed examples differ by more than 1e-2
BLOCK_TOLERANCE = 1e-2  # relative, of one parameter's part of the sum
BLOCK_FLOOR = 1e-4  # of the whole sum's norm: a parameter whose gradient cancels holds nothing but rounding
BIAS_MOVE = 0.1  # how far biases and scales are moved for the check
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
READERS = [
    "item",
    "tolist",
    "numpy",
    "equal",
    "allclose",
    "is_nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__array__",
]
READS = {getattr(torch.Tensor, name) for name in READERS} | {torch.equal, torch.allclose, torch.is_nonzero}
DROPOUT_PLACE = 4  # of dropout_p among the arguments of scaled_dot_product_attention
# What stops a fast path: single examples went through before it, so that it is not the model that fails.
STOPS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, TrainingDiverged)


def refuse(model: nn.Module) -> None:
    """Raises: ModelRefused for layers that mix examples or remember them, naming the layer and what to use instead."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ModelRefused(f"A layer mixes the examples of a batch: replace {name!r} ({kind}) by GroupNorm.")
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise ModelRefused(
                f"A layer remembers examples: replace {name!r} ({kind}) by {kind}(track_running_stats=False)."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
            module.max_norm is not None or module.scale_grad_by_freq
        ):
            raise ModelRefused(
                f"A layer depends on the whole batch: use {name!r} ({kind}) without max_norm and scale_grad_by_freq."
            )
    blocks(model)


def settle(
    model: nn.Module, names: Sequence[str], x: torch.Tensor, y: torch.Tensor, *, move: float = 1.0
) -> tuple[str, Path, str]:
    """The first of the named paths that agrees with single examples: its name, itself, and why those before it do not.

    Raises: ModelRefused when none agrees, or when the forward pass writes into the model.
    """
    devices = [x.device] if x.device.type == "cuda" else []
    reasons = []
    with torch.random.fork_rng(devices), moved(model, move), Watched() as watched:
        gradients = alone(model, x, y)
        decides, finite = watched.decides, bool(gradients.isfinite().all())  # the second reads a value itself
        for name in names if finite else ():
            try:
                path = PATHS[name](model)
                reason = "" if name == "loop" else difference(model, path, gradients, x, y)
                if name == "book-keeping" and decides:
                    reason = "the forward pass decides by the values of its batch"
                if not reason:
                    return name, path, "; ".join(reasons)
            except STOPS as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
            reasons.append(f"{name}: {reason}")
    if not finite and move:
        return settle(model, names, x, y, move=0.0)
    clip_weights(vector_norm(gradients, dim=1), 1.0)
    raise ModelRefused(f"Do not ask for a path: the model cannot take this one ({'; '.join(reasons)}).")


def alone(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradients of single examples. Raises: ModelRefused when computing them changes the model."""
    before = _state(model)
    gradients = torch.stack([example_gradient(model, x[i : i + 1], y[i : i + 1])[0] for i in range(len(y))])
    for name, state in _state(model).items():
        if before.get(name) != state:
            raise ModelRefused(f"The forward pass writes into {name!r}, which would carry records past the noise.")
    return gradients


def difference(model: nn.Module, path: Path, gradients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    """How a path's norms or sum differ from those of single examples, or nothing."""
    norms = vector_norm(gradients, dim=1)
    clip = float(norms.min() / 2) or 1.0  # unequal weights, so that examples cannot be exchanged unseen
    expected, sums = clip_weights(norms, clip) @ gradients, torch.zeros_like(gradients[0])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found, _ = path(x, y, clip=clip, out=sums)
    for warning in raised:
        if "batching rule" in str(warning.message):
            return str(warning.message).partition(". ")[0]
    worst = float(((found - norms).abs() - TOLERANCE * norms).max())
    if not worst <= BLOCK_FLOOR * TOLERANCE * clip:
        return "its norms are not those of single examples"
    layout, floor = blocks(model), BLOCK_FLOOR * float(vector_norm(expected))
    for block, want, got in zip(layout, views(expected, layout), views(sums, layout), strict=True):
        if not float(vector_norm(want - got)) <= BLOCK_TOLERANCE * float(vector_norm(want)) + floor:
            return f"its sum differs in {block.name!r}"
    return ""


@contextmanager
def moved(model: nn.Module, scale: float) -> Iterator[None]:
    """Moves the parameters at random, the same way every time, and brings them back to the last bit."""
    generator = torch.Generator().manual_seed(0)
    parameters = [parameter.detach() for parameter in model.parameters()]
    kept = [parameter.clone() for parameter in parameters]
    try:
        for parameter in parameters:
            width = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else BIAS_MOVE
            move = torch.empty(parameter.shape).uniform_(-width, width, generator=generator)
            parameter.add_(move.to(parameter.device), alpha=scale)
        yield
    finally:
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)


class Watched(TorchFunctionMode):
    """Turns dropout off, leaving the model in training mode, and notes whether Python reads values out of tensors."""

    decides = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return kwargs["input"] if "input" in kwargs else args[0]
        if func in READS:
            self.decides = True
        elif func is F.scaled_dot_product_attention and len(args) > DROPOUT_PLACE:
            args = (*args[:DROPOUT_PLACE], 0.0, *args[DROPOUT_PLACE + 1 :])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        elif func is F.multi_head_attention_forward:
            kwargs["training"] = False
        return func(*args, **kwargs)


def _state(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity and version of everything the model holds."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (id(tensor), tensor._version) for name, tensor in tensors}
