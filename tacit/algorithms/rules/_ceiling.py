"""How much of what all clients declare one may count for: epsilons and sizes are declared, and nobody can check them.

Each counts up to a ceiling that follows from all of them, so that server and sites compute the same one before the first round.
"""

import numpy as np

from tacit.algorithms.rules import Crowd
from tacit.errors import BadInput

EQUAL_SHARES = 10  # unless said: a tenth of the clients may still carry all the weight, as PFA's public ones do


def share_of(most_share: float | None, clients: int) -> float:
    """The largest share of one client: as said, or ten equal ones; never less than an equal one.

    >>> share_of(None, 7), share_of(None, 40), share_of(0.01, 40)
    (1.0, 0.25, 0.025)
    """
    return max(1 / clients, min(1.0, EQUAL_SHARES / clients) if most_share is None else most_share)


def ceiling(values: np.ndarray, most_share: float | None) -> float:
    """Up to what a value counts, so that none is more than its share of the sum of what counts; infinity where all are within it.

    An infinite value is left alone: whoever sets no limit cannot be weighed by it, and the rule says so.

    >>> ceiling(np.array([1.0, 1.0, 8.0]), 0.5), ceiling(np.array([1.0, 1.0, 8.0]), None)
    (2.0, inf)
    """
    ordered, share = np.sort(np.asarray(values, dtype=float))[::-1], share_of(most_share, len(values))
    if ordered[0] <= share * ordered.sum() or not np.isfinite(ordered[0]):
        return np.inf
    for cut in range(1, len(ordered)):  # the first for which it holds leaves room: cut * share < 1
        top = share * ordered[cut:].sum() / (1 - cut * share)
        if ordered[cut] <= top:
            return float(top)
    return float(ordered[-1])


def refuse_unlimited(crowd: Crowd) -> None:
    """Refuses to weigh by epsilon where one is infinite, before anybody has paid for a round. Raises: BadInput."""
    if np.isinf(crowd.epsilons).any():
        raise BadInput(
            "A client without a limit (epsilon = inf) cannot be weighed by its epsilon: name a finite one, or use another rule."
        )
