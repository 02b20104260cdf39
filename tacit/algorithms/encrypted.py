"""Encrypted sums with distributed noise: a 2020 note on FedAvg under Paillier, after Geyer, Klein, Nabi (arXiv:1712.07557),
with integers instead of floats, shares of noise sized for the fewest reports, and division after opening (docs/papers.md).
Guarantee: client level, on the opened sum, for whoever cannot read single reports (the server holds no key); who can is left
with each client's own share. A report that cannot be used is refused by name; a sum of too few is not opened, one that is out
of range is dropped, and the model stays as it is. Choosing clients at random earns nothing: the server knows who reports. A
broadcast's fact `turn` is the round's number; a site checks it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.algorithms import Server, finished, group_message, local_for_round
from tacit.check import printable
from tacit.crypto.grid import Grid, Quantised
from tacit.crypto.seal import Collected, Seal
from tacit.errors import BadCiphertext, BadOpening, GridOverflow, SumOverflow, TacitError, TooFewReports
from tacit.privacy.mechanism import ShareMechanism
from tacit.random import Derive
from tacit.training.sgd import Local, Trained, Workspace
from tacit.types import Client, Message, Shared, State

# of an opened sum: a sealed number that no honest client seals
OUT_OF_RANGE = GridOverflow, SumOverflow, BadCiphertext


@dataclass(frozen=True, eq=False)
class Group:
    """A group's noise and seal, and what is public of each client: facts for the rule, and a weight of at most 1. Groups are
    fixed before the run: noise is sized for the clients it protects, and a client is in one sum only."""

    name: str
    noise: ShareMechanism
    seal: Seal
    facts: Mapping[str, dict[str, Any]] = field(repr=False)
    weights: Mapping[str, float] = field(repr=False)

    def mean(self, reports: Collected, *, grid: Grid, round: int) -> Message:
        """The opened sum over the weight it holds, as one message for all who reported. Raises: what `Collected.open` raises.
        Guarantee: clients are counted after opening and by the server's own weights, so nothing that a client states is used."""
        total, clients = reports.open(), reports.clients
        weight = sum(self.weights[name] for name in clients)
        update = grid.dequantise(total, round=round) / weight  # divide by K, after opening
        members = [self.facts[name] | {"group": self.name.partition(" ")[0]} for name in clients]
        return group_message(self.name, torch.from_numpy(update).float(), members)


@dataclass(frozen=True)
class Encrypted:
    """`groups` is each client's group, by name: its noise with its price, and its seal. `grid` holds the clip S. Assumes: in
    every opened sum as many reports with an honest share of the noise as the shares were sized for (the fewest that are opened,
    less the colluders); the price is for that."""

    tolerates_invalid: ClassVar[bool] = True
    depends_on_round: ClassVar[bool] = True  # a report is rotated and sealed for its round

    groups: Mapping[str, Group] = field(repr=False)
    grid: Grid
    server: Server
    local: Local

    def init(self, params: torch.Tensor) -> State:
        return self.server.init(params)

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        message = self.server.broadcast(state, cohort)  # the round rotates the grid and is sealed into every report
        return replace(message, facts=message.facts | {"turn": round})

    def cost(self, client: Client) -> DpEvent:
        return self.share(client).event()  # for the opened sum, not for a single report

    def share(self, client: Client) -> ShareMechanism:
        """What owns a client's share of the noise, and the price."""
        return self.groups[client.id].noise

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """Integers with the client's share of the noise; whatever goes wrong in training ends as zeros with noise."""
        return self.shared(*self.quantised(work, received, client, derive), client, derive)

    def shared(self, quantised: Quantised, info: dict[str, Any], client: Client, derive: Derive) -> Trained:
        """The client's integers with its share of the noise."""
        noise = self.share(client)
        return Trained(noise.noise(noise.init(), derive("share"), quantised)[1], info)  # + its share of N(0, S²σ²)

    def quantised(
        self, work: Workspace, received: Message, client: Client, derive: Derive
    ) -> tuple[Quantised, dict[str, Any]]:
        """The integers of the client's clipped update, without noise, and what its training tells; zeros where that failed."""
        rounding = {
            "stream": derive("rounding"),
            "round": received.facts["turn"],
            "weight": self.groups[client.id].weights[client.id],
        }
        local = local_for_round(self.local, received, client)
        try:
            trained = local(work, received.tensors["params"], client, derive("train"))  # Δ = w^k - w_t
            quantised = self.grid.quantise(trained.update.vector.cpu().numpy(), **rounding)  # Δ / max(1, ζ/S)
            return quantised, trained.info | {"clipped": float(trained.update.vector.norm() > self.grid.clip)}
        except Exception:  # noqa: BLE001 - whatever the rows cause: nobody shall learn of it, a zero with its noise is sent
            return self.grid.quantise(np.zeros(self.grid.size), **rounding), {"diverged": 1.0}

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """Seals the integers for this round. Raises: TypeError for integers that carry no share of the noise."""
        if not isinstance(trained.update, Shared):
            raise TypeError("only integers that carry their share of the noise are sealed")
        seal, round = self.groups[client.id].seal, received.facts["turn"]
        return Message(client.id, seal.report(trained.update, client=client.id, round=round))  # HE(Δ)

    def collect(self, state: State, *, round: int) -> "Summing":
        return Summing(self, state, round)


