"""`tacit.load`: from a run's folder to a model that takes raw columns.

Whoever sends a folder is believed nothing: its files are parsed within limits, sizes are compared before anything is built, and
code that it names is imported only where the caller says so.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from tacit import models, parse, tasks
from tacit.build.parts import model_of
from tacit.data import encoder_file
from tacit.data.encoder import Encoder
from tacit.engine.history import FROZEN
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.predict.predictor import Predictor
from tacit.train.flat import blocks, trainable
from tacit.train.frozen import frozen, frozen_mark

MODEL = "model.safetensors"
NUMBERS = ("regression", "multilabel", "tokens")  # tasks that answer numbers, not one of the classes
BYTES_OF_A_CHARACTER = 4  # at most, in UTF-8


def load(run: Path | str, *, trust: bool = False) -> Predictor:
    """The model of a finished run, ready to predict: the files experiment.toml, encoder.json and model.safetensors of its folder.

    `trust = True` imports the model's own code where the experiment names it as package.module:function, and opens its
    `model.path`; a model that ships with Tacit, and reads no weights, needs nothing. What was frozen is built again, as the run
    did, and held against the hash in the file. Guarantee: without `trust`, nothing that the folder names is imported or opened.
    Raises BadInput.
    """
    folder = Path(run)
    experiment, encoder = _experiment(folder), _encoder(folder)
    name = experiment.model.name
    for what, named in (("model", name), ("task", experiment.task.kind)):
        if ":" in named and not trust:
            raise BadInput(
                f"{folder} names the {what} {parse.shown(named)}, which is code of somebody's own: if you know it, say trust=True"
                " (in Python) or --trust."
            )
    task = tasks.unread(experiment.task.kind)
    if (experiment.task.kind in NUMBERS) != bool(encoder.outputs) and ":" not in experiment.task.kind:
        raise BadInput(
            f"{folder} is for a {experiment.task.kind} task, and its {encoder_file.NAME} answers something else."
        )
    if "path" in experiment.model.options() and not trust:
        raise BadInput(
            f"{folder} says that its model's weights lie in {parse.shown(experiment.model.options()['path'])}: if you want that"
            " opened, say trust=True (in Python) or --trust."
        )
    shapes = _shapes(folder / MODEL)
    answers = 1 if experiment.task.kind == "binary" else encoder.outputs or len(encoder.classes)
    facts = {"input_shape": encoder.shape, "classes": answers}
    size = models.size(name, **facts, options=experiment.model.options())
    if size is not None and size != sum(shape.numel() for shape in shapes.values()):
        raise BadInput(
            f"{folder / MODEL} is not the model that {folder} describes: it has another number of parameters."
        )
    model = model_of(experiment, **facts)
    layout = blocks(model)
    if {block.name: block.shape for block in layout} != shapes:
        raise BadInput(f"{folder / MODEL} is not the model that {folder} describes: its parameters have other shapes.")
    said = _frozen(folder / MODEL)
    if said != frozen_mark(model) and (said is not None or frozen(model)):
        raise BadInput(
            f"{folder / MODEL} was trained on another frozen part than the model has now: build it from the file or the seed that"
            " the run had."
        )
    tensors = _tensors(folder / MODEL)
    with torch.no_grad():
        for name, parameter in trainable(model):
            parameter.copy_(tensors[name])
    return Predictor(model, encoder, experiment, task).eval()


def _experiment(folder: Path) -> Experiment:
    path = folder / "experiment.toml"
    if (folder / "federation.toml").is_file():
        raise BadInput(
            f"{folder} is a federation: its model is that of {folder / 'results'}, and a site predicts with its own folder."
        )
    if not path.is_file():
        raise BadInput(f"{folder} is not the folder of a run: it holds no experiment.toml.")
    try:
        return Experiment(**parse.toml_table(_text(path, parse.MOST_TEXT), what=str(path)))
    except TypeError:  # a key that is no name of an argument
        raise BadInput(f"{path} is not the text of an experiment.") from None


def _encoder(folder: Path) -> Encoder:
    path = folder / encoder_file.NAME
    if not path.is_file() or not (folder / MODEL).is_file():
        raise BadInput(
            f"{folder} lacks {encoder_file.NAME} or {MODEL}, which a run that has ended holds: `tacit run --resume --out"
            f" {folder}` ends one."
        )
    try:
        return encoder_file.read(_text(path, encoder_file.MOST_TEXT))
    except BadInput as error:
        raise BadInput(f"{path} cannot be used: {error}") from None


def _shapes(path: Path) -> dict[str, torch.Size]:
    """The shapes of a model's parameters, from the head of its file. Raises BadInput."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            if any(part.get_dtype() != "F32" for part in slices.values()):
                raise BadInput(f"{path} holds parameters that are not 32-bit numbers.")
            return {name: torch.Size(part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} cannot be read as a model ({str(error)[: parse.SHOWN]}).") from None


def _frozen(path: Path) -> str | None:
    """The hash of what was not trained, from the head of a model's file; None where it says none."""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get(FROZEN)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if not all(bool(tensor.isfinite().all()) for tensor in found.values()):
        raise BadInput(f"{path} holds parameters that are not finite.")
    return found


def _text(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most * BYTES_OF_A_CHARACTER:
            raise BadInput(f"{path} has more than the {most} characters that are read.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{path} cannot be read as text in UTF-8.") from None
