"""The Brier score."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import means


class brier:
    """The mean squared distance of the probabilities from what held: of yes for two classes, summed over more classes."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(_errors(answers).mean(dtype=np.float64))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return means(_errors(answers), counts)


def _errors(answers: Answers) -> np.ndarray:
    if answers.kind == "multilabel":
        return np.square(answers.predictions - answers.targets).mean(1)
    holds = answers.targets[:, None] == np.arange(answers.predictions.shape[1])
    errors = np.square(answers.predictions - holds)
    return errors[:, 1] if errors.shape[1] == 2 else errors.sum(1)
