"""What an audit measures of sums: the clients' shares of noise and the opened sum; and of noise once, how often records are drawn
and what each adds at every client, and the one noise, at the server that is trusted or in the shares."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.record_sums import InTotal, RecordSums, SecretRecordSums
from tacit.crypto.seal import Plain, Seal, Sealed
from tacit.engine.assemble import Parts
from tacit.lab.audit import evidence
from tacit.lab.audit.estimate import claim_of
from tacit.lab.audit.evidence import Check, Layer, exact
from tacit.lab.audit.kinds import SERVER, Central, Local, Subject, replies
from tacit.lab.audit.probes import Probe, Probes
from tacit.lab.audit.trainers import one_by_one
from tacit.privacy.accounting.events import IntegerSumDpEvent
from tacit.privacy.distributed.kind import DistributedPlan, lanes_of
from tacit.training.optimizer import CONSTANT, Sgd
from tacit.types import Message
from tacit.wire import state_digest

CLIENTS = 8
RUN_BYTES = 8
MOST_SEALED = 400  # ciphertexts that an audit seals: a few seconds


class Distributed(Subject):
    """Distributed DP: every client's share of the noise, what a client can change on the grid, and the opened sum."""

    @property
    def plan(self) -> DistributedPlan:
        return cast(DistributedPlan, self.parts.plan)

    @property
    def algorithm(self) -> Encrypted:
        return cast(Encrypted, self.parts.algorithm)

    def picked(self) -> list[int]:
        """The first clients and the one that weighs most; the last of them first."""
        everybody = len(self.parts.population)
        picked = sorted({*range(min(CLIENTS, everybody)), int(self.parts.population.sizes.argmax())})
        return picked[::-1] if self.where == "site" else picked

    @cached_property
    def layers(self) -> list[Layer]:
        """Layers lie on the grid as they are, unless it is rotated."""
        grid = self.plan.grid
        if grid.rotation == "none":
            return evidence.layers_of(self.parts.model)
        return [Layer("the rotated grid", slice(0, grid.dimension))]

    def readable(self, parts: Parts) -> Parts:
        plan = cast(DistributedPlan, parts.plan)
        group = dict(zip(parts.population.names, plan.groups.tolist(), strict=True))
        return _with_seals(
            parts, lambda name, seal: Plain(lanes_of(plan, group[name], None), plan.noises[group[name]].fewest)
        )

    @cached_property
    def events(self) -> list[IntegerSumDpEvent]:
        return [cast(IntegerSumDpEvent, self.algorithm.cost(self.parts.population[index])) for index in self.cohort]

    def shares(self) -> Iterator[Check]:
        """The noise that each client adds."""
        variances, still = [event.share_variance for event in self.events], torch.zeros_like(self.parts.params)
        silent = self.tensors(
            "report", self.probes.noise, still, rounds=evidence.rounds_for(len(self.cohort), self.layers)
        )
        excess = 1 / min(variances)  # of a Skellam share; a discrete Gaussian has less
        noise = silent / np.sqrt(variances)[:, None]
        yield from evidence.checks(self.where, noise, self.layers, multiplier=1.0, excess=excess)

    def clients(self) -> Iterator[Check]:
        yield from self.shares()
        events = self.events
        start, allowed = self.parts.params, np.sqrt([event.l2_squared for event in events])
        base = self.tensors("report", self.probes.silent, start)
        added = [self.tensors("report", probe, start) - base for probe in self.probes.longer()]
        most = max(float((np.linalg.norm(one[0], axis=-1) / allowed).max()) for one in added)
        unit, fault = self.plan.grid.step * float(allowed[0]), "a client changes more of the sum than is priced"
        yield self.check("clip on the grid", 1.0, exact(most), fault, unit=unit)

    def server(self) -> Iterator[Check]:
        parts, algorithm, plan = self.parts, self.algorithm, self.plan
        group = next(iter(algorithm.groups.values()))
        members = [k for k, name in enumerate(parts.population.names) if algorithm.groups[name].name == group.name]
        cohort = members[: plan.noises[int(plan.groups[members[0]])].fewest]
        slow = isinstance(group.seal, Sealed) and len(cohort) * group.seal.lanes.numbers > MOST_SEALED
        if isinstance(group.seal, Plain) or slow:
            return
        run = secrets.token_hex(RUN_BYTES)  # of one round and run no second sum is opened
        sums: list[np.ndarray] = []
        hidden = _with_seals(parts, lambda _, seal: replace(seal, run=run) if isinstance(seal, Sealed) else seal)
        for ready in (self.readable(parts), hidden):
            with one_by_one(ready, lambda changed: self.bug(self.probes.silent(changed))) as trainer:
                messages = replies(trainer, parts, parts.params, cohort=cohort, round=0)
            collected = cast(Encrypted, ready.algorithm).groups[messages[0].sender].seal.collect(round=0)
            for message in messages:
                collected.accept(message)
            collected.settle()
            sums.append(np.asarray(collected.open()))
        off = float(np.abs(sums[0] - sums[1]).max())
        yield Check(SERVER, "opened sum off by", 0.0, exact(off), "an opened sum is not the sum of the reports")


