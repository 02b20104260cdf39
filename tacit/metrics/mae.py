"""The mean absolute error."""

import numpy as np

from tacit.metrics import Answers


class mae:
    """In the targets' own units."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(np.abs(answers.predictions - answers.targets.reshape(answers.predictions.shape)).mean())
