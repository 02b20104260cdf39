"""The models of the papers by name, or any torch factory as "package.module:function".

Sizes on 1x28x28 and ten classes: logr 7,850 parameters, mlp 159,010, cnn 26,010 (Papernot et al. 2021,
arXiv:2007.14191v1, with tanh, which suits clipping better than ReLU); cifar-cnn has 1,626,442 on 3x32x32.
"""

import importlib
import inspect
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn

from tacit import check
from tacit.errors import BadInput, ModelRefused

Shape = tuple[int, ...]
MLP_WIDTH = 200
LARGE_IMAGE = 16  # pixels a side from which the strides of the published cnn leave something to pool
SMALL_IMAGE = 6  # the same for its small sibling
CIFAR_IMAGE = 6  # two 3x3 convolutions without padding, then pooling


def build(name: str, *, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """A model with initial weights that are a function of `seed`; torch's global generator stays as it was.

    Raises: BadInput for an unknown name, a factory that cannot be imported, or an input the model cannot read.

    >>> sum(p.numel() for p in build("mlp", input_shape=(1, 28, 28), classes=10, seed=1).parameters())
    159010
    """
    check.at_least(2, classes=classes)
    make = imported(name) if ":" in name else _named(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(input_shape=tuple(input_shape), classes=classes)
    if not isinstance(model, nn.Module):
        raise BadInput(f"Expected {name!r} to return a torch module, got {type(model).__name__}.")
    return model


def size(name: str, *, input_shape: Shape, classes: int) -> int | None:
    """How many parameters a built-in model would have, found without making it; None for somebody's own factory.

    >>> size("mlp", input_shape=(1, 28, 28), classes=10)
    159010
    """
    if ":" in name:
        return None
    with torch.device("meta"):  # shapes without memory
        return sum(p.numel() for p in _named(name)(input_shape=tuple(input_shape), classes=classes).parameters())


def check_output(model: nn.Module, x_example: torch.Tensor, classes: int) -> None:
    """Passes a batch (of one or more) through the model. Raises: ModelRefused unless it answers one score per class."""
    training = model.training
    try:
        with torch.no_grad():
            shape = tuple(model.eval()(x_example).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelRefused(f"The model cannot read inputs of shape {tuple(x_example.shape[1:])}: {error}") from error
    finally:
        model.train(training)
    expected = (len(x_example), classes)
    if shape != expected:
        raise ModelRefused(f"Expected scores of shape {expected}, one per class, but the model answers {shape}.")


def logr(*, input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


def mlp(*, input_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), MLP_WIDTH), nn.ReLU(), nn.Linear(MLP_WIDTH, classes)
    )


def cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two strided convolutions and two dense layers; images under 16 pixels a side get smaller kernels."""
    channels, side = _image("cnn", input_shape, smallest=SMALL_IMAGE)
    if side >= LARGE_IMAGE:
        first, second = nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    else:
        first, second = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)
    convolutions = (first, ChannelsLast(), nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1))
    features = nn.Sequential(*convolutions, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(_width(features, input_shape), 32), nn.Tanh(), nn.Linear(32, classes))


class ChannelsLast(nn.Module):
    """The same image with its channels innermost in memory, which makes max-pooling on a CPU nine times faster.

    By `permute`, because `torch.func.vmap` knows no memory formats.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same values."""
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def cifar_cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two 3x3 convolutions without padding, one pooling, two dense layers."""
    channels, _ = _image("cifar-cnn", input_shape, smallest=CIFAR_IMAGE)
    first, second = nn.Conv2d(channels, 32, 3), nn.Conv2d(32, 64, 3)
    features = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*features, nn.Linear(_width(features, input_shape), 128), nn.ReLU(), nn.Linear(128, classes))


def imported(name: str) -> Callable[..., Any]:
    """The factory "package.module:function", called with what it accepts of input_shape and classes."""
    module_name, _, function_name = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"Expected {name!r} to name a function in a module that can be imported: {error}.") from error

    def make(**settings: Any) -> Any:
        accepted = inspect.signature(factory).parameters
        every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
        return factory(**{key: value for key, value in settings.items() if every or key in accepted})

    return make


MODELS: dict[str, Callable[..., nn.Module]] = {"logr": logr, "mlp": mlp, "cnn": cnn, "cifar-cnn": cifar_cnn}


def _named(name: str) -> Callable[..., nn.Module]:
    """A model of this file. Raises: BadInput with the nearest name."""
    if name not in MODELS:
        known = f"{', '.join(MODELS)} or package.module:function"
        raise BadInput(f"Expected model to be one of {known}; got {name!r}.{check.nearest(name, MODELS)}")
    return MODELS[name]


def _image(name: str, shape: Shape, *, smallest: int) -> tuple[int, int]:
    """Channels and the shorter side. Raises: BadInput when the input is no image or a smaller one."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise BadInput(
            f"Expected images of shape (channels, height, width), {smallest}x{smallest} or larger, for {name!r}; "
            f"got inputs of shape {shape}. Use 'mlp', which reads any shape."
        )
    return shape[0], min(shape[1:])


def _width(features: nn.Module, shape: Shape) -> int:
    """How many numbers the features of one input have."""
    with torch.no_grad():
        return features(torch.zeros(1, *shape)).shape[1]