def _with_seals(parts: Parts, seal: Callable[[str, Seal], Seal]) -> Parts:
    algorithm = cast(Encrypted, parts.algorithm)
    groups = {name: replace(group, seal=seal(name, group.seal)) for name, group in algorithm.groups.items()}
    return replace(parts, algorithm=replace(algorithm, groups=groups))


def sum_in(message: Message) -> torch.Tensor:
    """What a client sends to a trusted server, or what a trainer has added up for it."""
    total = message.total if isinstance(message, InTotal) else None
    return message.tensors["update"] if total is None else total.vector


class Sums(Local):
    """Sums of records under a trusted server, which noises them once."""

    @cached_property
    def by_record(self) -> bool:
        return True

    @property
    def cohorts(self) -> list[tuple[int, ...]]:
        """Of a stack, which adds up whom it is asked for at once, each client alone."""
        return [(index,) for index in self.cohort] if self.where == "stacked" else [self.cohort]

    def released(self, probes: Probes, probe: Probe, *, rounds: int) -> np.ndarray:
        sent = self.sent(probe, probes.start, rounds=rounds)
        return -np.array([[sum_in(message).double().numpy() for message in one] for one in sent])

    def _noise(self) -> Iterator[Check]:
        yield from ()  # is the server's

    def server(self) -> Iterator[Check]:
        """The noise of rounds that nobody answers: a step of 1 along it, over the records that all batches are expected to hold."""
        own: Any = self.parts.algorithm
        bug: Any = self.bug(self.parts).algorithm
        algorithm = replace(bug, optimizer=Sgd(1.0), learning_rate=1.0, schedule=CONSTANT)
        state = algorithm.init(torch.zeros_like(self.parts.params))
        derive, z = (
            self.parts.releases.server(state_digest(state)),
            claim_of(own.cost(self.parts.population[0])).multiplier,
        )
        moved = [
            finished(algorithm.collect(state, round=r), [], partial(derive, "server", r))[0].params.double().numpy()
            for r in range(evidence.rounds_for(1, self.layers))
        ]
        noise = np.array(moved)[:, None] * sum(own.records.values())
        yield from evidence.checks(SERVER, noise / (z * self.probes.clip), self.layers, multiplier=z)


class SecretSums(Sums, Distributed):  # pyright: ignore[reportIncompatibleMethodOverride] - each says what its algorithm is
    """The same as integers, of which every client noises its own with a share, and nobody opens any but their sum."""

    def server(self) -> Iterator[Check]:
        return Distributed.server(self)

    def released(self, probes: Probes, probe: Probe, *, rounds: int) -> np.ndarray:
        return -self.tensors("report", probe, probes.start, rounds=rounds) * self.plan.grid.step

    def _noise(self) -> Iterator[Check]:
        yield from self.shares()


KINDS: dict[type, type[Subject]] = {
    LocalDP: Local,
    CentralDP: Central,
    Encrypted: Distributed,
    RecordSums: Sums,
    SecretRecordSums: SecretSums,
}
