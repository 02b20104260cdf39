"""The mean absolute error."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import means


class mae:
    """In the targets' own units."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(np.abs(errors(answers)).mean(dtype=np.float64))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return means(np.abs(errors(answers)).mean(1), counts)


def errors(answers: Answers) -> np.ndarray:
    """Predictions less targets, [answers, targets of each]."""
    return (answers.predictions - answers.targets.reshape(answers.predictions.shape)).reshape(len(answers), -1)
