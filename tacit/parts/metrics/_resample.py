"""Test rows drawn again, all draws at once: what a metric would have been on other test rows (percentile bootstrap).

A draw is how often each answer was drawn, [draws, answers]. A metric that has `resampled(answers, counts)` turns all draws into
numbers by a few products of matrices; of another's the draws are made one by one. Both read the same draws, so that they agree.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tacit.parts.metrics._answers import Answers

RESAMPLES = 200  # of the test rows, for an interval: the ends of the middle 95 % move by a tenth of its width
MIDDLE = (0.025, 0.975)
MOST_NUMBERS = 1 << 22  # of counts held at a time


def draws(answers: Answers) -> Iterator[np.ndarray]:
    """Which test rows each draw has; always the same for as many rows."""
    rng, rows = np.random.default_rng(0), answers.test_rows
    return (rng.integers(0, rows, rows) for _ in range(RESAMPLES if rows > 1 else 0))


def counts(answers: Answers) -> Iterator[np.ndarray]:
    """How often each answer is drawn, some draws at a time: answers of one test row are drawn together.

    >>> next(counts(Answers("regression", np.zeros(3), np.zeros(3)))).sum(1)[:3]
    array([3., 3., 3.], dtype=float32)
    """
    together = max(1, MOST_NUMBERS // max(1, len(answers)))
    some: list[np.ndarray] = []
    for draw in draws(answers):
        some.append(np.bincount(draw, minlength=answers.test_rows))
        if len(some) == together:
            yield _stacked(some, answers)
            some = []
    if some:
        yield _stacked(some, answers)


def _stacked(some: Sequence[np.ndarray], answers: Answers) -> np.ndarray:
    found = np.stack(some).astype(np.float32)
    return found if answers.row is None else found[:, answers.row]


def middle(values: np.ndarray) -> list[float] | None:
    """The middle 95 % of draws that could tell; None where half of them could not, as where a class is too rare."""
    told = values[np.isfinite(values)]
    return [float(end) for end in np.quantile(told, MIDDLE)] if len(told) > RESAMPLES // 2 else None


def wilson(hits: float, total: float) -> list[float]:
    """Wilson's 95 % interval of a share: draws of rows that are all right say nothing of the one that will be wrong.

    >>> [round(end, 3) for end in wilson(34, 34)]
    [0.898, 1.0]
    """
    share, z = hits / total, 1.959964
    centre, spread = share + z * z / (2 * total), z * np.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return [
        float(max(0.0, (centre - spread) / (1 + z * z / total))),
        float(min(1.0, (centre + spread) / (1 + z * z / total))),
    ]


def once(answers: Answers) -> np.ndarray:
    """The draw that has every answer once, in float64: a metric of it is the metric itself, to the last bits.

    Scikit-learn has these metrics too, and tests hold them to it; but it takes half a second and 75 MB to load, in every run.
    """
    return np.ones((1, len(answers)))


def means(each: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean of a number per answer in every draw."""
    centre = each.mean(dtype=np.float64)  # so that float32 sums lose nothing that is seen
    return centre + (counts @ (each - centre).astype(np.float32)).astype(np.float64) / counts.sum(1)


def sums(each: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of columns (whole numbers: exact) in every draw, [draws, columns]."""
    return (counts @ each.astype(np.float32)).astype(float)


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """A column per class, or per label where rows have several already."""
    return labels.astype(bool) if labels.ndim > 1 else labels[:, None] == np.arange(classes)


def ranked(scores: np.ndarray, holds: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drawn answers that hold, and that do not, by score from the highest down, equal scores together: [draws, scores] each."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    drawn = counts[:, order]
    held = drawn * holds[order].astype(np.float32)
    rest = drawn - held
    if len(first) < len(ordered):
        held, rest = np.add.reduceat(held, first, axis=1), np.add.reduceat(rest, first, axis=1)
    return held, rest
