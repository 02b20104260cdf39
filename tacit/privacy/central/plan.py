"""The plan of central DP: one mechanism for all, from the budget and the planned rounds.

One noise protects everybody alike, so the clients have one budget; the run ends before the round that would overspend it.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import smallest
from tacit.privacy.central.mechanism import CohortGaussian, Sampler

COUNT_SHARE = 20  # sigma_b = m / 20: section 3.1 of arXiv:1905.03871


@dataclass(frozen=True, eq=False)
class CentralPlan:
    """What the server runs in every round, the rounds it is made to last, and every client's weight (at most 1)."""

    mechanism: CohortGaussian
    participations: int
    weights: np.ndarray = field(repr=False)
    priced: bool = True

    @property
    def multipliers(self) -> np.ndarray:
        """The one noise multiplier."""
        return np.array([self.mechanism.noise_multiplier])

    @property
    def expected_weight(self) -> float:
        """q times the sum of all weights: what a sum is divided by, whoever was drawn and whoever answered."""
        return self.mechanism.rate * float(self.weights.sum())


def capped_weights(sizes: np.ndarray, cap: int | None) -> np.ndarray:
    """w_k = min(n_k, cap) / max over clients, so that none exceeds 1 and C bounds a weighted update; without a cap all are 1.

    >>> capped_weights(np.array([5, 20, 400]), 50).tolist()
    [0.1, 0.4, 1.0]
    """
    if cap is None:
        return np.ones(len(sizes))
    capped = np.minimum(sizes, cap)
    return capped / capped.max()


def central_plan(
    population: Population,
    *,
    cohort: int,
    sampler: Sampler,
    rounds: int,
    clip: float,
    multiplier: float | None,
    adaptive: bool,
    count_noise: float | None,
    weight_cap: int | None,
    accountant: str,
) -> CentralPlan:
    """The given multiplier, or the smallest that makes the budget last the planned rounds. Raises BadInput."""
    epsilon = one_budget(population)
    mechanism = CohortGaussian(multiplier or 1.0, clip, len(population), cohort, sampler)
    if multiplier is None and epsilon == float("inf"):
        raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")
    if multiplier is None:

        def cost(z: float) -> float:
            event = replace(mechanism, noise_multiplier=z).event()
            return price.epsilon(((event, rounds),), delta=population.delta, accountant=accountant)

        mechanism = replace(mechanism, noise_multiplier=smallest(cost, epsilon=epsilon))
    if adaptive:
        mechanism = replace(mechanism, count_std=count_noise or cohort / COUNT_SHARE)
    return CentralPlan(mechanism, rounds, capped_weights(population.sizes, weight_cap))


def one_budget(population: Population) -> float:
    """The epsilon that all clients share, less what other runs of the ledger have sealed. Raises BadInput where they differ."""
    low, high = float(population.epsilons.min()), float(population.epsilons.max())
    if low != high:
        raise BadInput(
            f"Central DP protects all clients by one noise, but their epsilons differ ({low:.4g} to {high:.4g}):"
            ' give one epsilon, or say privacy.level = "minimum".'
        )
    return float(population.to_spread.min())
