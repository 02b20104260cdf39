"""What a model holds and does not train: a pretrained body, and buffers. It is part of the model's start and never travels.

Every party builds the same model, from the same factory and seed or the same file, and holds the hash of this part (`frozen_mark`)
against the others'. It is in the digest of every release, so that other frozen weights are another release with noise of its own.
Assumes: it was made from what is public; training on somebody's records before is no part of any epsilon here.
"""

import copy

import torch
from torch import nn

from tacit.digest import mark


def frozen(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that do not train, by name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]


def frozen_mark(model: nn.Module) -> str:
    """A hash of frozen parameters and buffers, by name, type, shape and bits; empty for a model that has neither.

    >>> frozen_mark(nn.Linear(2, 1))
    ''
    >>> frozen_mark(nn.Linear(2, 1).requires_grad_(False)) == frozen_mark(nn.Linear(2, 1).requires_grad_(False))
    False
    """
    parts = [
        f"{name} {tensor.dtype} {tuple(tensor.shape)} {mark(bits(tensor))}"
        for name, tensor in (*frozen(model), *model.named_buffers())
    ]
    return mark("frozen", *parts) if parts else ""


def bits(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor of any type, as they lie in memory."""
    numbers = tensor.detach().cpu()
    numbers = numbers if numbers.layout == torch.strided else numbers.to_dense()
    return numbers.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def settled(module: nn.Module) -> bool:
    """Whether a batch normalisation is wholly frozen: it scales by running statistics, each example by itself.

    >>> settled(nn.BatchNorm1d(2)), settled(nn.BatchNorm1d(2).requires_grad_(False))
    (False, True)
    """
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
    """A copy to train in: it shares the frozen parameters, which nobody changes, and nothing else."""
    return copy.deepcopy(model, {id(parameter): parameter for _, parameter in frozen(model)})
