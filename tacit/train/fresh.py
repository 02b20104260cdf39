"""A model that remembers nothing: each use is given a copy, which shares the parameters at most, and nothing else.

Whatever a forward pass writes into the model or into anything the model holds (buffers, lists, dicts, other objects, tensors
stored on it or on its class) is written into the copy and thrown away with it. Out of reach is what the model does not hold:
globals and closures. `per_example_check.py` looks for those.
"""

import copy
from collections import deque

import torch
from torch import nn

from tacit.errors import ModelRefused

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MUTABLE = (list, dict, set, bytearray, deque, torch.Tensor)


def fresh(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters. Raises: ModelRefused for a model that cannot be copied."""
    return _copied(model, {id(parameter): parameter for parameter in model.parameters()})


def twin(model: nn.Module) -> nn.Module:
    """A copy that shares nothing: not even what is written into a parameter stays."""
    return _copied(model, {})


def hooked(module: nn.Module) -> bool:
    """Whether other code than its class's runs when the module is called: a hook, or a method of its own in a class's place."""
    replaced = any(callable(getattr(type(module), name, None)) for name in vars(module))
    return replaced or any(getattr(module, hooks) for hooks in HOOKS)


def _copied(model: nn.Module, memo: dict[int, object]) -> nn.Module:
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:  # torch copies no tensor with a history
                memo[id(value)] = value.detach().clone()
    try:
        copied = copy.deepcopy(model, memo)
        for module in copied.modules():
            for name, value in _of_class(type(module)):
                vars(module).setdefault(name, copy.deepcopy(value, memo))
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise ModelRefused(
            f"The model holds what cannot be copied, so that it could carry records past the noise: {text}"
        ) from error
    return copied


def _of_class(kind: type) -> list[tuple[str, object]]:
    """What all models of a class would share and could write into."""
    own = [base for base in kind.__mro__ if base is not object and not base.__module__.startswith("torch.")]
    return [
        (name, value)
        for base in own
        for name, value in vars(base).items()
        if isinstance(value, MUTABLE) and not name.startswith("__")
    ]
