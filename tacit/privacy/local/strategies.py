"""Who adds how much noise: from every client's budget to its noise multiplier.
Two strategies (Liu et al., PVLDB 15(4), section 4.2): *spread* gives each client the noise that makes its budget last the
planned rounds; *same-noise* gives all the same multiplier, and a client drops out when the ledger says it cannot pay
another round."""

import numpy as np

from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.privacy.accounting.calibrate import noise_multiplier, noise_multipliers
from tacit.privacy.queries.mechanism import NOTHING, Queries, budgets

RATE_DIGITS = 3  # rates of clients with nearly equal sizes are made equal, so that they share one price


def sampling_rates(sizes: np.ndarray, *, batch_size: int, sampling_rate: float | None) -> np.ndarray:
    """The Poisson rate of each client: the given one, or the one that makes `batch_size` the expected batch.
    Such a rate has three digits and is at most 1; the divisor and the price both use the rounded one.

    >>> sampling_rates(np.array([100, 3000]), batch_size=64, sampling_rate=None).tolist()
    [0.64, 0.0213]
    """
    if sampling_rate is not None:
        return np.full(len(sizes), sampling_rate)
    distinct, inverse = np.unique(sizes, return_inverse=True)
    rates = [min(1.0, float(f"{batch_size / n:.{RATE_DIGITS}g}")) for n in distinct]
    return np.array(rates)[inverse]


def spread(
    population: Population,
    *,
    rates: np.ndarray,
    steps: np.ndarray,
    participations: int,
    accountant: str,
    own: int | None = None,
    asked: Queries = NOTHING,
) -> np.ndarray:
    """Each client's multiplier, so that `participations` rounds, and its queries, cost at most what is left of its epsilon.
    Guarantee: the joint price of `steps * participations` steps at the returned multiplier was computed and is within
    that. Whoever is one client (`own`) needs no other's, and a list of 10,000 sizes is hours of work: those stay NaN.
    Raises: BadInput for a client with an infinite epsilon, and where no noise keeps an epsilon."""
    for index in np.flatnonzero(np.isinf(population.epsilons))[:1]:
        name = population.names[int(index)]
        raise BadInput(
            f"Client {name} sets no limit (epsilon = inf), so strategy = spread has no noise to give it: name a finite epsilon."
        )
    multipliers = np.full(len(population), np.nan)
    kinds, inverse = np.unique(np.column_stack([rates, steps]), axis=0, return_inverse=True)
    for kind, (rate, count) in enumerate(kinds):
        mine = np.flatnonzero(inverse.ravel() == kind)
        if own is not None and own not in mine:
            continue
        if asked.multipliers:
            sized = budgets(population)
            settings = {"delta": population.delta, "sampling_rate": float(rate), "accountant": accountant}
            multipliers[mine] = [
                noise_multiplier(
                    epsilon=float(sized[k]),
                    steps=int(count) * participations,
                    beside=asked.beside_training(k),
                    **settings,
                )
                for k in mine.tolist()
            ]
            continue
        multipliers[mine] = noise_multipliers(
            population.to_spread[mine],
            delta=population.delta,
            sampling_rate=float(rate),
            steps=int(count) * participations,
            accountant=accountant,
        )
    return multipliers


def same_noise(
    population: Population,
    *,
    rates: np.ndarray,
    steps: np.ndarray,
    participations: int,
    accountant: str,
    multiplier: float | None,
    asked: Queries = NOTHING,
) -> np.ndarray:
    """One multiplier for all: the given one, or the one that lets the largest finite budget last the planned rounds.
    Guarantee: none beyond what the ledger keeps: a client whose budget is smaller drops out before the round it cannot
    pay. Raises: BadInput where no client sets a limit and no noise is given."""
    if multiplier is not None:
        return np.full(len(population), multiplier)
    finite = np.where(np.isinf(population.epsilons), -1.0, population.to_spread)
    most = int(np.argmax(finite))
    if finite[most] < 0:
        raise BadInput("No client sets a limit, so there is no noise to derive: set privacy.noise_multiplier.")
    z = noise_multiplier(
        epsilon=float(finite[most]),
        delta=population.delta,
        sampling_rate=float(rates[most]),
        steps=int(steps[most]) * participations,
        accountant=accountant,
        beside=asked.beside_training(most),
    )
    return np.full(len(population), z)
