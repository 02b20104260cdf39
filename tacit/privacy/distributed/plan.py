"""The plan of distributed DP: which clients are summed together, and the share of noise that each of them adds.

All clients of a sum are protected by one noise, so it is sized for the tightest budget among them. Two groups (by epsilon, as
PFA splits them) have a sum and a noise each; a client is in one of them and pays for that one alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tacit import rules
from tacit.algorithms import Algorithm
from tacit.algorithms.encrypted import Encrypted
from tacit.data.population import Population
from tacit.digest import mark
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.distributed import words
from tacit.privacy.distributed.groups import groups
from tacit.privacy.distributed.mechanism import SHARES, SharedNoise, calibrate
from tacit.privacy.guarantee import Words
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.plan import Plan
from tacit.privacy.purse import Purse
from tacit.privacy.wiring import Wiring
from tacit.protect.quantise import Grid
from tacit.types import Client, Guarantee


@dataclass(frozen=True, eq=False)
class DistributedPlan(Plan):
    """`noises[g]` is the share of the clients k with `groups[k] == g`; `participations` the rounds it is made to last.

    Guarantee: client level, empty one client, for whoever sees opened sums (or the models) and no single report.
    Nothing is claimed for choosing clients at random: the server knows who reports.
    """

    summed: ClassVar[bool] = True
    own_training: ClassVar[bool] = False

    grid: Grid
    noises: tuple[SharedNoise, ...]
    groups: np.ndarray = field(repr=False)
    participations: int
    priced: bool = True

    @property
    def training_clip(self) -> float:
        """The norm that the grid clips whole updates to."""
        return self.grid.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        """Noise over sensitivity on the smallest sum that is opened, for every client."""
        return np.array([noise.multiplier for noise in self.noises])[self.groups]

    @property
    def fewest(self) -> int:
        """With fewer reports than this no sum can be opened."""
        return min(noise.fewest for noise in self.noises)

    @property
    def report_noise(self) -> np.ndarray:
        """The noise per coordinate of every client's own report, in the update's units: what a rule may weigh by, and public."""
        return np.array([self.grid.step * math.sqrt(noise.share_variance) for noise in self.noises])[self.groups]

    def mechanism(self, client: Client) -> SharedNoise:
        """The share that the client adds in one round, and what the sum costs it."""
        return self.noises[self.groups[client.index]]

    def key(self, client: Client) -> str:
        """The client's share, how many rounds it is made to last, and that it is charged."""
        return repr((self.mechanism(client), self.participations, self.priced))

    def digest(self) -> str:
        """The grid, every group's share, and who is in which group."""
        return mark(repr((self.grid, self.noises)), self.groups.tobytes())

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """Encrypted: each group with its noise and its seal. Raises BadInput or KeyRefused for seals that cannot be had."""
        population = wiring.population
        rule = wiring.rule(self.rule(wiring.experiment, population) or "mean")
        crowd = rules.Crowd(population.epsilons, self.report_noise, wiring.takes_part)
        members = groups(self, rule, wiring)
        return Encrypted(members, self.grid, wiring.server(rule, crowd), wiring.training)

    def words(self, experiment: Experiment) -> Words:
        """What the sums promise, sealed or not."""
        return words.promised(self.noises, experiment, clients=len(self.groups))

    def also(
        self, guarantee: Guarantee, experiment: Experiment, ledger: Ledger, population: Population
    ) -> tuple[Guarantee, ...]:
        """What is left against somebody who can read single reports."""
        return (words.seen_alone(guarantee, experiment, ledger, population),)

    def title(self, experiment: Experiment) -> str:
        """Names the strategy."""
        return f"distributed DP ({experiment.privacy.rule})"

    def rows(self, purse: Purse) -> list[dict[str, Any]]:
        """A row for each group that is summed apart."""
        return words.rows(self, purse)


def distributed_plan(
    population: Population,
    *,
    grid: Grid,
    cohort: int,
    participations: int,
    law: str,
    share: str,
    multiplier: float | None,
    fewest: int | None,
    colluding: int,
    split: Callable[[np.ndarray], float] | None,
) -> DistributedPlan:
    """The given multiplier, or the smallest that makes each group's tightest budget last. `split` gives the epsilon of the cut.

    Guarantee: where the multiplier is derived, every client's planned rounds cost at most what other runs have left of its
    epsilon (but for who has a crumb left, whom the ledger keeps out); a given one pays for one round of a whole budget at
    least, and the ledger stops whoever has no more. A group's `fewest` is its part of all clients times that of the round,
    rounded down, and at least 1.

    Raises: BadInput for noise that cannot pay for a round, naming the smallest that can; where an infinite epsilon leaves
    nothing to derive noise from; and as `SharedNoise`.
    """
    cut = split(population.epsilons) if split else -math.inf
    groups = (population.epsilons >= cut).astype(int)
    groups = groups - groups.min()
    noises = []
    for group in range(int(groups.max()) + 1):
        mine = groups == group
        part = float(mine.mean())
        settings = {
            "law": law,
            "l2_squared": grid.l2_squared,
            "dimension": grid.dimension,
            "fewest": max(1, math.floor(part * (fewest or cohort) + 1e-9)),
            "colluding": colluding,
            "most": min(cohort, int(mine.sum())),
        }
        tightest = float(population.epsilons[mine].min())
        z = multiplier or _derived(
            share, float(population.to_spread[mine].min()), population.delta, participations, settings
        )
        noise = SHARES[share](multiplier=z, **settings)
        _refuse_unaffordable(noise, share, z, tightest, population.delta, participations, settings)
        noises.append(noise)
    return DistributedPlan(grid, tuple(noises), groups, participations)


def _derived(share: str, epsilon: float, delta: float, rounds: int, settings: dict) -> float:
    if epsilon == math.inf:
        raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")
    return calibrate(share, epsilon=epsilon, delta=delta, rounds=rounds, **settings)


def _refuse_unaffordable(
    noise: SharedNoise, share: str, z: float, epsilon: float, delta: float, rounds: int, settings: dict
) -> None:
    """A run whose first round would already overspend is refused before it starts."""
    if epsilon == math.inf or price.epsilon(((noise.event(), 1),), delta=delta) <= epsilon:
        return
    once, always = (calibrate(share, epsilon=epsilon, delta=delta, rounds=r, **settings) for r in (1, rounds))
    raise BadInput(
        f"privacy.noise_multiplier = {z:g} cannot pay for one round at epsilon = {epsilon:g}: the smallest that can is"
        f" {_up(once)}, and {_up(always)} lasts the {rounds} planned rounds; or leave it out."
    )


def _up(value: float) -> str:
    """A multiplier for print, rounded up so that what is read works.

    >>> _up(2.07041)
    '2.071'
    """
    return f"{math.ceil(value * 1000) / 1000:.3f}"
