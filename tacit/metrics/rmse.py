"""The root of the mean squared error."""

import numpy as np

from tacit.metrics import Answers


class rmse:
    """In the targets' own units."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        return float(
            np.sqrt(np.square(answers.predictions - answers.targets.reshape(answers.predictions.shape)).mean())
        )
