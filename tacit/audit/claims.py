"""What is claimed: the noise, the rate and the number of releases, read off the price that a ledger charges for a round."""

from dataclasses import dataclass

import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import BadInput


@dataclass(frozen=True)
class Claim:
    """One round as it is priced: `steps` releases, noise over sensitivity, and the probability of being in one."""

    noise_multiplier: float
    rate: float = 1.0
    steps: int = 1
    fixed: bool = False  # cohorts of a fixed number: the relation is replace one, the sensitivity twice the clip


def read(event: DpEvent | None) -> Claim:
    """The claim that an event makes. Raises BadInput for what no audit here knows how to measure.

    >>> from tacit.privacy.local.mechanism import SampledGaussian
    >>> read(SampledGaussian(1.5, clip=0.5, sampling_rate=0.1, steps=3).event())
    Claim(noise_multiplier=1.5, rate=0.1, steps=3, fixed=False)
    """
    steps, rate, fixed = 1, 1.0, False
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, steps = event.event, event.count
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        event, rate = event.event, event.sampling_probability
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        event, rate, fixed = event.event, event.sample_size / event.source_dataset_size, True
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise BadInput(
            f"An audit measures Gaussian noise and integer shares, and this experiment is priced as {type(event).__name__}."
        )
    return Claim(event.noise_multiplier, rate, steps, fixed)
