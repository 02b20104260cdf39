"""The perplexity of the next token."""

import numpy as np

from tacit.metrics import Answers
from tacit.metrics.log_loss import LEAST


class perplexity:
    """exp of the mean of -log of the probability given to each token: as if one of that many were guessed evenly."""

    better, best, worst = "lower", 1.0, None

    def __call__(self, answers: Answers) -> float:
        given = np.take_along_axis(answers.predictions, answers.targets[..., None], axis=-1)
        return float(np.exp(-np.log(np.maximum(given, LEAST)).mean()))
