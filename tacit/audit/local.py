"""Local DP as run: the noise, what a record (or the client) can change, how often a record is drawn, and the divisor.

What a client releases is taken off the trainer's own messages; the server's rule is post-processing, and is the mean here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from tacit.algorithms.local_dp import LocalDP
from tacit.audit import noise
from tacit.audit.claims import Claim, read
from tacit.audit.evidence import Exact, Rate, Spread
from tacit.audit.probes import Prepare, Probe, Probes
from tacit.audit.subject import Subject
from tacit.audit.trainers import Making
from tacit.audit.verdict import Check
from tacit.build.parts import Parts
from tacit.train.dp_sgd import DpSgd

ROUNDS = 6  # of exact probes: each draws every client's records anew
BY_SITE = 1  # clients that are asked as sites: each has a folder and pays a ledger
WHOLE = 0.05  # how far from a whole number a count of records may be


class LocalSubject(Subject):
    """One trainer of one experiment under local DP."""

    @property
    def algorithm(self) -> LocalDP:
        """The algorithm, as it would run."""
        return cast(LocalDP, self.parts.algorithm)

    @property
    def by_record(self) -> bool:
        """Whether a record is protected, in every step, or the whole client."""
        return isinstance(self.algorithm.local, DpSgd)

    def claim(self, index: int) -> Claim:
        """What the client's ledger is charged for."""
        return read(self.algorithm.cost(self.parts.population[index]))

    def scale(self, index: int) -> float:
        """What a sum is multiplied by before it is released: eta / (q n), or 1 for a whole update. All of it is public."""
        if not self.by_record:
            return 1.0
        size = int(self.parts.population.sizes[index])
        return self.parts.experiment.train.learning_rate / (self.claim(index).rate * size)

    def released(self, probes: Probes, probe: Probe, *, rounds: int) -> np.ndarray:
        """What the clients release (rounds, clients, coordinates), over the scale of each."""
        scales = np.array([self.scale(index) for index in self.cohort])
        sent = self.sent(probe, probes.start, rounds=rounds)
        found = np.array([[message.tensors["update"].double().numpy() for message in one] for one in sent])
        return found / scales[:, None]

    def checks(self) -> Iterator[Check]:
        """Every check of this trainer."""
        yield from self._noise()
        if not self.by_record:
            probes = self.probes.at(self.parts, self.parts.params)
            silent = self.released(probes, probes.silent, rounds=1)
            yield from self._bounds([self._added(probes, probe, silent) for probe in probes.longer()])
            return
        silent = self.released(self.probes, self.probes.silent, rounds=ROUNDS)
        drawn = self._drawn(self.probes, silent)
        yield from self._divisor(silent)
        yield from self._rates(drawn)
        other = self.probes.at(self.parts, self.parts.params)
        first = self.released(other, other.silent, rounds=1)
        found = [self._added(self.probes, probe, silent, drawn) for probe in self.probes.giants()]
        yield from self._bounds([*found, self._added(other, other.giants()[0], first, self._drawn(other, first))])

    def _drawn(self, probes: Probes, silent: np.ndarray) -> np.ndarray:
        """How many records were in each step (rounds, clients)."""
        return (self.released(probes, probes.faint, rounds=len(silent)) - silent) @ probes.direction

    def _noise(self) -> Iterator[Check]:
        layers = noise.layers_of(self.parts.model)
        rounds = noise.rounds_for(len(self.cohort), layers)
        # from zeros, where whatever decays or is pulled stays
        still = replace(self.probes, start=torch.zeros_like(self.parts.params))
        found = self.released(still, still.noise, rounds=rounds)
        claims, everybody = [self.claim(index) for index in self.cohort], self.parts.plan.noise_multipliers
        due = self.probes.clip * np.array(
            [[c.noise_multiplier * self._growth(c, r) for c in claims] for r in range(rounds)]
        )
        shown = claims[0].noise_multiplier if everybody is None or np.ptp(everybody) == 0 else 1.0
        yield from noise.checks(self.where, found / due[..., None], layers, multiplier=shown)

    def _growth(self, claim: Claim, r: int) -> float:
        """What the noise of a round's steps comes to in the update, in units of one step's."""
        local, train = self.algorithm.local, self.parts.experiment.train
        if not isinstance(local, DpSgd):
            return 1.0
        descent = local.descent.told(r % train.rounds)
        return float(descent.growth(np.array(claim.steps), learning_rate=train.learning_rate))

    def _rates(self, drawn: np.ndarray) -> Iterator[Check]:
        """How often records are drawn, and how much that varies."""
        said = "records are drawn more often than is priced"
        claimed = np.array([self.claim(index).rate for index in self.cohort])
        counts, sizes = np.rint(drawn).astype(int), self.parts.population.sizes[list(self.cohort)]
        for rate in np.unique(claimed):
            mine, of = counts[:, claimed == rate], sizes[claimed == rate]
            chance = Rate(int(mine.clip(0, of).sum()), int(of.sum()) * len(mine))
            seen = Exact(float((mine / of).max())) if rate == 1 else chance
            yield Check(self.where, "sampling rate", float(rate), seen, said)
        some = claimed < 1
        if some.any():
            columns = np.broadcast_arrays(counts[:, some], sizes[some], claimed[some])
            spread = Spread(*(tuple(column.ravel().tolist()) for column in columns))
            yield Check(self.where, "spread of batches", 1.0, spread, "batches vary less than independent draws do")

    def _divisor(self, silent: np.ndarray) -> Iterator[Check]:
        """A count of drawn records is a whole number, unless what it was divided by is not the expected batch."""
        if self.probes.half is None:
            return
        some = (self.released(self.probes, self.probes.half, rounds=ROUNDS) - silent) @ self.probes.direction
        off, said = float(np.abs(some - np.rint(some)).max()), "a sum is not divided by the expected batch"
        yield Check(self.where, "divisor off by", 0.0, Exact(off, slack=WHOLE), said)

    def _added(self, probes: Probes, probe: Probe, silent: np.ndarray, drawn: np.ndarray | None = None) -> np.ndarray:
        """What one record (or, where none are drawn, the client) adds to a sum (clients, coordinates)."""
        (found,) = self.released(probes, probe, rounds=1)
        counts = np.ones(len(found)) if drawn is None else np.rint(drawn[0])
        return (found - silent[0])[counts > 0] / counts[counts > 0, None]

    def _bounds(self, added: list[np.ndarray]) -> Iterator[Check]:
        """The most that was added: in all, and by layer."""
        layers, vectors = noise.layers_of(self.parts.model), np.concatenate(added)
        said = f"a {'record' if self.by_record else 'client'} changes more than its clip"
        parts = [(layer.name, layer.place) for layer in layers] if len(layers) > 1 else []
        for name, place in (("", slice(None)), *parts):
            most = float(np.linalg.norm(vectors[:, place], axis=-1).max(initial=0.0))
            yield Check(self.where, "clip", self.probes.clip, Exact(most), said, part=name)


def clients_of(parts: Parts, where: str) -> tuple[int, ...]:
    """Clients from the tightest budget to the loosest, and the largest of them: as many as noise takes to be told."""
    p, most = parts.population, noise.clients_for(noise.layers_of(parts.model))
    order = np.lexsort((p.sizes, p.epsilons))
    picked = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    picked = np.unique([*picked.tolist(), int(p.sizes.argmax())])
    return tuple(int(index) for index in (picked[:BY_SITE] if where == "site" else picked))


def server(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """Nothing: whatever the server does is post-processing."""
    yield from ()


def clients(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return LocalSubject(where, parts, making, plant, probes, clients_of(parts, where)).checks()
