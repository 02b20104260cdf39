"""The area under the precision-recall curve."""

import numpy as np
from sklearn.metrics import average_precision_score

from tacit.metrics import Answers
from tacit.metrics.auroc import _columns


class average_precision:
    """The mean precision over the ranks of the rows that hold; the mean over classes or labels."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError where a class has no test row."""
        holds = _columns(answers)
        if not holds.any(0).all():
            raise ValueError("every class needs a test row")
        scores = answers.predictions[:, 1:] if holds.shape[1] == 1 else answers.predictions
        return float(np.mean([average_precision_score(holds[:, k], scores[:, k]) for k in range(holds.shape[1])]))
