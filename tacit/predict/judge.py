"""What predictions are worth where rows have labels: by the run's own metric and loss, so that the same rows give its figures."""

from collections.abc import Iterator

import numpy as np
import torch

from tacit import losses, metrics
from tacit.engine.evaluate import CHUNK
from tacit.errors import BadInput
from tacit.metrics import Answers
from tacit.predict.predictor import Predictor
from tacit.tasks import chosen


class Judge:
    """Gathers scores and targets block by block, rows without a target left out."""

    def __init__(self, predictor: Predictor):
        self._predictor, self._loss = predictor, _loss(predictor)
        self._targets: list[np.ndarray] = []
        self._means: list[np.ndarray] = []
        self.loss, self.labelled = 0.0, 0

    def add(self, scores: torch.Tensor, targets: torch.Tensor, known: torch.Tensor) -> None:
        """Counts a block as a run's evaluation does, as many rows at a time."""
        blocks = zip(scores.split(CHUNK), targets.split(CHUNK), known.split(CHUNK), strict=True)
        for part, truth, told in blocks:
            part, truth = part[told], truth[told]
            self.labelled += len(truth)
            self._targets.append(truth.numpy())
            self._means.append(self._predictor.task.predictions(part).cpu().numpy())
            if self._loss is not None:
                self.loss += float(self._loss(part, truth).sum())

    def value(self) -> tuple[str, float] | None:
        """The run's metric by its key and its value; None where these rows cannot tell. Raises nothing."""
        experiment, encoder = self._predictor.experiment, self._predictor.encoder
        name = chosen(experiment)
        if not self.labelled or (":" in name):
            return None
        found = Answers(
            experiment.task.kind, np.concatenate(self._targets), np.concatenate(self._means), encoder.classes
        )
        value = metrics.told(metrics.load(name), found)
        return None if value is None else (metrics.key(name), value)

    def sentences(self) -> Iterator[str]:
        """What is said of it."""
        if not self.labelled:
            return
        value = self.value()
        parts = [f"{metrics.words(value[0])} {value[1]:.4f}"] if value else []
        parts += [f"loss {self.loss / self.labelled:.4f}"] if self._loss is not None else []
        if parts:
            text = f"{', '.join(parts)} on the {self.labelled} that have a label."
            yield text[0].upper() + text[1:]


def _loss(predictor: Predictor) -> losses.Losses | None:
    """The loss that trained the model, where it is one of Tacit's own with nothing set; None where another was."""
    task, experiment = predictor.task, predictor.experiment
    name = experiment.task.loss or task.loss
    if ":" in name or experiment.task.options():
        return None
    classes = len(predictor.encoder.classes)
    width = 1 if experiment.task.kind == "binary" else predictor.encoder.outputs or classes
    outputs = torch.zeros(losses.TRIED, width)
    targets = torch.zeros(losses.TRIED, dtype=torch.int64) if classes else torch.zeros(losses.TRIED)
    try:
        return losses.load(name, {}, outputs=outputs, targets=targets)
    except BadInput:
        return None
