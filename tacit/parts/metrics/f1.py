"""The harmonic mean of precision and recall."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import once, one_hot, sums


class f1:
    """F1 of the second of two classes; of several classes or labels the mean over them."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        return float(self.resampled(answers, once(answers))[0])

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        each = _by_class(answers, counts)
        return each[:, 1] if answers.kind != "multilabel" and each.shape[1] == 2 else each.mean(1)


def _by_class(answers: Answers, counts: np.ndarray) -> np.ndarray:
    """F1 of each class or label in every draw, [draws, classes]; 0 where it neither holds nor is predicted."""
    holds, guessed = (one_hot(labels, len(answers.classes)) for labels in (answers.targets, answers.labels))
    among = sums(holds, counts) + sums(guessed, counts)
    return np.divide(2 * sums(holds & guessed, counts), among, out=np.zeros_like(among), where=among > 0)
