"""Models: `model.name` names one of these, or any torch factory as "package.module:function". A factory takes what it needs of
`input_shape` and `classes`, how many numbers it answers (one where the task asks for one). Its other parameters are its options
in `[model]`."""

import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tacit import check, plugin
from tacit.errors import BadInput, ModelRefused
from tacit.plugin import part

Shape = tuple[int, ...]
ROOM = "tacit.parts.models"
WIDTH = 200  # of the hidden layer of `mlp`
LARGE_IMAGE = 16  # pixels a side from which the strides of the published cnn leave something to pool
SMALL_IMAGE = 6  # the same for its small sibling, and for two 3x3 convolutions without padding, then pooling


def build(
    name: str,
    *,
    input_shape: Shape,
    classes: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    factory: plugin.Factory | None = None,
) -> nn.Module:
    """A model with initial weights that are a function of `seed`; torch's global generator stays as it was. A `factory` passed
    from Python takes the place of the named one. Raises: BadInput."""
    check.at_least(1, classes=classes)
    factory = factory or plugin.find(ROOM, name, key="model.name")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(factory, input_shape, classes, options or {})
    if not isinstance(model, nn.Module):
        raise BadInput(f"Expected {name!r} to return a torch module, got {type(model).__name__}.")
    return model


def drawn(name: str, *, options: Mapping[str, Any], factory: plugin.Factory | None = None) -> bool:
    """Whether a model begins with nothing but what is drawn from the run's seed: one of Tacit's own, that reads no file."""
    return factory is None and ":" not in name and "path" not in options


def size(name: str, *, input_shape: Shape, classes: int, options: Mapping[str, Any] | None = None) -> int | None:
    """How many parameters a built-in model would have, without making it; None where `drawn` is false."""
    if not drawn(name, options=options or {}):
        return None
    factory = plugin.find(ROOM, name, key="model.name")
    with torch.device("meta"):  # shapes without memory
        return sum(p.numel() for p in _made(factory, input_shape, classes, options or {}).parameters())


def check_output(model: nn.Module, x_example: torch.Tensor, answer: Shape) -> None:
    """Raises: ModelRefused unless the model answers a batch in the task's shape, PartFailed."""
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


def _made(factory: plugin.Factory, input_shape: Shape, classes: int, options: Mapping[str, Any]) -> Any:
    given = {"input_shape": tuple(input_shape), "classes": classes}
    return plugin.make(factory, options, table="model", given=given, keys=("name", "lora", "seed", "start"))


@part
def logr(*, input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression; 7,850 parameters on 1x28x28 and ten classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


@part
def mlp(*, input_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer; 159,010 parameters on 1x28x28 and ten classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))


@part
def cifar_cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two 3x3 convolutions without padding, one pooling, two dense layers; 1,626,442 parameters on 3x32x32 and ten classes."""
    channels, _ = _image("cifar-cnn", input_shape)
    first, second = nn.Conv2d(channels, 32, 3), nn.Conv2d(32, 64, 3)
    features = (first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2))
    return _classifier(features, input_shape, 128, nn.ReLU, classes)


@part
def cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two strided convolutions and two dense layers; 26,010 parameters on 1x28x28 and ten classes. That of Papernot et al. 2021
    (arXiv:2007.14191v1), with tanh, which suits clipping better than ReLU. Images under 16 pixels a side get smaller
    kernels."""
    channels, side = _image("cnn", input_shape)
    if side >= LARGE_IMAGE:
        first, second = nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    else:
        first, second = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)
    features = (first, ChannelsLast(), nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1))
    return _classifier(features, input_shape, 32, nn.Tanh, classes)


class ChannelsLast(nn.Module):
    """The same image with its channels innermost in memory, which makes max-pooling on a CPU nine times faster. By `permute`,
    because `torch.func.vmap` knows no memory formats."""

    only_for_cpu = True  # it gives back what it is given: a stack of clients on a GPU leaves it out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, torch.Tensor) and x.is_cuda:  # what reads a model as a graph gives it something else
            return x
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _image(name: str, shape: Shape) -> tuple[int, int]:
    if len(shape) != 3 or min(shape[1:]) < SMALL_IMAGE:
        raise BadInput(
            f"Expected images of shape (channels, height, width), {SMALL_IMAGE}x{SMALL_IMAGE} or larger, for {name!r}; "
            f"got inputs of shape {shape}. Use 'mlp', which reads any shape."
        )
    return shape[0], min(shape[1:])