@dataclass(frozen=True)
class Summing:
    """A round on a server that cannot read single reports: it adds them by group, and has the sums opened."""

    algorithm: Encrypted
    state: State
    round: int
    collected: dict[str, tuple[Group, Collected]] = field(default_factory=dict)  # by group
    refused: dict[str, str] = field(default_factory=dict)  # by client, or by what was not opened: the reason

    def add(self, message: Message) -> None:
        group, refused = self.algorithm.groups.get(message.sender), self.refused
        if group is None:
            refused[printable(message.sender)] = "it is no client of this run"
            return
        if group.name not in self.collected:
            self.collected[group.name] = (group, group.seal.collect(round=self.round))
        try:
            self.collected[group.name][1].accept(message)  # Σ HE(Δ)
        except TacitError as error:
            refused.setdefault(message.sender, printable(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a client has sent, the round goes on without it
            refused.setdefault(message.sender, f"its message cannot be used ({type(error).__name__})")

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The model moved by the opened sums; where none was opened it stays as it is, and so do memories. Raises: as `means`."""
        for _, reports in self.collected.values():  # every proof: nobody counts before
            for sender, error in reports.settle().items():
                self.refused[sender] = printable(str(error))
        opened = self.means()  # divide by K
        asked = [reports.opened for _, reports in self.collected.values() if reports.opened]
        info: dict[str, Any] = {"opened": len(opened), "refused": self.refused}
        info |= {name: sum(getattr(one, name) for one in asked) for name in ("asked_bytes", "answered_bytes")}
        if not opened:
            return self.state, info
        device = self.state.params.device
        moved = [one.to(device) for one in opened]
        state, more = finished(self.algorithm.server.collect(self.state, round=self.round), moved, derive)
        return state, info | more

    def means(self) -> list[Message]:
        """One message for each group with enough reports. Assumes: proofs were checked (`Collected.settle`). Guarantee: a sum
        out of range drops the round, all groups of it: one report did not keep to the grid, and nobody can say whose without
        opening single reports. Raises: what an opener has for the operator: holders that are away stop the run, for a resume."""
        opened, refused, dropped = list[Message](), self.refused, False
        for name, (group, reports) in self.collected.items():
            try:
                opened.append(group.mean(reports, grid=self.algorithm.grid, round=self.round))
            except TooFewReports as error:
                refused[f"the sum of group {name}"] = str(error)
            except BadOpening as error:
                dropped = True
                why = f"the sum of round {self.round + 1} is not known: {error}; the round is dropped"
                refused[f"the sum of group {name}"] = why
            except OUT_OF_RANGE:
                dropped = True
                why = f"the sum of round {self.round + 1} is out of range: a report did not keep to the grid; the round is dropped"
                refused[f"the sum of group {name}"] = f"{why}, one of {', '.join(reports.clients)}"
            if reports.opened:
                refused.update({f"the share of {who}": why for who, why in reports.opened.left_out.items()})
        return [] if dropped else opened
