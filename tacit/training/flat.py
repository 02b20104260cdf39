"""A model's trainable parameters as one contiguous float32 vector, so that an update is one addition and a message one array.
The order is that of `model.named_parameters()`; a parameter tied to several modules is stored once. What does not train
(`requires_grad = False`) is no part of the vector: it is not copied, moved, noised or sent."""

import copy
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from tacit.errors import ModelRefused
from tacit.wire import digest_of


@dataclass(frozen=True)
class Block:
    """Where one parameter lies in the flat vector."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        """The parameter's part of a flat vector, in its shape, sharing its memory."""
        return vector[self.start : self.stop].view(self.shape)


def blocks(model: nn.Module) -> tuple[Block, ...]:
    """The layout of the flat vector. Raises: ModelRefused for parameters without a shape, or trainable and not float32."""
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ModelRefused(f"Parameter {name!r} has no shape yet: pass one batch through the model first.")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ModelRefused(f"Parameter {name!r} is {parameter.dtype}: call model.float() first.")
    named = trainable(model)
    stops = list(accumulate(parameter.numel() for _, parameter in named))
    return tuple(Block(name, p.shape, stop - p.numel(), stop) for (name, p), stop in zip(named, stops, strict=True))


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def flatten(model: nn.Module) -> torch.Tensor:
    """Makes every trainable parameter a view into one vector and returns it; a second call returns the same memory."""
    layout = blocks(model)
    parameters = [parameter for _, parameter in trainable(model)]
    if not parameters:
        return torch.zeros(0)
    storage = parameters[0].untyped_storage()
    if storage.nbytes() == 4 * layout[
        -1
    ].stop and all(  # they already lie one after the other, and nothing else is there
        parameter.is_contiguous()
        and parameter.untyped_storage().data_ptr() == storage.data_ptr()
        and parameter.storage_offset() == block.start
        for parameter, block in zip(parameters, layout, strict=True)
    ):
        return parameters[0].detach().as_strided((layout[-1].stop,), (1,), 0)
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, block in zip(parameters, layout, strict=True):
        parameter.data = block.of(vector)
    return vector


def named(model: nn.Module, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """The blocks of a flat vector by the names of a model's parameters, copied, as a file has them."""
    return {block.name: block.of(vector).cpu().contiguous() for block in blocks(model)}


# What a model holds and does not train: a pretrained body, and buffers. It is part of the model's start and never travels.


def frozen(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]


def frozen_mark(model: nn.Module) -> str:
    """A hash of frozen parameters and buffers, by name, type, shape and bits; empty for a model that has neither."""
    parts = [
        f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest_of(bits(tensor))}"
        for name, tensor in (*frozen(model), *model.named_buffers())
    ]
    return digest_of("frozen", *parts) if parts else ""


def bits(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor of any type, as they lie in memory."""
    numbers = tensor.detach().cpu()
    numbers = numbers if numbers.layout == torch.strided else numbers.to_dense()
    return numbers.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def settled(module: nn.Module) -> bool:
    """Whether a module is a wholly frozen batch normalisation: it scales by running statistics, each example alone."""
    if not isinstance(module, nn.modules.batchnorm._BatchNorm) or module.running_mean is None:
        return False
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def training(model: nn.Module) -> nn.Module:
    """Puts a model into training mode, but for batch normalisation that is wholly frozen: that stays as it was pretrained."""
    model.train()
    for module in model.modules():
        if settled(module):
            module.eval()
    return model


def beside(model: nn.Module) -> nn.Module:
    """A copy to train in, which shares nothing but the frozen parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for _, parameter in frozen(model)})


# A model that remembers nothing: each use is given a copy, which shares the parameters at most.

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
ROWS_AT_A_TIME = 1000
MUTABLE = (list, dict, set, bytearray, deque, torch.Tensor)


def fresh(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters. Raises: ModelRefused for a model that cannot be copied."""
    return _copied(model, {id(parameter): parameter for parameter in model.parameters()})


def twin(model: nn.Module) -> nn.Module:
    """A copy that shares nothing, not even parameters. Raises as `fresh`."""
    return _copied(model, {})


def hooked(module: nn.Module) -> bool:
    """Whether a hook runs when the module is called, or a method of its own in its class's place."""
    replaced = any(callable(getattr(type(module), name, None)) for name in vars(module))
    return replaced or any(getattr(module, hooks) for hooks in HOOKS)


def _copied(model: nn.Module, memo: dict[int, object]) -> nn.Module:
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:  # torch copies no tensor with a history
                memo[id(value)] = value.detach().clone()
    try:
        copied = copy.deepcopy(model, memo)
        for module in copied.modules():  # what all models of a class would share and could write into
            for base in type(module).__mro__:
                own = {} if base is object or base.__module__.startswith("torch.") else vars(base)
                for name, value in own.items():
                    if isinstance(value, MUTABLE) and not name.startswith("__"):
                        vars(module).setdefault(name, copy.deepcopy(value, memo))
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise ModelRefused(
            f"The model holds what cannot be copied, so that it could carry records past the noise: {text}"
        ) from error
    return copied


@torch.no_grad()
def answers_apart(model: nn.Module, x: torch.Tensor, *, answer: tuple[int, ...]) -> torch.Tensor:
    """What the model answers to every row, [rows, *answer]; zeros for a row that it cannot read. Guarantee: an answer depends
    on its own row and the parameters alone, if the model remembers in itself at most: `torch.vmap` makes a batch of every row,
    or a copy sees one row. Assumes: the model is in evaluation mode, and draws nothing."""

    def several(rows: torch.Tensor) -> torch.Tensor:
        try:
            alone = fresh(model)
            return torch.vmap(lambda row: alone(row[None]).reshape(answer))(rows).float().cpu()
        except Exception:  # noqa: BLE001 - whatever cannot be batched is shown row by row
            return torch.stack([one(row) for row in rows])

    def one(row: torch.Tensor) -> torch.Tensor:
        try:
            return fresh(model)(row[None]).reshape(answer).float().cpu()
        except Exception:  # noqa: BLE001 - a row's own trouble
            return torch.zeros(answer)

    parts = [several(rows) for rows in x.split(ROWS_AT_A_TIME)] if len(x) else []
    return torch.cat(parts) if parts else x.new_zeros((0, *answer), dtype=torch.float32)
