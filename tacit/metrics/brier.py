"""The Brier score."""

import numpy as np

from tacit.metrics import Answers


class brier:
    """The mean squared distance of the probabilities from what held: of yes for two classes, summed over more classes."""

    better, best, worst = "lower", 0.0, None

    def __call__(self, answers: Answers) -> float:
        if answers.kind == "multilabel":
            return float(np.square(answers.predictions - answers.targets).mean())
        holds = answers.targets[:, None] == np.arange(answers.predictions.shape[1])
        errors = np.square(answers.predictions - holds)
        return float(errors[:, 1].mean() if errors.shape[1] == 2 else errors.sum(1).mean())
