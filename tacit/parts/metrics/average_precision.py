"""The area under the precision-recall curve."""

import numpy as np

from tacit.parts.metrics import Answers
from tacit.parts.metrics._resample import once, ranked
from tacit.parts.metrics.auroc import columns


class average_precision:
    """The mean precision over the ranks of the rows that hold; the mean over classes or labels."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError where a class has no test row."""
        holds, _ = columns(answers)
        if not holds.any(0).all():
            raise ValueError("every class needs a test row")
        return float(self.resampled(answers, once(answers))[0])

    def resampled(self, answers: Answers, counts: np.ndarray) -> np.ndarray:
        """The metric of every draw of rows, `counts` saying how often each row is in it."""
        holds, scores = columns(answers)
        return np.mean([_area(*ranked(scores[:, k], holds[:, k], counts)) for k in range(holds.shape[1])], axis=0)


def _area(held: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """The precision at each score, weighted by the answers there that hold; NaN where none does."""
    hits, taken = np.cumsum(held, axis=1, dtype=float), np.cumsum(held + rest, axis=1, dtype=float)
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    total = hits[:, -1]
    return np.divide(np.einsum("ds,ds->d", precision, held), total, out=np.full(len(total), np.nan), where=total > 0)
