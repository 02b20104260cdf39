"""The mechanism of client-level DP: one frozen object owns who is drawn, how updates are bounded, the noise and its price.

Source: McMahan et al. 2018 (DP-FedAvg, arXiv:1710.06963); adaptive clipping from Andrew et al. 2021 (arXiv:1905.03871).
Guarantee: one release of a noised sum over a random cohort, client level. With the Poisson sampler the relation is add or
remove one client (sensitivity C, amplified by sampling, PLD or RDP); with a fixed number of clients it is replace one
client by another (sensitivity 2C, RDP; Wang, Balle, Kasiviswanathan 2019, arXiv:1808.00087). Both need the cohort to stay
secret.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.clip import bound
from tacit.random import Stream
from tacit.types import Bounded, Private

LEAST_CLIP, MOST_CLIP = 1e-9, 1e9  # how far a clip adapts: beyond, the noise that goes with it leaves float32
Sampler = Literal["poisson", "fixed"]


@dataclass(frozen=True)
class CohortGaussian:
    """Draw a cohort, sum its vectors of norm at most C, add N(0, (z S)^2 I), where S is what one client can change.

    With `count_std` the number of clients whose update was within C is released too, with noise of that standard deviation;
    the noise on the sum then grows so that both together cost z.

    >>> CohortGaussian(1.0, clip=0.5, population=1000, cohort=100).noise_std
    0.5
    """

    noise_multiplier: float
    clip: float
    population: int
    cohort: int
    sampler: Sampler = "poisson"
    count_std: float | None = None

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        check.at_least(1, population=self.population, cohort=self.cohort)
        check.one_of(("poisson", "fixed"), sampler=self.sampler)
        if self.cohort > self.population:
            raise BadInput(f"Expected a cohort of at most {self.population} clients, got {self.cohort}.")
        if self.count_std is not None:
            check.positive(count_std=self.count_std)
            most = self.count_std / self._count_sensitivity
            if self.noise_multiplier >= most:
                text = f"Counting unclipped updates with noise {self.count_std:g} costs more than a noise multiplier of"
                raise BadInput(f"{text} {self.noise_multiplier:.3g} allows: set privacy.count_noise higher.")

    def at(self, clip: float) -> "CohortGaussian":
        """The same with another clip: the price stays."""
        return replace(self, clip=clip)

    @property
    def rate(self) -> float:
        """The probability q with which a client is drawn."""
        return self.cohort / self.population

    @property
    def sensitivity(self) -> float:
        """How far one client can move the sum: C if it comes or goes, 2C if another takes its place."""
        return self.clip if self.sampler == "poisson" else 2 * self.clip

    @property
    def noise_std(self) -> float:
        """The standard deviation on the sum."""
        return self.update_multiplier * self.sensitivity

    @property
    def update_multiplier(self) -> float:
        """z_Delta = (z^-2 - z_b^-2)^(-1/2): Theorem 1 of arXiv:1905.03871, where z_b = 2 sigma_b."""
        if self.count_std is None:
            return self.noise_multiplier
        z_b = self.count_std / self._count_sensitivity
        return (self.noise_multiplier**-2 - z_b**-2) ** -0.5

    @property
    def _count_sensitivity(self) -> float:
        """A client adds b - 1/2 to the count: 1/2 if it comes or goes, 1 if another takes its place."""
        return 0.5 if self.sampler == "poisson" else 1.0

    def sample(self, stream: Stream) -> np.ndarray:
        """The clients of one round, and nothing but chance decides: a Poisson cohort may be empty, and stays so."""
        if self.sampler == "poisson":
            return stream.bernoulli(self.population, self.rate)
        return np.sort(np.argsort(stream.uniform(self.population), kind="stable")[: self.cohort])

    def bound(self, update: torch.Tensor) -> Bounded:
        """One client's update, clipped."""
        return bound(update, clip=self.clip)

    def noise(self, stream: Stream, total: Bounded) -> Private:
        """Noises the sum of a round, once. Raises BadInput for a sum of any other sensitivity."""
        if total.sensitivity != self.sensitivity:
            raise BadInput(f"This noise is made for sensitivity {self.sensitivity}, got a sum of {total.sensitivity}.")
        noise = stream.normal(total.vector.numel()).to(total.vector.device)
        return Private(total.vector.add(noise.view_as(total.vector), alpha=self.noise_std), self.noise_std)

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates that were *not* clipped, over the expected cohort, with its noise."""
        if self.count_std is None:
            raise TypeError("this mechanism was not priced for a count")
        centred = unclipped - answers / 2 + self.count_std * float(stream.normal(1))
        return 0.5 + centred / self.cohort

    def event(self) -> DpEvent:
        """The price of one round for every client of the population, drawn or not."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampler == "fixed":
            return dp_accounting.SampledWithoutReplacementDpEvent(self.population, self.cohort, gaussian)
        return gaussian if self.rate == 1 else dp_accounting.PoissonSampledDpEvent(self.rate, gaussian)


@dataclass(frozen=True)
class QuantileClip:
    """The clip follows the quantile gamma of the norms: C <- C exp(-eta (b - gamma)), b the noised share within C.

    If too many updates were within C, it shrinks. Algorithm 1 of arXiv:1905.03871.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2

    def next(self, mechanism: CohortGaussian, within: Sequence[bool], stream: Stream) -> float:
        """The clip of the next round; that of this round is the mechanism's."""
        b = mechanism.noised_share(stream, sum(within), len(within))
        moved = mechanism.clip * math.exp(-self.learning_rate * (b - self.quantile))
        return min(max(moved, LEAST_CLIP), MOST_CLIP)
