"""What is refused before training, and how a path is chosen: on synthetic rows, never on private ones.

A path must agree with single examples, in norms and sum, at parameters drawn at random: a layer whose weights start at zero would
otherwise hide everything below it. That no path can mix or remember examples is by construction; the check finds what breaks the
arithmetic, such as a parameter used behind its layer's back, and a memory outside the model (a global, a closure), which shows when
examples come in another order.
"""

import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.linalg import vector_norm
from torch.overrides import TorchFunctionMode

from tacit.errors import ModelRefused
from tacit.losses import Losses
from tacit.losses.cross_entropy import cross_entropy
from tacit.train.flat import blocks, views
from tacit.train.fresh import twin
from tacit.train.frozen import settled
from tacit.train.per_example_paths import PATHS, Path, clip_weights, example_gradient
from tacit.train.rowwise import LARGE, SMALL
from tacit.train.synthetic import same_chance, synthetic

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
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
            module.max_norm is not None or module.scale_grad_by_freq
        ):
            raise ModelRefused(
                f"A layer depends on the whole batch: use {name!r} ({kind}) without max_norm and scale_grad_by_freq."
            )
    blocks(model)


def settle(
    model: nn.Module,
    names: Sequence[str],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    losses: Losses = cross_entropy,
    most: int = ALONE,
) -> tuple[str, Path, str]:
    """The first of the named paths that agrees with single examples: its name, itself, and why those before it do not.

    Of x and y only shape and type are used. `most` is how many examples a path will be given at once. Raises: ModelRefused when no
    path agrees, or when the forward pass writes into the model or remembers elsewhere.
    """
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
                reason = str(error).partition("\n")[0] or type(error).__name__
            if path and not reason:
                if name != "book-keeping":
                    refuse_memory(model, gradients, *few, losses)
                return name, path, "; ".join(reasons)
            reasons.append(f"{name}: {reason}")
    raise ModelRefused(f"Do not ask for a path: the model cannot take this one ({'; '.join(reasons)}).")


def alone(model: nn.Module, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> torch.Tensor:
    """The gradients of single examples. Raises: ModelRefused when computing them changes the model."""
    gradients = []
    for i in range(len(y)):
        used = twin(model)
        before = _state(used)
        try:
            with same_chance(x.device), Watched():
                gradients.append(example_gradient(used, x[i : i + 1], y[i : i + 1], losses)[0])
        except Exception as error:
            text = str(error).partition("\n")[0] or type(error).__name__
            raise ModelRefused(f"The model cannot be trained on single examples: {text}") from error
        for name, state in _state(used).items():
            if before.get(name) != state or not _equal(used, model, name):
                raise ModelRefused(f"The forward pass writes into {name!r}, which would carry records past the noise.")
    return torch.stack(gradients)


def refuse_memory(model: nn.Module, gradients: torch.Tensor, x: torch.Tensor, y: torch.Tensor, losses: Losses) -> None:
    """Raises: ModelRefused where an example's gradient depends on the examples before it, although the model was copied."""
    again = alone(model, x.flip(0), y.flip(0), losses).flip(0)
    if not torch.allclose(
        again, gradients, rtol=TOLERANCE, atol=BLOCK_FLOOR * float(gradients.abs().max()), equal_nan=True
    ):
        raise ModelRefused(
            "The model remembers examples outside itself, in a global or a closure: keep what it needs in its attributes."
        )


def disorder(path: Path, x: torch.Tensor, y: torch.Tensor, *, size: int) -> str:
    """How a path's answer for a whole batch differs from that for its parts in another order, or nothing."""
    sums = x.new_zeros(2, size, dtype=torch.float32)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
    with Watched():
        whole, _ = path(x, y, clip=1.0, out=sums[0])
        parts = [path(x[part], y[part], clip=1.0, out=sums[1])[0] for part in order.chunk(3)]
    again = torch.empty_like(whole)
    again[order] = torch.cat(parts)
    floor = BLOCK_FLOOR * float(whole.nan_to_num().max())
    if not torch.allclose(whole, again, rtol=TOLERANCE, atol=floor, equal_nan=True):
        return "an example's norm depends on its batch"
    if not float(vector_norm(sums[0] - sums[1])) <= TOLERANCE * len(y):
        return "its sum depends on the order of the examples"
    return ""


def difference(model: nn.Module, path: Path, gradients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    """How a path's norms or sum differ from those of single examples, or nothing."""
    norms = vector_norm(gradients, dim=1)
    clip = float(norms.min() / 2) or 1.0  # unequal weights, so that examples cannot be exchanged unseen
    expected, sums = clip_weights(norms, clip) @ gradients, torch.zeros_like(gradients[0])
    with warnings.catch_warnings(record=True) as raised, Watched():
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
def drawn(model: nn.Module) -> Iterator[None]:
    """Draws the parameters at random, the same way every time, and brings them back to the last bit."""
    generator = torch.Generator().manual_seed(0)
    parameters = [parameter.detach() for parameter in model.parameters() if parameter.is_floating_point()]
    kept = [parameter.clone() for parameter in parameters]
    try:
        for parameter in parameters:
            if parameter.dim() > 1:
                width = (3 / max(1, parameter[0].numel())) ** 0.5  # a layer's answers are about as large as its inputs
                values = torch.empty(parameter.shape).uniform_(-width, width, generator=generator)
            else:
                values = torch.empty(parameter.shape).uniform_(*VECTORS, generator=generator)
            parameter.copy_(values)
        yield
    finally:
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)


class Watched(TorchFunctionMode):
    """Turns dropout off, leaving the model in training mode."""

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


def _state(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity and version of everything the model holds."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (id(tensor), tensor._version) for name, tensor in tensors}


def _equal(used: nn.Module, model: nn.Module, name: str) -> bool:
    """Whether a parameter or buffer of the copy still has the model's values; `.data` leaves no other trace."""
    found, first = operator.attrgetter(name)(used), operator.attrgetter(name)(model)
    return torch.equal(found.detach().nan_to_num(), first.detach().nan_to_num())
