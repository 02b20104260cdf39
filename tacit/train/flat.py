"""A model's trainable parameters as one contiguous float32 vector, so that an update is one addition and a message one array.

The order is that of `model.named_parameters()`; a parameter tied to several modules is stored once. What does not train
(`requires_grad = False`) is no part of the vector: it is not copied, moved, noised or sent (`frozen.py`).
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from tacit.errors import BadInput, ModelRefused


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
    """The layout of the flat vector: the trainable parameters.

    Raises: ModelRefused for parameters that have no shape yet, and for trainable ones that are not float32.

    >>> blocks(nn.Linear(3, 2))[1]
    Block(name='bias', shape=torch.Size([2]), start=6, stop=8)
    """
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ModelRefused(f"Parameter {name!r} has no shape yet: pass one batch through the model first.")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ModelRefused(f"Parameter {name!r} is {parameter.dtype}: call model.float() first.")
    named = trainable(model)
    stops = list(accumulate(parameter.numel() for _, parameter in named))
    return tuple(Block(name, p.shape, stop - p.numel(), stop) for (name, p), stop in zip(named, stops, strict=True))


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that train, by name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def flatten(model: nn.Module) -> torch.Tensor:
    """Makes every trainable parameter a view into one vector and returns that vector; a second call returns the same memory.

    Guarantee: writing into the vector changes the model, and the other way round.

    >>> model = nn.Linear(3, 2)
    >>> _ = flatten(model).fill_(1.0)
    >>> model.bias.tolist()
    [1.0, 1.0]
    """
    layout = blocks(model)
    parameters = [parameter for _, parameter in trainable(model)]
    if not parameters:
        return torch.zeros(0)
    if _is_flat(parameters, layout):
        return parameters[0].detach().as_strided((layout[-1].stop,), (1,), 0)
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, views(vector, layout), strict=True):
        parameter.data = view
    return vector


def views(vector: torch.Tensor, layout: tuple[Block, ...]) -> list[torch.Tensor]:
    """The blocks of a flat vector in their shapes, sharing its memory."""
    return [block.of(vector) for block in layout]


def named(model: nn.Module, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """The blocks of a flat vector by the names of a model's parameters, copied, as a file has them."""
    return {block.name: block.of(vector).cpu().contiguous() for block in blocks(model)}


def assign(theta: torch.Tensor, vector: torch.Tensor) -> None:
    """Writes `vector` into the flat parameters `theta` of a model.

    Raises: BadInput when the sizes differ.
    """
    if vector.shape != theta.shape:
        raise BadInput(f"Expected a vector of {theta.numel()} parameters, got shape {tuple(vector.shape)}.")
    theta.copy_(vector)


def _is_flat(parameters: list[nn.Parameter], layout: tuple[Block, ...]) -> bool:
    """Whether the parameters already lie one after the other in one storage that holds nothing else."""
    storage = parameters[0].untyped_storage()
    return storage.nbytes() == 4 * layout[-1].stop and all(
        parameter.is_contiguous()
        and parameter.untyped_storage().data_ptr() == storage.data_ptr()
        and parameter.storage_offset() == block.start
        for parameter, block in zip(parameters, layout, strict=True)
    )
