"""The root of the mean squared error."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import means
from tacit.parts.metrics.mae import errors


class rmse:
    """In the targets' own units."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(np.sqrt(np.square(errors(answers)).mean(dtype=np.float64)))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return np.sqrt(np.maximum(means(np.square(errors(answers)).mean(1), counts), 0.0))
