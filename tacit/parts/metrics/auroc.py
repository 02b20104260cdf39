"""The area under the ROC curve."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import once, ranked


class auroc:
    """The chance that a row of a class scores higher than one of the others; the mean over classes (one against the rest)."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError where test rows have one class only."""
        holds, _ = columns(answers)
        if not (holds.any(0) & ~holds.all(0)).all():
            raise ValueError("test rows of both kinds are needed for every class")
        return float(self.resampled(answers, once(answers))[0])

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        holds, scores = columns(answers)
        return np.mean([_area(*ranked(scores[:, k], holds[:, k], counts)) for k in range(holds.shape[1])], axis=0)


def columns(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Whether each class, or label, holds, and its scores; of two classes only the second counts."""
    if answers.kind == "multilabel":
        return answers.targets.astype(bool), answers.predictions
    holds = answers.targets[:, None] == np.arange(answers.predictions.shape[1])
    only = slice(1, None) if holds.shape[1] == 2 else slice(None)
    return holds[:, only], answers.predictions[:, only]


def _area(held: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Pairs that are in order, and half of those with equal scores, by all pairs; NaN where there are none."""
    above = np.cumsum(held, axis=1, dtype=float)
    pairs = above[:, -1] * rest.sum(1, dtype=float)
    ordered = np.einsum("ds,ds->d", above - 0.5 * held, rest)
    return np.divide(ordered, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
