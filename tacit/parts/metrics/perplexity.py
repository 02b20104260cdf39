"""The perplexity of the next token."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics.log_loss import log_loss, surprise


class perplexity:
    """exp of the mean of -log of the probability given to each token: as if one of that many were guessed evenly."""

    better, best, worst = "lower", 1.0, None

    def __call__(self, answers: Answers) -> float:
        return float(np.exp(surprise(answers).mean(dtype=np.float64)))

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return np.exp(log_loss().resampled(answers, counts))
