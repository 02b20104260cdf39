"""The event of a query: integers that carry a rounded Gaussian. It costs what the Gaussian costs.

Rounding is post-processing (tacit/privacy/integers/rounded.py), so a Gaussian with the same noise over sensitivity bounds it
in every composition. What the drawn integers miss of their law is `SLACK`, for the whole release.
"""

from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit import check

SLACK = 2.0**-190  # total variation of a whole query; its mechanism refuses to be further from its law


@dataclass(frozen=True)
class RoundedGaussianDpEvent(DpEvent):
    """One release of a vector of integers under a rounded Gaussian of `noise_multiplier` times the vector's sensitivity.

    Raises: BadInput for a multiplier that is no finite number above 0.

    >>> RoundedGaussianDpEvent(2.0).gaussian
    (1.0, 2.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    @property
    def gaussian(self) -> tuple[float, float]:
        """(q, z): every record is in it, and the noise is z times what one can change."""
        return 1.0, self.noise_multiplier
