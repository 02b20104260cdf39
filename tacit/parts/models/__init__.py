"""Models: one file per model; its name is `model.name` in the TOML. Or any torch factory as "package.module:function".

A factory takes what it needs of `input_shape` and `classes`, how many numbers it answers (one where the task asks for one); its
other parameters are its options in `[model]`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tacit import check, plugin
from tacit.errors import BadInput, ModelRefused

Shape = tuple[int, ...]
ROOM = "tacit.parts.models"


def names() -> list[str]:
    """The models that ship with Tacit, by file."""
    return plugin.names(ROOM)


def build(
    name: str,
    *,
    input_shape: Shape,
    classes: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    factory: plugin.Factory | None = None,
) -> nn.Module:
    """A model with initial weights that are a function of `seed`; torch's global generator stays as it was.

    A `factory` that was passed from Python takes the place of the named one. Raises BadInput for an unknown name, a factory that
    cannot be imported, options that it does not take, or an input that it cannot read.

    >>> sum(p.numel() for p in build("mlp", input_shape=(1, 28, 28), classes=10, seed=1).parameters())
    159010
    """
    check.at_least(1, classes=classes)
    factory = factory or plugin.find(ROOM, name, key="model.name")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(factory, input_shape, classes, options or {})
    if not isinstance(model, nn.Module):
        raise BadInput(f"Expected {name!r} to return a torch module, got {type(model).__name__}.")
    return model


def drawn(name: str, *, options: Mapping[str, Any], factory: plugin.Factory | None = None) -> bool:
    """Whether a model begins with nothing but what is drawn from the run's seed: one of Tacit's own, that reads no file.

    >>> drawn("mlp", options={}), drawn("hugging-face", options={"path": "bert"}), drawn("somebodys:model", options={})
    (True, False, False)
    """
    return factory is None and ":" not in name and "path" not in options


def size(name: str, *, input_shape: Shape, classes: int, options: Mapping[str, Any] | None = None) -> int | None:
    """How many parameters a built-in model would have, found without making it; None for somebody's own factory, or for one
    that reads its weights from a `path`.

    >>> size("mlp", input_shape=(1, 28, 28), classes=10)
    159010
    """
    if not drawn(name, options=options or {}):
        return None
    factory = plugin.find(ROOM, name, key="model.name")
    with torch.device("meta"):  # shapes without memory
        return sum(p.numel() for p in _made(factory, input_shape, classes, options or {}).parameters())


def check_output(model: nn.Module, x_example: torch.Tensor, answer: Shape) -> None:
    """Passes a batch (of one or more) through the model. Raises: ModelRefused unless its answers have the task's shape.

    Whatever else its own code raises is PartFailed, with the line.
    """
    training = model.training
    try:
        with torch.no_grad():
            shape = tuple(model.eval()(x_example).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelRefused(f"The model cannot read inputs of shape {tuple(x_example.shape[1:])}: {error}") from error
    except Exception as error:  # a mistake in somebody's own code
        words, then = "The model {name} cannot answer a row", "Mend it; `tacit --debug` shows the traceback."
        raise plugin.failed(error, model, words, then=then) from error
    finally:
        model.train(training)
    expected = (len(x_example), *answer)
    if shape != expected:
        raise ModelRefused(
            f"Expected answers of shape {expected}, as the task needs them, but the model's are {shape}."
        )


def image(name: str, shape: Shape, *, smallest: int) -> tuple[int, int]:
    """Channels and the shorter side of inputs that must be images. Raises BadInput when they are none, or smaller ones."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise BadInput(
            f"Expected images of shape (channels, height, width), {smallest}x{smallest} or larger, for {name!r}; "
            f"got inputs of shape {shape}. Use 'mlp', which reads any shape."
        )
    return shape[0], min(shape[1:])


def features_of(features: nn.Module, shape: Shape) -> int:
    """How many numbers the features of one input have."""
    with torch.no_grad():
        return features(torch.zeros(1, *shape)).shape[1]


def _made(factory: plugin.Factory, input_shape: Shape, classes: int, options: Mapping[str, Any]) -> Any:
    given = {"input_shape": tuple(input_shape), "classes": classes}
    return plugin.make(factory, options, table="model", given=given, keys=("name", "lora", "seed", "start"))