def _classifier(
    features: tuple[nn.Module, ...], shape: Shape, hidden: int, activation: type[nn.Module], classes: int
) -> nn.Module:
    before = nn.Sequential(*features, nn.Flatten())
    with torch.no_grad():
        width = before(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*before, nn.Linear(width, hidden), activation(), nn.Linear(hidden, classes))


# A Hugging Face classifier. Nothing is downloaded, and nothing in its folder is code: its weights are safetensors, its class is one
# of the installed `transformers`. What was trained before is public by assumption: no epsilon covers it.


@part
def hugging_face(
    *,
    classes: int,
    path: str,  # the folder that `save_pretrained` wrote
    tune: Literal["lora", "head", "all"] = "lora",  # what trains: adapters and the head, the head alone, or all
    rank: int = 8,  # of the adapters
    targets: list[str]
    | None = None,  # the layers that get adapters, by the ends of their names; default: as `peft` knows
) -> nn.Module:
    """A classifier of rows of token numbers, of equal length, filled up with the model's padding token. A number outside the
    vocabulary counts as the nearest one inside. Raises: BadInput where `path` holds no model, or a package is not installed."""
    check.at_least(1, **{"model.rank": rank})
    model = _read(Path(path), classes)
    if tune == "lora":
        model = _with_adapters(model, rank, targets)
    elif tune == "head":
        model.base_model.requires_grad_(False)
    return HuggingFace(model)


class HuggingFace(nn.Module):
    """A classifier of token numbers as a module of one argument: attention within a row, and to no padding."""

    def __init__(self, model: Any):
        super().__init__()
        self.model, config = model, model.config
        self.vocabulary, self.padding = int(config.vocab_size), config.pad_token_id
        self.causal = any(getattr(module, "is_causal", False) for module in model.modules())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.long().clamp(0, self.vocabulary - 1)
        length = tokens.shape[1]
        hidden = tokens.new_zeros(1, 1, 1, 1) > 0 if self.padding is None else (tokens == self.padding)[:, None, None]
        if self.causal:
            hidden = hidden | tokens.new_ones(length, length).triu(1).bool()
        # made here: `transformers` would look at its values
        mask = torch.zeros(hidden.shape, device=x.device).masked_fill(hidden, torch.finfo(torch.float32).min)
        return self.model(input_ids=tokens, attention_mask=mask).logits


def _read(path: Path, classes: int) -> Any:
    try:
        from transformers import AutoModelForSequenceClassification, utils  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput(
            'model.name = "hugging-face" needs the package transformers: pip install "tacit[transformers]"'
        ) from None
    if not (path / "config.json").is_file():
        raise BadInput(f"{path} holds no model: expected the folder that `model.save_pretrained(...)` wrote.")
    how: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    how |= {"num_labels": classes, "ignore_mismatched_sizes": True}  # a head for other classes begins anew
    how |= {"dtype": torch.float32, "attn_implementation": "eager"}
    logging, before = utils.logging, utils.logging.get_verbosity()
    logging.set_verbosity_error()  # without a bar, and without the news that a head begins anew
    logging.disable_progress_bar()
    try:
        model = AutoModelForSequenceClassification.from_pretrained(path, **how)
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
    model.config._name_or_path = ""  # where it lies is no part of what it is
    return model


def _with_adapters(model: Any, rank: int, targets: list[str] | None) -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput('model.tune = "lora" needs the package peft: pip install "tacit[transformers]"') from None
    config = peft.LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPT-2's layers are transposed: peft sees it, sets what is needed, and says so
        try:
            return peft.get_peft_model(model, config)
        except ValueError:
            if targets is not None:
                raise
            raise BadInput(
                f"peft does not say which layers of a {model.config.model_type} get adapters: name them by the ends of their"
                ' names, as in model.targets = ["query", "value"].'
            ) from None
