"""The mean over classes of the share of right answers."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import once, one_hot, sums


class balanced_accuracy:
    """The mean recall of the classes that test rows have: .5 for a coin, however rare a class is."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        return float(self.resampled(answers, once(answers))[0])

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        holds = one_hot(answers.targets, len(answers.classes))
        right = holds & (answers.labels == answers.targets)[:, None]
        drawn = sums(holds, counts)
        recall = np.divide(sums(right, counts), drawn, out=np.zeros_like(drawn), where=drawn > 0)
        return recall.sum(1) / (drawn > 0).sum(1)  # of the classes that are drawn
