"""The area under the ROC curve."""

import numpy as np
from sklearn.metrics import roc_auc_score

from tacit.metrics import Answers


class auroc:
    """The chance that a row of a class scores higher than one of the others; the mean over classes (one against the rest)."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError where test rows have one class only."""
        holds = _columns(answers)
        if not (holds.any(0) & ~holds.all(0)).all():
            raise ValueError("test rows of both kinds are needed for every class")
        scores = answers.predictions[:, 1:] if holds.shape[1] == 1 else answers.predictions
        return float(np.mean([roc_auc_score(holds[:, k], scores[:, k]) for k in range(holds.shape[1])]))


def _columns(answers: Answers) -> np.ndarray:
    """Whether each class, or label, holds; of two classes only the second counts."""
    if answers.kind == "multilabel":
        return answers.targets.astype(bool)
    holds = answers.targets[:, None] == np.arange(answers.predictions.shape[1])
    return holds[:, 1:] if holds.shape[1] == 2 else holds
