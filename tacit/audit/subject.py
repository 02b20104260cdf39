"""Who is audited: one trainer of one experiment, and the clients that it is asked to train."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from tacit.audit.probes import Prepare, Probe, Probes
from tacit.audit.trainers import Making, ask
from tacit.build.parts import Parts
from tacit.types import Message


@dataclass(frozen=True)
class Subject:
    """A trainer (`where` is its name), with the bug that is planted into whatever parts it is made of, if any."""

    where: str
    parts: Parts = field(repr=False)
    making: Making = field(repr=False)
    plant: Prepare = field(repr=False)
    probes: Probes = field(repr=False)
    cohort: tuple[int, ...] = ()

    def sent(self, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> Iterator[list[Message]]:
        """What the clients send under a probe, round after round; beyond the planned rounds each is asked another question."""
        planned = self.parts.experiment.train.rounds
        with self.making(self.parts, lambda parts: self.plant(self.prepared(probe(parts)))) as trainer:
            for r in range(rounds):
                where = {"cohort": self.cohort, "round": r % planned, "turn": r // planned}
                yield ask(trainer, self.parts, start, **where)

    def prepared(self, parts: Parts) -> Parts:
        """What else of the parts is changed so that messages can be read."""
        return parts
