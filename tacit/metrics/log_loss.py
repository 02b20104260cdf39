"""The mean of -log of the probability given to what held."""

import numpy as np

from tacit.metrics import Answers

LEAST = 2.0**-52  # a probability that was rounded to zero


class log_loss:
    """The cross-entropy of the test rows, without class weights."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        given = np.take_along_axis(answers.predictions, answers.targets[:, None], axis=1)
        return float(-np.log(np.maximum(given, LEAST)).mean())
