"""Encrypted sums with distributed noise: a 2020 note on FedAvg under Paillier, after Geyer, Klein, Nabi (arXiv:1712.07557).

Differences, each for a reason in docs/papers.md: integers instead of floats, shares of noise sized for the fewest reports,
division after opening. Guarantee: client level, on the opened sum, for whoever cannot read single reports (the server
holds no key); who can is left with each client's own share. A report that cannot be used is refused by name; a sum of too few
is not opened, one that is out of range is dropped, and the model stays as it is: what one client can do is stop a sum. Choosing
clients at random earns nothing: the server knows who reports. `turn` is the round's number, as the loop counts it; a site compares
it with the round it was asked for (`site.sealed.refuse_other_turn`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms import Server, finished, told
from tacit.algorithms._groups import Group, Reports, means
from tacit.protect.quantise import Grid
from tacit.random import Derive
from tacit.train.attempt import Local
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Message, Shared, State


@dataclass(frozen=True)
class Encrypted:
    """`groups` is each client's group, by name: its noise with its price, and its seal. `grid` holds the clip S."""

    forgiving: ClassVar[bool] = True
    numbered: ClassVar[bool] = True  # a report is rotated and sealed for its round

    groups: Mapping[str, Group] = field(repr=False)
    grid: Grid
    server: Server
    local: Local

    def init(self, params: torch.Tensor) -> State:
        return self.server.init(params)

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        told = self.server.broadcast(state, cohort)
        return replace(told, facts=told.facts | {"turn": round})

    def cost(self, client: Client) -> DpEvent:
        return self.groups[client.id].noise.event()

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        group, turn = self.groups[client.id], received.facts["turn"]
        where = {"stream": derive("rounding"), "turn": turn, "weight": group.weights[client.id]}
        local = told(self.local, received, client)
        try:
            trained = local(work, received.tensors["params"], client, derive("train"))  # Δ = w^k - w_t
            placed = self.grid.place(trained.update.vector.cpu().numpy(), **where)  # Δ / max(1, ζ/S)
            info = trained.info | {"clipped": float(trained.update.vector.norm() > self.grid.clip)}
        except Exception:  # noqa: BLE001 - whatever the rows cause: nobody shall learn of it, a zero with its noise is sent
            placed, info = self.grid.place(np.zeros(self.grid.size), **where), {"diverged": 1.0}
        _, shared = group.noise.noise(group.noise.init(), derive("share"), placed)  # + its share of N(0, S²σ²)
        return Trained(shared, info)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        if not isinstance(trained.update, Shared):
            raise TypeError("only integers that carry their share of the noise are sealed")
        seal, turn = self.groups[client.id].seal, received.facts["turn"]
        return Message(client.id, seal.report(trained.update, client=client.id, round=turn))  # HE(Δ)

    def collect(self, state: State, *, round: int) -> "Summing":
        return Summing(self, state, Reports(self.groups, round))


@dataclass(frozen=True)
class Summing:
    """A round on a server that cannot read single reports: it adds them, and has the sums opened."""

    algorithm: Encrypted
    state: State
    reports: Reports

    def add(self, message: Message) -> None:
        self.reports.add(message)  # Σ HE(Δ)

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The model moved by the opened sums; where none was opened it stays as it is, and so do the memories."""
        grid, found, refused = self.algorithm.grid, self.reports.settled(), self.reports.refused
        opened = means(
            found, grid=grid, turn=self.reports.turn, refused=refused
        )  # the clients' part: open, divide by K
        asked = [reports.opened for _, reports in found.values() if reports.opened]
        info: dict[str, Any] = {"opened": len(opened), "refused": refused}
        info |= {name: sum(getattr(one, name) for one in asked) for name in ("asked_bytes", "answered_bytes")}
        if not opened:
            return self.state, info
        state, more = finished(self.algorithm.server.collect(self.state), opened, derive)
        return state, info | more
