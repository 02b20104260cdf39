"""Canary records that go through the per-example clipper as well: rows of random numbers with a random class.

What such a record changes is its own clipped gradient, which is at most C long and another in every step, so it is read off each
noised sum: along that gradient, less what everybody else put there. A clipper that lets a record through is found by them; where
their gradients are shorter than C, they measure less than is promised.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tacit.algorithms.local_dp import LocalDP
from tacit.build.parts import Parts
from tacit.canaries.algorithms import LocalRecords
from tacit.canaries.mechanism import PlantedTraining
from tacit.canaries.plan import SIGHT, Canaries
from tacit.errors import BadInput
from tacit.privacy.mechanism import NoiseState, TrainingMechanism
from tacit.random import Derive, Stream, keyed
from tacit.train.dp_sgd import DpSgd
from tacit.train.workspace import Trained, Workspace
from tacit.types import Bounded, Client, Message, Private


class PlantedRows(PlantedTraining):
    """One client's round of DP-SGD with canary records. Guarantee: as `PlantedTraining`, if the clipper keeps to C."""

    def __init__(self, own: TrainingMechanism, work: Workspace, x: torch.Tensor, y: torch.Tensor, coins: np.ndarray):
        super().__init__(own, np.arange(len(coins)), coins)
        self.work, self.x, self.y = work, x, y

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canaries' clipped gradients to the sum, has it noised, and looks along every canary's."""
        rows = [self._clipped(j) for j in range(len(self.y))]
        gradients = torch.stack(rows) if rows else bounded.vector.new_zeros(0, len(bounded.vector))
        now = torch.from_numpy(self._now).to(gradients.device)
        added = gradients[now].sum(0)
        state, noised = self.own.noise(state, stream, Bounded(bounded.vector + added, bounded.sensitivity))
        self.drawn[self._now] += 1
        lengths = gradients.norm(dim=1).clamp(min=1e-12)
        left = noised.vector - bounded.vector - added  # the noise as run
        along = (gradients @ left) / lengths
        along[now] += lengths[now]
        self.real += along.double().cpu().numpy()
        return state, noised

    def _clipped(self, j: int) -> torch.Tensor:
        x, y = self.x[j : j + 1], self.y[j : j + 1]
        return self.work.clipped_sum(x, y, again=lambda: x)[0].vector.clone()

    def told(self) -> dict[str, np.ndarray]:
        """What was seen, in clips."""
        return {"seen": np.asarray(self.real / self.clip, dtype=np.float32), "drawn": self.drawn}


@dataclass(frozen=True, kw_only=True)
class LocalRows(LocalRecords):
    """Local DP, record level, with canary records of `classes` classes; `where` is the process's workspace, while it trains."""

    classes: int
    where: dict[str, Workspace] = field(default_factory=dict, repr=False, compare=False)

    def _planted(self, client: Client) -> PlantedTraining:
        work, k = self.where.get("work"), client.index
        if work is None:
            raise BadInput('audit.placement = "record" is for clients that train one by one: leave out run.at_once.')
        x, y = rows(self.canaries, client, classes=self.classes)
        return PlantedRows(self.plain(client), work, x, y, self.canaries.coins(k))

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """As without canaries, in this workspace."""
        self.where["work"] = work
        return super().train(work, received, client, derive)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """What is released, with what was seen of the canaries in the info, which stays."""
        message = LocalDP.release(self, trained, client, received)
        planted: Any = self.begun.pop(client.index)
        trained.info[SIGHT] = planted.told()
        return message


def with_rows(parts: Parts, canaries: Canaries, *, classes: int) -> LocalRows:
    """The algorithm of a run with canary records. Raises BadInput where its clients do not run DP-SGD."""
    own: Any = parts.algorithm
    if type(own) is not LocalDP or type(own.local) is not DpSgd:
        raise BadInput("Canary records are planted into Tacit's own DP-SGD: leave out [audit].")
    return LocalRows(own.mechanism, own.server, own.local, canaries=canaries, classes=classes)


def rows(canaries: Canaries, client: Client, *, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a client's canaries: standard normals, and a class each; they follow from the key and the shape of a row."""
    count, shape = len(canaries.of(client.index)), client.x.shape[1:]
    stream = keyed(canaries.key)("rows", client.index)
    x = stream.normal(count * int(np.prod(shape))).view(count, *shape).to(client.x.dtype)
    y = torch.from_numpy((stream.words(count) % classes).astype(np.int64))
    return x.to(client.x.device), y.to(client.y.device, client.y.dtype)
