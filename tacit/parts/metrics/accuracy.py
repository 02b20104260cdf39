"""The share of right answers."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import means, wilson


class accuracy:
    """The share of test rows (of labels, of tokens) whose prediction is right."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        return float(_right(answers).mean())

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        return means(_right(answers), counts)

    def interval(self, answers: Answers) -> list[float] | None:
        """Wilson's, where each row is right or wrong by itself: of an accuracy of 1 too it says how little is known."""
        whole = answers.row is None and answers.targets.ndim == 1 and len(answers) > 1
        return wilson(float(_right(answers).sum()), len(answers)) if whole else None


def _right(answers: Answers) -> np.ndarray:
    """The share of each answer that is right: all or nothing, but of several labels."""
    right = answers.labels == answers.targets.reshape(answers.labels.shape)
    return right.reshape(len(right), -1).mean(1)
