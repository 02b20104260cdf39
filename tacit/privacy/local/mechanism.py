"""The sampled Gaussian mechanism of DP-SGD: one frozen object owns the sampling, the noise and their price. Source: Abadi et
al. 2016 (arXiv:1607.00133), Algorithm 1; Poisson subsampling as in Mironov, Talwar, Zhang 2019 (arXiv:1908.10530).
Guarantee: `steps` releases, each of a Poisson sample of the records; record level, add or remove one. The price is in
`event()` and nowhere else, so the noise that is drawn and the noise that is paid for cannot differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.extras import TRAINED_ON
from tacit.privacy.accounting.events import on_side
from tacit.privacy.mechanism import NoiseState
from tacit.random import Stream
from tacit.types import Bounded, Private


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` times: sample each record with probability q, sum vectors of norm at most C, add N(0, (zC)^2 I). Guarantee: all
    steps together cost `event()`, for whoever sees every noised sum: add or remove one record; where the whole update is
    noised (q = 1, one step), empty one client. Assumes: every vector in a sum was clipped to C, batches stay secret, and
    floating-point noise stands for real-valued noise. Raises: BadInput for a multiplier or clip that is not above 0, a
    rate outside (0, 1], and fewer than one step.

    >>> SampledGaussian(noise_multiplier=1.0, clip=0.5, sampling_rate=0.1, steps=2).noise_std
    0.5
    """

    noise_multiplier: float
    clip: float
    sampling_rate: float
    steps: int = 1
    split: str = ""  # where some records are held out of training: the coin that decides which

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, clip=self.clip)
        check.rate(sampling_rate=self.sampling_rate)
        check.at_least(1, steps=self.steps)

    @property
    def noise_std(self) -> float:
        """The standard deviation on the sum, z * C."""
        return self.noise_multiplier * self.clip

    @property
    def noise_growth(self) -> float:
        """The noise of the steps is independent."""
        return self.steps**0.5

    def init(self) -> NoiseState:
        """No step knows of another one."""
        return {}

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The records of one step: each of `size` independently with probability q; often none, never a fixed number."""
        return state, stream.bernoulli(size, self.sampling_rate)

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds N(0, (zC)^2 I) to a sum whose sensitivity is C; float32 from then on. Raises: BadInput for any other
        sensitivity, whose noise would not be the one that is paid for."""
        if bounded.sensitivity != self.clip:
            raise BadInput(f"This noise is made for sensitivity {self.clip}, got a vector of {bounded.sensitivity}.")
        noisy = bounded.vector.add(stream.normal_like(bounded.vector), alpha=self.noise_std)
        return state, Private(noisy.float(), self.noise_std)

    def event(self) -> DpEvent:
        """The price of all steps, as dp-accounting describes it.

        >>> SampledGaussian(1.0, clip=0.5, sampling_rate=0.1, steps=2).event().count
        2
        """
        return _event(self.noise_multiplier, self.sampling_rate, self.steps, self.split)


@lru_cache(maxsize=1 << 16)
def _event(noise_multiplier: float, sampling_rate: float, steps: int, split: str) -> DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    composed = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian), steps)
    return on_side(composed, split=split, side=TRAINED_ON) if split else composed


def row_noise(mechanisms: Sequence[SampledGaussian], *, clip: float) -> torch.Tensor:
    """The standard deviations of one step of several clients, whose sums have the sensitivity `clip`: each its mechanism's
    own. Raises: BadInput for any other sensitivity, and TypeError for any other mechanism, whose noise may be something
    else."""
    for mechanism in mechanisms:
        if type(mechanism) is not SampledGaussian:
            raise TypeError("only the noise of SampledGaussian is drawn for several clients at once")
        if clip != mechanism.clip:
            raise BadInput(f"This noise is made for sensitivity {mechanism.clip}, got a vector of {clip}.")
    return torch.tensor([mechanism.noise_std for mechanism in mechanisms])
