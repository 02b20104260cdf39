"""What one client was charged for in a run, as a price that can be asked again for noise and rates as they were measured."""

import math
from dataclasses import dataclass, replace
from functools import cache

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit.audit.one_run import Inverse, curve_inverse, gaussian_inverse
from tacit.errors import BadInput
from tacit.privacy.accounting import events, price
from tacit.privacy.accounting.renyi import IntegerSumDpEvent
from tacit.privacy.accounting.sides import SideDpEvent

POINTS = 60  # of a trade-off curve
INTERVAL = 1e-3  # of the losses a curve is made from


@dataclass(frozen=True)
class Charged:
    """`count` releases of one event, `steps` of them in a round, at the run's `delta`; noise and rate are the event's."""

    event: DpEvent
    count: int
    steps: int
    delta: float
    accountant: str = "pld"  # the ledger's

    @property
    def multiplier(self) -> float:
        """Noise over what one unit can change, as it is priced."""
        event = self.event.event if isinstance(self.event, dp_accounting.PoissonSampledDpEvent) else self.event
        if isinstance(event, IntegerSumDpEvent):
            return math.sqrt(event.shares * event.share_variance / event.l2_squared)
        if isinstance(event, dp_accounting.GaussianDpEvent):
            return event.noise_multiplier
        raise BadInput(
            f"An audit knows Gaussian noise and integer shares, and this run is priced as {type(event).__name__}."
        )

    @property
    def rate(self) -> float:
        """The probability of being in a release."""
        sampled = isinstance(self.event, dp_accounting.PoissonSampledDpEvent)
        return self.event.sampling_probability if sampled else 1.0  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def rounds(self) -> int:
        """How many rounds were charged."""
        return self.count // self.steps

    def at(self, factor: float, rate: float | None = None) -> DpEvent:
        """The event with so many times the noise, and perhaps another rate."""
        if isinstance(self.event, IntegerSumDpEvent):
            return replace(self.event, share_variance=self.event.share_variance * factor**2)
        gaussian = dp_accounting.GaussianDpEvent(self.multiplier * factor)
        rate = self.rate if rate is None else rate
        return gaussian if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)

    def epsilon(self, factor: float = 1.0, rate: float | None = None) -> float:
        """The price with so many times the noise. Without any noise no epsilon holds, and with endless noise 0 does."""
        if factor <= 0 or (rate is not None and rate <= 0) or math.isinf(factor):
            return math.inf if factor <= 0 else 0.0
        composition = price.compose([(self.at(factor, rate), self.count)])
        return price.epsilon(composition, delta=self.delta, accountant=self.accountant)

    def inverse(self, factor: float) -> Inverse:
        """The trade-off curve of all releases with so many times the noise: no higher than the true one."""
        if self.rate >= 1 and not isinstance(self.event, IntegerSumDpEvent):
            return gaussian_inverse(math.sqrt(self.count) / (self.multiplier * factor))
        return curve_inverse(*_pairs(self, factor))


@cache
def _pairs(charged: Charged, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """(epsilon, delta) pairs that hold for all releases together."""
    event = charged.at(factor)
    if isinstance(event, IntegerSumDpEvent):
        deltas = np.geomspace(1e-9, 0.5, POINTS)
        composition = price.compose([(event, charged.count)])
        found = [price.epsilon(composition, delta=float(d), accountant="rdp") for d in deltas]
        return np.array(found), deltas
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=INTERVAL).compose(event, charged.count)
    top = accountant.get_epsilon(1e-9)
    epsilons = np.linspace(0.0, top, POINTS)
    return epsilons, np.array([accountant.get_delta(float(e)) for e in epsilons])


def charged_for(text: str, rounds: int, *, delta: float, accountant: str = "pld") -> Charged:
    """What a ledger's line for one round says, charged `rounds` times. Raises BadInput for what no audit knows."""
    event, steps = events.counted(price.from_text(text))
    event = event.event if isinstance(event, SideDpEvent) else event
    found = Charged(event, steps * rounds, steps, delta, accountant)
    found.multiplier  # noqa: B018 - refuses what has none
    return found
