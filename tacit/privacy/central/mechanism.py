"""The mechanism of client-level DP: one frozen object owns who is drawn, how updates are bounded, the noise and its price.
Source: McMahan et al. 2018 (DP-FedAvg, arXiv:1710.06963); adaptive clipping from Andrew et al. 2021 (arXiv:1905.03871).
Guarantee: one release of a noised sum over a Poisson cohort that stays secret, add or remove one client."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.mechanism import LEAST_CLIP, MOST_CLIP, CohortMechanism, NoiseState, bound, row_scales
from tacit.privacy.samplers import Poisson
from tacit.random import Stream
from tacit.types import Bounded, Private


@dataclass(frozen=True)
class CohortGaussian:
    """Draw a cohort, sum its vectors of norm at most C, add N(0, (z C)^2 I). With
    `count_std` the number of clients whose update was within C is released too, with noise of that standard deviation; the
    noise on the sum then grows so that both together cost z. Guarantee: one round costs `event()`, whoever answers: a
    client that was drawn and is silent counts as a zero vector. Assumes: nobody is told who was drawn; weights are at most
    1; floats stand for real numbers. Raises: BadInput for a count whose noise alone would cost more than z allows.

    >>> CohortGaussian(1.0, clip=0.5, population=1000, cohort=100).noise_std
    0.5
    """

    noise_multiplier: float
    clip: float
    population: int
    cohort: int
    sampler: str = field(default="poisson", init=False)  # a part of the key of the noise
    count_std: float | None = None

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        self.cohorts  # noqa: B018 - refuses what cannot be drawn
        if self.count_std is not None:
            check.positive(count_std=self.count_std)
            if self.noise_multiplier >= 2 * self.count_std:
                text = f"Counting unclipped updates with noise {self.count_std:g} costs more than a noise multiplier of"
                raise BadInput(
                    f"{text} {self.noise_multiplier:.3g} allows: set privacy.adaptive_clip.count_noise higher."
                )

    @cached_property
    def cohorts(self) -> Poisson:
        """Who is drawn, and at which price."""
        return Poisson(self.population, self.cohort)

    def at(self, clip: float) -> "CohortGaussian":
        """The same with another clip: noise and clip move together, so the price stays. Raises: BadInput for a clip that is
        not above 0."""
        return replace(self, clip=clip)

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def noise_std(self) -> float:
        """The standard deviation on the sum, per coordinate."""
        return self.update_multiplier * self.sensitivity

    @property
    def update_multiplier(self) -> float:
        """z_Delta = (z^-2 - z_b^-2)^(-1/2): Theorem 1 of arXiv:1905.03871, where z_b = 2 sigma_b. It is noise over
        sensitivity on the sum alone: z where nothing is counted, and more where the count takes a part of the price.

        >>> round(CohortGaussian(1.0, 0.5, population=1000, cohort=100, count_std=5.0).update_multiplier, 3)
        1.005
        """
        if self.count_std is None:
            return self.noise_multiplier
        return (self.noise_multiplier**-2 - (2 * self.count_std) ** -2) ** -0.5  # a client adds b - 1/2 to the count

    def init(self) -> NoiseState:
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The clients of one round. Raises BadInput for another number of clients than was priced."""
        if size != self.population:
            raise BadInput(f"This cohort is priced for {self.population} clients, got {size}.")
        return state, self.cohorts.draw(stream, 0)

    def bound(self, update: torch.Tensor) -> Bounded:
        """One client's update, scaled to norm at most C. Raises BadInput for one that is not finite."""
        return bound(update, clip=self.clip)

    def bound_rows(self, updates: torch.Tensor) -> torch.Tensor:
        return row_scales(updates, clip=self.clip)

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Noises the sum of a round, once, in the precision that the sum has. Guarantee: at the price of `event`, if the
        sum's sensitivity is what it says. Raises: BadInput for a sum of any other sensitivity."""
        if bounded.sensitivity != self.sensitivity:
            raise BadInput(
                f"This noise is made for sensitivity {self.sensitivity}, got a sum of {bounded.sensitivity}."
            )
        total = bounded.vector
        return state, Private(total.add(stream.normal_like(total), alpha=self.noise_std), self.noise_std)

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates that were *not* clipped, over the expected cohort, with its noise; it may lie outside [0, 1].
        Guarantee: it is in the price of `event`. Raises: TypeError where the mechanism was not priced for a count."""
        if self.count_std is None:
            raise TypeError("this mechanism was not priced for a count")
        centred = unclipped - answers / 2 + self.count_std * float(stream.normal(1))
        return 0.5 + centred / self.cohort

    def event(self) -> DpEvent:
        """The price of one round for every client of the population, drawn or not."""
        return self.cohorts.event(self.noise_multiplier)


@dataclass(frozen=True)
class QuantileClip:
    """The clip follows the quantile gamma of the norms: C <- C exp(-eta (b - gamma)), b the noised share within C. If too
    many updates were within C, it shrinks. Algorithm 1 of arXiv:1905.03871. Guarantee: it sees nothing of the updates but
    the noised share, so that it is post-processing and costs nothing more.

    >>> from tacit.random import seeded
    >>> mechanism = CohortGaussian(1.0, 0.5, population=1000, cohort=100, count_std=5.0)
    >>> QuantileClip().next(mechanism, [True] * 100, seeded(0)("count")) < 0.5
    True
    """

    quantile: float = 0.5
    learning_rate: float = 0.2

    def next(self, mechanism: CohortMechanism, within: Sequence[bool], stream: Stream) -> float:
        """The clip of the next round; that of this round is the mechanism's. It stays within 1e-9 and 1e9, where float32
        holds its noise."""
        b = mechanism.noised_share(stream, sum(within), len(within))
        moved = mechanism.clip * math.exp(-self.learning_rate * (b - self.quantile))
        return min(max(moved, LEAST_CLIP), MOST_CLIP)
