"""The mean of -log of the probability given to what held."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import means

LEAST = 2.0**-52  # a probability that was rounded to zero


class log_loss:
    """The cross-entropy of the test rows, without class weights."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(surprise(answers).mean(dtype=np.float64))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return means(surprise(answers), counts)


def surprise(answers: Answers) -> np.ndarray:
    """-log of the probability given to what held, of each answer."""
    given = np.take_along_axis(answers.predictions, answers.targets[:, None], axis=1)
    return -np.log(np.maximum(given[:, 0], LEAST))
