"""Distributed DP as run: every client's share of the noise, what a client can change on the grid, and the opened sum.

Reports are read before they are sealed (`Plain`, of the very integers that `Sealed` has); one sum is sealed and opened as the
experiment says, where that takes seconds, and must be the sum of those integers.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch

from tacit.algorithms.encrypted import Encrypted
from tacit.audit import noise
from tacit.audit.evidence import Exact
from tacit.audit.noise import Layer
from tacit.audit.probes import Prepare, Probe, Probes
from tacit.audit.subject import Subject
from tacit.audit.trainers import Making, ask, one_by_one
from tacit.audit.verdict import Check
from tacit.build.parts import Parts
from tacit.privacy.accounting.renyi import IntegerSumDpEvent
from tacit.privacy.distributed.groups import lanes_of
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.protect.seal import Plain, Seal, Sealed
from tacit.types import Message

CLIENTS = 8
RUN_BYTES = 8
MOST_SEALED = 400  # ciphertexts that an audit seals: a few seconds


class DistributedSubject(Subject):
    """One trainer of one experiment under distributed DP."""

    @property
    def plan(self) -> DistributedPlan:
        """The plan, which has the grid."""
        return cast(DistributedPlan, self.parts.plan)

    def event(self, index: int) -> IntegerSumDpEvent:
        """What the client's ledger is charged for."""
        return cast(IntegerSumDpEvent, self.parts.algorithm.cost(self.parts.population[index]))

    def reports(self, probe: Probe, *, rounds: int, start: torch.Tensor) -> np.ndarray:
        """The integers of the clients' reports (rounds, clients, coordinates of the grid), before they are sealed."""
        sent = self.sent(probe, start, rounds=rounds)
        return np.array([[message.tensors["report"].numpy().astype(np.float64) for message in one] for one in sent])

    def prepared(self, parts: Parts) -> Parts:
        """Reports that are not sealed."""
        return readable(parts)

    def checks(self) -> Iterator[Check]:
        """Every check of this trainer."""
        layers, events = self._layers(), [self.event(index) for index in self.cohort]
        still = torch.zeros_like(self.parts.params)
        silent = self.reports(self.probes.noise, rounds=noise.rounds_for(len(self.cohort), layers), start=still)
        due = np.sqrt([event.share_variance for event in events])
        excess = 1 / min(event.share_variance for event in events)  # of a Skellam share; a discrete Gaussian has less
        yield from noise.checks(self.where, silent / due[:, None], layers, multiplier=1.0, excess=excess)
        yield from self._bounds(events)

    def _layers(self) -> list[Layer]:
        """Layers lie on the grid as they are, unless it is rotated."""
        grid = self.plan.grid
        if grid.rotation == "none":
            return noise.layers_of(self.parts.model)
        return [Layer("the rotated grid", slice(0, grid.dimension))]

    def _bounds(self, events: Sequence[IntegerSumDpEvent]) -> Iterator[Check]:
        start, most, step = self.parts.params, 0.0, self.plan.grid.step
        base = self.reports(self.probes.silent, rounds=1, start=start)
        for probe in self.probes.longer():
            added = self.reports(probe, rounds=1, start=start) - base
            allowed = np.sqrt([event.l2_squared for event in events])
            most = max(most, float((np.linalg.norm(added[0], axis=-1) / allowed).max()))
        bound = step * float(np.sqrt(events[0].l2_squared))
        said = "a client changes more of the sum than is priced"
        yield Check(self.where, "clip on the grid", 1.0, Exact(most), said, unit=bound)


def readable(parts: Parts) -> Parts:
    """The parts with reports that are not sealed."""
    plan = cast(DistributedPlan, parts.plan)
    number = dict(zip(parts.population.names, plan.groups.tolist(), strict=True))

    def plain(name: str, seal: Seal) -> Seal:
        return Plain(lanes_of(plan, number[name], None), plan.noises[number[name]].fewest)

    return with_seals(parts, plain)


def with_seals(parts: Parts, seal: Callable[[str, Seal], Seal]) -> Parts:
    """The parts with other seals, by client."""
    algorithm = cast(Encrypted, parts.algorithm)
    groups = {name: replace(group, seal=seal(name, group.seal)) for name, group in algorithm.groups.items()}
    return replace(parts, algorithm=replace(algorithm, groups=groups))


def server(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """One sum sealed and opened, against the integers that were sealed; nothing where it would take too long."""
    algorithm, plan = cast(Encrypted, parts.algorithm), cast(DistributedPlan, parts.plan)
    group = next(iter(algorithm.groups.values()))
    members = [k for k, name in enumerate(parts.population.names) if algorithm.groups[name].name == group.name]
    cohort = members[: plan.noises[int(plan.groups[members[0]])].fewest]
    if not isinstance(group.seal, Sealed) or len(cohort) * group.seal.lanes.numbers > MOST_SEALED:
        return
    found: list[np.ndarray] = []
    fresh = partial(under, secrets.token_hex(RUN_BYTES))  # of one round and run no second sum is opened
    for prepare in (readable, fresh):
        ready = prepare(parts)
        with one_by_one(ready, lambda changed: plant(probes.silent(changed))) as trainer:
            found.append(summed(ready, ask(trainer, parts, parts.params, cohort=cohort, round=0)))
    off = float(np.abs(found[0] - found[1]).max())
    yield Check("server", "opened sum off by", 0.0, Exact(off), "an opened sum is not the sum of the reports")


def under(run: str, parts: Parts) -> Parts:
    """The parts with reports that are sealed for another run."""
    return with_seals(parts, lambda name, seal: replace(seal, run=run))  # type: ignore[type-var]


def summed(parts: Parts, messages: Sequence[Message]) -> np.ndarray:
    """The opened sum of reports."""
    collected = cast(Encrypted, parts.algorithm).groups[messages[0].sender].seal.collect(round=0)
    for message in messages:
        collected.accept(message)
    collected.settle()
    return np.asarray(collected.open())


def clients(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return DistributedSubject(where, parts, making, plant, probes, weighty(parts, where)).checks()


def weighty(parts: Parts, where: str) -> tuple[int, ...]:
    """The first clients and the one that weighs most."""
    everybody = len(parts.population)
    picked = sorted({*range(min(CLIENTS, everybody)), int(parts.population.sizes.argmax())})
    return (picked[-1],) if where == "site" else tuple(picked)
