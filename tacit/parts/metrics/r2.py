"""The coefficient of determination."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import once
from tacit.parts.metrics.mae import errors


class r2:
    """1 for exact predictions, 0 for always answering the mean, below 0 for worse; the mean over several targets."""

    better, best, worst = "higher", 1.0, None

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError of fewer than two rows."""
        if len(answers) < 2:
            raise ValueError("two test rows are needed")
        return float(self.resampled(answers, once(answers))[0])

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        drawn, targets = counts.astype(float), answers.targets.reshape(len(answers), -1).astype(float)
        targets = targets - targets.mean(0)
        spread = drawn @ np.square(targets) - np.square(drawn @ targets) / drawn.sum(1, keepdims=True)
        missed = drawn @ np.square(errors(answers).astype(float))
        each = 1 - np.divide(missed, spread, out=np.ones_like(spread), where=spread > 0)
        return np.where((spread <= 0) & (missed == 0), 1.0, each).mean(1)
