"""What an audit measures of noise once: how often records are drawn and what each adds, at every client; and the one noise, at
the server that is trusted, or in the clients' shares where nobody is."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.record_sums import InTotal, RecordSums, SecretRecordSums
from tacit.lab.audit import evidence
from tacit.lab.audit.estimate import claim_of
from tacit.lab.audit.evidence import Check
from tacit.lab.audit.kinds import SERVER, Central, Distributed, Local, Subject
from tacit.lab.audit.probes import Probe, Probes
from tacit.training.optimizer import CONSTANT, Sgd
from tacit.types import Message
from tacit.wire import state_digest


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
