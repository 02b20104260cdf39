"""Noise that nobody draws alone: each client adds an integer share, and the sum carries what the promise needs. One frozen
object owns the share that is drawn and the price of the sum. Guarantee: client level, empty one client, for whoever sees
the sum of at least `fewest` reports and knows the shares of up to `colluding` clients among them. Reports beyond the
fewest only add noise. Whoever sees a single report sees one share of noise: `alone` is that price."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from tacit import check
from tacit.crypto.grid import Quantised
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import IntegerSumDpEvent
from tacit.privacy.integers import LAWS, Law, distance, draw, prepare, reach
from tacit.privacy.mechanism import NoiseState
from tacit.random import Stream
from tacit.types import Shared

LOG2_CUT = -80  # log2 of the probability, in one round, that any share of any client is cut to fit its lane


@dataclass(frozen=True)
class SharedNoise:
    """The share of every client of a round; `share_variance` is per coordinate, in squared grid steps. Guarantee: a sum of at
    least `fewest` of at most `most` reports costs `event()`, also to whoever knows the shares of `colluding` of them; one
    report alone costs `alone()`. Assumes: nobody opens a sum of fewer reports, or two different sums of one round; the other
    clients draw as said. Raises: BadInput for a share without a price, and unless colluding < fewest <= most.

    >>> noise = even(multiplier=2.0, law="skellam", l2_squared=100, dimension=10, fewest=5, colluding=1, most=8)
    >>> noise.share_variance, noise.multiplier, noise.event().shares
    (100.0, 2.0, 4)
    """

    law: str
    share_variance: float
    l2_squared: int
    dimension: int
    fewest: int
    colluding: int
    most: int

    def __post_init__(self) -> None:
        check.one_of(LAWS, **{"privacy.noise": self.law})
        check.positive(share_variance=self.share_variance)
        check.at_least(0, **{"privacy.colluding": self.colluding})
        if not self.colluding < self.fewest <= self.most:
            text = (
                f"{self.colluding} colluding clients, {self.fewest} reports at the fewest and {self.most} at the most"
            )
            raise BadInput(f"Expected privacy.colluding < fewest reports <= clients of a round, got {text}.")
        self.event()  # what has no price is refused here

    @property
    def honest(self) -> int:
        """The shares that the promise counts on."""
        return self.fewest - self.colluding

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity on the smallest sum that is accepted, without the colluders' shares."""
        return math.sqrt(self.honest * self.share_variance / self.l2_squared)

    @cached_property
    def tail(self) -> int:
        """The largest share that surely fits its lane; one beyond it has a probability of at most 2^-80 in a round. That is
        over all coordinates of all clients of the round, by the union bound."""
        return reach(self._law, log2_probability=LOG2_CUT - math.log2(self.dimension * self.most))

    def prepare(self) -> None:
        """Makes the tables of the first draw now: before a fork, all processes share them."""
        prepare(self._law)

    def init(self) -> NoiseState:
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        return state, np.arange(size)

    def noise(self, state: NoiseState, stream: Stream, bounded: Quantised) -> tuple[NoiseState, Shared]:
        """Adds this client's share. What then lies beyond its lane is cut to it: to single reports that is post-processing.
        Guarantee: every integer is within the lane (`largest + tail`), so that no sum of at most `most` reports carries
        over. Raises: BadInput for a vector that was bounded for another sensitivity."""
        if bounded.l2_squared != self.l2_squared or bounded.values.shape != (self.dimension,):
            text = f"{self.dimension} integers of squared length {self.l2_squared}"
            raise BadInput(f"This noise is made for {text}, got {len(bounded.values)} of {bounded.l2_squared}.")
        share = draw(self._law, stream, self.dimension)
        edge = bounded.largest + self.tail
        return state, Shared(torch.from_numpy(np.clip(bounded.values + share, -edge, edge)))

    def event(self) -> IntegerSumDpEvent:
        return self._event

    @cached_property
    def _event(self) -> IntegerSumDpEvent:
        slack = self.dimension * self.most * distance(self._law)
        sizes = (self.honest, self.l2_squared, self.dimension)
        return IntegerSumDpEvent(self.law, self.share_variance, *sizes, slack, cut=2.0**LOG2_CUT)

    def alone(self) -> IntegerSumDpEvent:
        """The price of one report seen by itself: one share of noise, which may be next to none."""
        return self.event().alone()

    @cached_property
    def _law(self) -> Law:
        return LAWS[self.law](self.share_variance)


def even(*, multiplier: float, l2_squared: int, fewest: int, colluding: int, **rest: object) -> SharedNoise:
    """Shares of variance (z D2)^2 / (fewest - colluding): the smallest accepted sum carries the multiplier z. Raises:
    BadInput for a multiplier that is not above 0, and as `SharedNoise`."""
    check.positive(noise_multiplier=multiplier)
    variance = multiplier**2 * l2_squared / max(1, fewest - colluding)
    return SharedNoise(share_variance=variance, l2_squared=l2_squared, fewest=fewest, colluding=colluding, **rest)  # type: ignore[arg-type]


def note_2020(*, multiplier: float, l2_squared: int, most: int, **rest: object) -> SharedNoise:
    """Shares of (1/K) N(0, (sigma D2)^2), K the clients of a round: a sum of K then carries only sigma / sqrt(K). They are
    those of the 2020 note (docs/papers.md), as integers, and priced at what they are worth: the promise is no weaker than
    that of even shares, it only takes a larger sigma. Raises as `even`."""
    check.positive(noise_multiplier=multiplier)
    return SharedNoise(share_variance=multiplier**2 * l2_squared / most**2, l2_squared=l2_squared, most=most, **rest)  # type: ignore[arg-type]


SHARES = {"even": even, "note-2020": note_2020}


def calibrate(share: str, *, epsilon: float, delta: float, rounds: int, **settings: object) -> float:
    """The smallest multiplier, to 0.1 %, whose `rounds` sums cost at most (epsilon, delta). Guarantee: price(z) <= epsilon
    for the z that is returned. `share` is a name of SHARES, `settings` are its other arguments. Raises: BadInput where no
    multiplier up to 1e6 keeps the budget, and for settings that `SharedNoise` refuses."""

    def cost(z: float) -> float:
        try:
            event = SHARES[share](multiplier=z, **settings).event()
        except BadInput:
            if z < 1:  # a share too narrow to have a price
                return math.inf
            raise
        return price.epsilon(((event, rounds),), delta=delta)

    return price.smallest(cost, epsilon=epsilon)
