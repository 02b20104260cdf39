"""Learning rates over rounds, as torch's schedulers count them over epochs: `StepLR`, and `CosineAnnealingLR` to the last round.

Guarantee: a share is a function of the round's number and of settings alone, so it costs no privacy.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """Every round at the learning rate that was set."""

    def __call__(self, round: int) -> float:
        """The round's learning rate, as a share of the first one's."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the first round to `end` (a share) after the last (Loshchilov and Hutter 2017, arXiv:1608.03983).

    >>> [round(Cosine(rounds=4)(r), 3) for r in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    rounds: int
    end: float = 0.0

    def __call__(self, round: int) -> float:
        """The round's learning rate, as a share of the first one's."""
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * round / self.rounds)) / 2  # eq. 5


@dataclass(frozen=True)
class Step:
    """Times `factor` after every `every` rounds.

    >>> [Step(every=2, factor=0.5)(r) for r in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    factor: float

    def __call__(self, round: int) -> float:
        """The round's learning rate, as a share of the first one's."""
        return self.factor ** (round // self.every)


Schedule = Constant | Cosine | Step
CONSTANT = Constant()
