"""The share of right answers."""

import numpy as np

from tacit.metrics import Answers
from tacit.metrics._resample import means


class accuracy:
    """The share of test rows (of labels, of tokens) whose prediction is right."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        return float(_right(answers).mean())

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        return means(_right(answers), counts)


def _right(answers: Answers) -> np.ndarray:
    """The share of each answer that is right: all or nothing, but of several labels."""
    right = answers.labels == answers.targets.reshape(answers.labels.shape)
    return right.reshape(len(right), -1).mean(1)
