"""The mechanism of a query: counts of a client's records, each with Gaussian noise, released once.

Guarantee: record level, add or remove one. One frozen object owns the noise and its price: what is drawn is what is paid for.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting.rounded import SLACK, RoundedGaussianDpEvent
from tacit.privacy.accounting.sides import on_side
from tacit.privacy.integers import rounded
from tacit.privacy.mechanism import NoiseState
from tacit.random import Stream
from tacit.types import Private


@dataclass(frozen=True, eq=False)
class Counts:
    """Whole numbers that one record, coming or going, changes by a vector of squared length at most `l2_squared`.

    A histogram has 1: a record is in one cell. k histograms side by side have k.
    """

    values: np.ndarray = field(repr=False)
    l2_squared: int


@dataclass(frozen=True)
class NoisyCounts:
    """Adds round(N(0, z^2 l2_squared)) to each of `cells` counts, once.

    Guarantee: one release costs `event()`, add or remove one record, for whoever sees every noised count; float arithmetic is not
    in it (tacit/privacy/integers/rounded.py).

    Assumes: the counts are of sensitivity `l2_squared`, and of one question there is one release.

    Raises: BadInput for a multiplier that is not above 0, no cells, or noise that cannot be drawn as closely as is priced.

    >>> noise = NoisyCounts(noise_multiplier=2.0, l2_squared=4, cells=10)
    >>> round(noise.noise_std, 2), noise.event().noise_multiplier
    (4.0, 2.0)
    """

    noise_multiplier: float
    l2_squared: int
    cells: int
    split: str = ""  # where only the records on one side of a split are counted: which coin,
    side: str = ""  # and which side

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.at_least(1, l2_squared=self.l2_squared, cells=self.cells)
        if self.noise_std > rounded.WIDEST or self.cells * rounded.distance(self.noise_std) > SLACK:
            raise BadInput(
                f"Noise of a standard deviation of {self.noise_std:g} on {self.cells} counts is too wide: ask for fewer, or give"
                " the query a larger share of epsilon."
            )

    @property
    def noise_std(self) -> float:
        """The standard deviation before rounding: not below z sqrt(l2_squared), as real numbers."""
        sigma = self.noise_multiplier * math.sqrt(self.l2_squared)
        while Fraction(sigma) ** 2 < Fraction(self.noise_multiplier) ** 2 * self.l2_squared:
            sigma = math.nextafter(sigma, math.inf)
        return sigma

    def init(self) -> NoiseState:
        """There is one step."""
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """Every record: nothing is claimed for sampling."""
        return state, np.arange(size)

    def noise(self, state: NoiseState, stream: Stream, bounded: Counts) -> tuple[NoiseState, Private]:
        """Adds the noise; the result is whole numbers.

        Raises: BadInput for another number of counts, or counts of another sensitivity, than was priced.
        """
        if bounded.l2_squared != self.l2_squared or bounded.values.shape != (self.cells,):
            text = f"{self.cells} counts of squared sensitivity {self.l2_squared}"
            raise BadInput(f"This noise is made for {text}, got {bounded.values.shape} of {bounded.l2_squared}.")
        noised = bounded.values.astype(np.int64) + rounded.draw(self.noise_std, stream, self.cells)
        return state, Private(torch.from_numpy(noised), self.noise_std)

    def event(self) -> DpEvent:
        """The price of the release."""
        return priced(self.noise_multiplier, split=self.split, side=self.side)


def priced(noise_multiplier: float, *, split: str = "", side: str = "") -> DpEvent:
    """What counts under this noise cost; with a split, to the records on one side of it.

    >>> priced(2.0)
    RoundedGaussianDpEvent(noise_multiplier=2.0)
    """
    event = RoundedGaussianDpEvent(noise_multiplier)
    return on_side(event, split=split, side=side) if split else event
