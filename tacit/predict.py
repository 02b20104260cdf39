"""A run's model in use: loaded with the way its rows were read, it takes raw columns and answers labels and probabilities."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from tacit import wire
from tacit.check import some
from tacit.data import encoder as encoder_file
from tacit.data.encoder import Encoded, Encoder, encode
from tacit.data.frames import cells_of
from tacit.data.texts import Cells, Table, refuse_absent
from tacit.engine.assemble import model_of
from tacit.engine.evaluate import CHUNK
from tacit.engine.history import FROZEN
from tacit.engine.start import trained
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.parts import models, tasks
from tacit.parts.tasks import Task
from tacit.training.flat import blocks, frozen, frozen_mark, trainable

# Raw columns in memory as a table that an encoder reads: a mapping, a DataFrame, or an array in the encoder's order.

WHERE = "The rows given"
MOST_NAMED = 5  # columns in one sentence


def table(rows: Any, encoder: Encoder) -> Table:
    """The rows by column; a tensor or array has a raw column for each of the encoder's, in that order, and NaN for missing.
    Raises BadData, BadInput."""
    if isinstance(rows, torch.Tensor | np.ndarray):
        columns = _of_array(rows, encoder)
    elif isinstance(rows, Mapping) or (hasattr(rows, "columns") and hasattr(rows, "iloc")):
        names = {str(name): name for name in getattr(rows, "columns", rows)}
        refuse_absent(WHERE, encoder.names, [*names])
        if extra := [name for name in names if name not in (*encoder.names, encoder.label)]:
            raise BadData(
                f"{WHERE} have columns that the model was not trained on: {some(extra, MOST_NAMED)}; take its own, as in"
                " rows[list(model.feature_names_in_)]."
            )
        columns = {column.name: cells_of(rows[names[column.name]], column, WHERE) for column in encoder.columns}
    else:
        raise BadInput(
            f"Expected rows as a mapping of column names to values, a DataFrame, a tensor or an array, got a {type(rows).__name__}."
        )
    count = len(next(iter(columns.values())))
    for name, cells in columns.items():
        if len(cells) != count:
            raise BadData(f"{WHERE} have {count} values in column {encoder.names[0]!r} and {len(cells)} in {name!r}.")
    return Table(WHERE, range(count), columns, unit="row")


def tensor(rows: Any, encoder: Encoder, *, tokens: bool = False) -> torch.Tensor:
    """Rows that have no columns, such as images, as the model reads them. Raises BadInput."""
    if not isinstance(rows, torch.Tensor | np.ndarray) or tuple(rows.shape[1:]) != encoder.shape:
        found = list(rows.shape) if isinstance(rows, torch.Tensor | np.ndarray) else f"a {type(rows).__name__}"
        raise BadInput(f"Expected rows as a tensor of shape [rows, {', '.join(map(str, encoder.shape))}], got {found}.")
    given = torch.as_tensor(rows)
    if tokens and not given.is_floating_point():
        return given.to(torch.int64)
    made = given.to(torch.float32)
    return made if encoder.divide_by == 1 else made / encoder.divide_by


def _of_array(rows: torch.Tensor | np.ndarray, encoder: Encoder) -> dict[str, Cells]:
    values = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else rows
    if values.ndim != 2 or values.shape[1] != len(encoder.columns):
        raise BadInput(
            f"Expected an array of shape [rows, {len(encoder.columns)}], with the raw columns in the order"
            f" {', '.join(encoder.names[:12])}{', ...' * (len(encoder.columns) > 12)}; got {list(values.shape)}."
        )
    return {column.name: cells_of(values[:, index], column, WHERE) for index, column in enumerate(encoder.columns)}


# A model together with its encoder: a plain torch module that takes raw columns.

WORD = {"multilabel": "probability"}  # what a number is called; any other is a prediction


@dataclass(frozen=True, eq=False)
class Predictions:
    """A label and the probabilities of all classes for each row; None and NaN for a row that lacks a value it must have."""

    labels: list[str | None]
    probabilities: np.ndarray = field(repr=False)  # [rows, classes]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def columns(self) -> list[str]:
        """The names of what each row has."""
        return ["prediction", *(f"probability_{name}" for name in self.classes)]

    def rows(self) -> list[list[Any] | None]:
        """What each row has; None for one without a prediction."""
        pairs = zip(self.labels, self.probabilities.tolist(), strict=True)
        return [None if label is None else [label, *row] for label, row in pairs]

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per row: `pandas.DataFrame(predictions.records())`."""
        return _records(self.columns, self.rows())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The labels, for scikit-learn's metrics and for NumPy."""
        return np.array(self.labels, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Numbers:
    """One or several numbers for each row (of several labels their probabilities); NaN for a row that lacks a value."""

    values: np.ndarray = field(repr=False)  # [rows, outputs]
    word: str = "prediction"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> list[str]:
        """The names of what each row has."""
        width = self.values.shape[1]
        return [self.word] if width == 1 else [f"{self.word}_{index + 1}" for index in range(width)]

    def rows(self) -> list[list[Any] | None]:
        """What each row has; None for one without a prediction."""
        return [None if np.isnan(row).any() else row.tolist() for row in self.values]

    def records(self) -> list[dict[str, Any]]:
        """A flat dict per row: `pandas.DataFrame(predictions.records())`."""
        return _records(self.columns, self.rows())


def _records(columns: list[str], rows: list[list[Any] | None]) -> list[dict[str, Any]]:
    missing = [None if name == "prediction" else float("nan") for name in columns]
    return [dict(zip(columns, missing if row is None else row, strict=True)) for row in rows]


class Predictor(nn.Module):
    """`model` reads encoded rows, `encoder` makes them. Rows are a mapping of column names to values, a DataFrame, or an array of
    raw values in the order of `encoder.names`; for a run on tensors, such as images, a tensor of the rows' shape.
    Guarantee: a row of the run's files is encoded to the very bits that it was trained or tested with."""

    def __init__(self, model: nn.Module, encoder: Encoder, experiment: Experiment, task: Task):
        super().__init__()
        self.model, self.encoder, self.experiment, self.task = model, encoder, experiment, task

    def forward(self, rows: Any) -> torch.Tensor:
        """The scores, [rows, classes or outputs]; NaN for rows that "drop" leaves out. Raises BadData, BadInput."""
        if not self.encoder.columns:
            return self.scores(tensor(rows, self.encoder, tokens=self.experiment.task.kind == "tokens"))
        found = self.encode(table(rows, self.encoder))
        scores = self.scores(torch.from_numpy(found.x))
        return scores if found.kept.all() else self.filled(scores, found.kept)

    def predict(self, rows: Any) -> Predictions | Numbers:
        """What the task answers for every row: the most probable label with the probability of each class, or numbers.
        Raises BadData; BadInput for rows of tokens, where every position has an answer."""
        if self.experiment.task.kind == "tokens":
            raise BadInput(
                "A model of tokens answers at every position of a row: call the predictor itself, predictor(rows), which gives"
                " the scores of every next token."
            )
        with torch.inference_mode():
            return self.decided(self(rows))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of each of `classes_` for every row, as scikit-learn's classifiers say it. Raises as `predict`."""
        found = self.predict(rows)
        if isinstance(found, Numbers):
            raise BadInput("This model predicts numbers and no classes: call predict.")
        return found.probabilities

    @property
    def classes_(self) -> np.ndarray:
        """The labels, in the order of `predict_proba`."""
        return np.array(self.encoder.classes)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The raw columns, in the order in which an array of rows has them."""
        return np.array(self.encoder.names, dtype=object)

    def encode(self, table: Table) -> Encoded:
        """The features of a table. Raises BadData naming row and column."""
        return encode(table, self.encoder.columns, trained=True)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of encoded rows, as many at a time as in a run's evaluation."""
        x = x.to(next(self.model.parameters(), x).device)
        width = self.encoder.outputs or len(self.encoder.classes)
        return torch.cat([self.model(part) for part in x.split(CHUNK)]) if len(x) else torch.zeros(0, width)

    def filled(self, scores: torch.Tensor, kept: np.ndarray) -> torch.Tensor:
        """The scores of the rows that were kept, in their places; NaN for the others."""
        whole = scores.new_full((len(kept), *scores.shape[1:]), float("nan"))
        return whole.index_copy(0, torch.from_numpy(np.flatnonzero(kept)).to(scores.device), scores)

    def decided(self, scores: torch.Tensor) -> Predictions | Numbers:
        """Scores as labels and probabilities, or as numbers."""
        means = self.task.predictions(scores).cpu()
        if self.encoder.outputs:
            return Numbers(means.numpy(), WORD.get(self.experiment.task.kind, "prediction"))
        classes, known = self.encoder.classes, ~means.isnan().any(1)
        labels = [
            classes[code] if ok else None for code, ok in zip(means.argmax(1).tolist(), known.tolist(), strict=True)
        ]
        return Predictions(labels, means.numpy(), classes)


# `tacit.load`: from a run's folder to a model that takes raw columns.

MODEL, RUN_FILE = "model.safetensors", "run.json"
NUMBERS = ("regression", "multilabel", "tokens")  # tasks that answer numbers, not one of the classes
BYTES_OF_A_CHARACTER = 4  # at most, in UTF-8


def load(run: Path | str, *, trust: bool = False) -> Predictor:
    """The model of a finished run, ready to predict: the files experiment.toml, encoder.json and model.safetensors of its folder.
    `trust = True` imports the model's own code, where the experiment names some, and opens its `model.path`. What was frozen is
    built again and held against the hash in the file. Guarantee: without `trust`, nothing that the folder names is imported or
    opened. Raises BadInput."""
    folder = Path(run)
    experiment, encoder = _experiment(folder), _encoder(folder)
    name = experiment.model.name
    for what, named in (("model", name), ("task", experiment.task.kind)):
        if ":" in named and not trust:
            raise BadInput(
                f"{folder} names the {what} {wire.shown(named)}, which is code of somebody's own: if you know it, say trust=True"
                " (in Python) or --trust."
            )
    task = tasks.unread(experiment.task.kind)
    if (experiment.task.kind in NUMBERS) != bool(encoder.outputs) and ":" not in experiment.task.kind:
        raise BadInput(
            f"{folder} is for a {experiment.task.kind} task, and its {encoder_file.NAME} answers something else."
        )
    if "path" in experiment.model.options() and not trust:
        raise BadInput(
            f"{folder} says that its model's weights lie in {wire.shown(experiment.model.options()['path'])}: if you want that"
            " opened, say trust=True (in Python) or --trust."
        )
    shapes, said = _head(folder / MODEL)
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
    if said != frozen_mark(model) and (said is not None or frozen(model)):
        raise BadInput(
            f"{folder / MODEL} was trained on another frozen part than the model has now: build it from the file or the seed that"
            " the run had."
        )
    tensors = _tensors(folder / MODEL)
    with torch.no_grad():
        for name, parameter in trainable(model):
            parameter.copy_(tensors[name])
    return Predictor(trained(model, _run(folder)), encoder, experiment, task).eval()


def _experiment(folder: Path) -> Experiment:
    path = folder / "experiment.toml"
    if (folder / "federation.toml").is_file():
        raise BadInput(
            f"{folder} is a federation: its model is that of {folder / 'results'}, and a site predicts with its own folder."
        )
    if not path.is_file():
        raise BadInput(f"{folder} is not the folder of a run: it holds no experiment.toml.")
    try:
        return Experiment(**wire.toml_table(_text(path, wire.MOST_TEXT), what=str(path)))
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


def _head(path: Path) -> tuple[dict[str, torch.Size], str | None]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            if any(part.get_dtype() != "F32" for part in slices.values()):
                raise BadInput(f"{path} holds parameters that are not 32-bit numbers.")
            shapes = {name: torch.Size(part.get_shape()) for name, part in slices.items()}
            return shapes, (file.metadata() or {}).get(FROZEN)
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} cannot be read as a model ({str(error)[: wire.SHOWN]}).") from None


def _run(folder: Path) -> str | None:
    with suppress(BadInput, ValueError, KeyError, TypeError):
        return str(json.loads(_text(folder / RUN_FILE, wire.MOST_TEXT))["run"])
    return None


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
