"""Local DP as run: the noise, what a record (or the client) can change, how often a record is drawn, and the divisor.

What a client releases is taken off the trainer's own messages; the server's rule is post-processing, and is the mean here."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto.seal import Plain, Seal, Sealed
from tacit.digest import state_mark
from tacit.engine.assemble import Parts
from tacit.lab.audit import evidence
from tacit.lab.audit.evidence import Check, Exact, Layer, Rate, Spread
from tacit.lab.audit.probes import Claim, Prepare, Probe, Probes, read
from tacit.lab.audit.trainers import Making, Subject, ask, one_by_one
from tacit.privacy.accounting.rdp import IntegerSumDpEvent
from tacit.privacy.central.kind import BandedPlan, CentralPlan
from tacit.privacy.distributed.kind import DistributedPlan, lanes_of
from tacit.random import Derive, keyed
from tacit.training.dp_sgd import DpSgd
from tacit.training.optimizer import Sgd
from tacit.types import Message

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
        layers = evidence.layers_of(self.parts.model)
        rounds = evidence.rounds_for(len(self.cohort), layers)
        # from zeros, where whatever decays or is pulled stays
        still = replace(self.probes, start=torch.zeros_like(self.parts.params))
        found = self.released(still, still.noise, rounds=rounds)
        claims, everybody = [self.claim(index) for index in self.cohort], self.parts.plan.noise_multipliers
        due = self.probes.clip * np.array(
            [[c.noise_multiplier * self._growth(c, r) for c in claims] for r in range(rounds)]
        )
        shown = claims[0].noise_multiplier if everybody is None or np.ptp(everybody) == 0 else 1.0
        yield from evidence.checks(self.where, found / due[..., None], layers, multiplier=shown)

    def _growth(self, claim: Claim, r: int) -> float:
        """What the noise of a round's steps comes to in the update, in units of one step's."""
        local, train = self.algorithm.local, self.parts.experiment.train
        if not isinstance(local, DpSgd):
            return 1.0
        descent = local.descent.for_round(r % train.rounds)
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
        layers, vectors = evidence.layers_of(self.parts.model), np.concatenate(added)
        said = f"a {'record' if self.by_record else 'client'} changes more than its clip"
        parts = [(layer.name, layer.place) for layer in layers] if len(layers) > 1 else []
        for name, place in (("", slice(None)), *parts):
            most = float(np.linalg.norm(vectors[:, place], axis=-1).max(initial=0.0))
            yield Check(self.where, "clip", self.probes.clip, Exact(most), said, part=name)


def clients_of(parts: Parts, where: str) -> tuple[int, ...]:
    """Clients from the tightest budget to the loosest, and the largest of them: as many as noise takes to be told."""
    p, most = parts.population, evidence.clients_for(evidence.layers_of(parts.model))
    order = np.lexsort((p.sizes, p.epsilons))
    picked = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    picked = np.unique([*picked.tolist(), int(p.sizes.argmax())])
    return tuple(int(index) for index in (picked[:BY_SITE] if where == "site" else picked))


def server_local(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """Nothing: whatever the server does is post-processing."""
    yield from ()


def clients_local(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return LocalSubject(where, parts, making, plant, probes, clients_of(parts, where)).checks()


# Central DP as run: the server's noise, what a client can change, who is drawn, and the divisor.

DRAWS = 400  # cohorts; none is trained
OTHERS = 3  # clients that send zeros, for the divisor
SERVER = "server"
ROUNDING = 0.01


@dataclass(frozen=True)
class Server:
    """The server's part of an experiment under central DP, as it would run."""

    parts: Parts = field(repr=False)

    @property
    def algorithm(self) -> CentralDP:
        """The algorithm, with a server that steps by the noised mean itself."""
        return replace(cast(CentralDP, self.parts.algorithm), optimizer=Sgd(1.0))

    @property
    def plan(self) -> CentralPlan:
        """The plan, which draws cohorts."""
        return cast(CentralPlan, self.parts.plan)

    def moved(self, messages: Sequence[Message], derive: Derive, *, round: int) -> np.ndarray:
        """How far the model moves in a round of these messages, times the expected weight: the noised sum."""
        algorithm = self.algorithm
        state = algorithm.init(torch.zeros_like(self.parts.params))
        after, _ = finished(algorithm.collect(state, round=round), messages, derive)
        return after.params.double().numpy() * self.plan.expected_weight

    def derive(self) -> Derive:
        """The server's own randomness in rounds from zeros."""
        return self.parts.releases.server(state_mark(self.algorithm.init(torch.zeros_like(self.parts.params))))

    def checks(self, claim: Claim, *, clip: float) -> Iterator[Check]:
        """The noise on sums, and who is drawn."""
        layers = evidence.layers_of(self.parts.model)
        rounds = evidence.rounds_for(1, layers)
        if self.parts.plan.traits.single_release:
            yield from self._banded(cast(BandedPlan, self.parts.plan), claim, rounds, clip=clip)
            return
        found = np.array([[self.moved([], partial(self.derive(), "server", r), round=r)] for r in range(rounds)])
        z = with_count(claim, self.plan.mechanism.count_std)
        sensitivity = clip * (2 if claim.fixed else 1)
        yield from evidence.checks(SERVER, found / (z * sensitivity), layers, multiplier=z)
        yield from self._drawn(claim)

    def _banded(self, plan: BandedPlan, claim: Claim, rounds: int, *, clip: float) -> Iterator[Check]:
        strategy, z = plan.mechanism.strategy, claim.noise_multiplier
        found: list[np.ndarray] = []
        for again in range(-(-rounds // strategy.rounds)):
            released = self.run_of(partial(self.derive(), "again", again), rounds=min(rounds, strategy.rounds))
            found.extend(strategy.dense()[: len(released), : len(released)] @ released)  # C C^-1 z
        layers = evidence.layers_of(self.parts.model)
        yield from evidence.checks(SERVER, np.array(found)[:, None] / (z * clip), layers, multiplier=z)
        bands = range(max(1, plan.mechanism.cycle - strategy.bands + 1) + plan.mechanism.cycle)
        turns = [[plan.mechanism.cohorts.scheduled(r + step) for step in range(strategy.bands)] for r in bands]
        most = max(max(np.bincount(np.concatenate(band).astype(int), minlength=1)) for band in turns)
        yield Check(SERVER, "turns in a band", 1.0, Exact(float(most)), "a client is in two rounds whose noise is one")

    def run_of(self, derive: Derive, *, rounds: int) -> np.ndarray:
        """The noise of a run's first rounds in which nobody answers, as it goes on from each to the next."""
        algorithm = self.algorithm
        state = algorithm.init(torch.zeros_like(self.parts.params))
        found: list[np.ndarray] = []
        for r in range(rounds):
            after, _ = finished(algorithm.collect(state, round=r), [], partial(derive, r))
            found.append((after.params - state.params).double().numpy() * self.plan.expected_weight)
            state = replace(after, params=torch.zeros_like(after.params))
        return np.array(found)

    def _drawn(self, claim: Claim) -> Iterator[Check]:
        if claim.rate == 1:
            return
        everybody = len(self.parts.population)
        draws = [self.plan.sampler.draw(self.derive()(r, "cohort"), r) for r in range(DRAWS)]
        counts, said = [len(cohort) for cohort in draws], "clients are drawn more often than is priced"
        if claim.fixed:
            most = max(counts) / everybody
            yield Check(SERVER, "sampling rate", claim.rate, Exact(most), said)
            return
        yield Check(SERVER, "sampling rate", claim.rate, Rate(sum(counts), everybody * DRAWS), said)
        spread = Spread(tuple(counts), (everybody,) * DRAWS, (claim.rate,) * DRAWS)
        yield Check(SERVER, "spread of cohorts", 1.0, spread, "cohorts vary less than independent draws do")


class CentralSubject(Subject):
    """One trainer of one experiment under central DP, with the server behind it."""

    def checks(self) -> Iterator[Check]:
        """What a client adds to the sum, however many others there are."""
        server, clip = Server(self.plant(self.parts)), self.probes.clip
        still: Derive = lambda *purpose: keyed(b"the noise of an audit's pairs")("noise")  # noqa: E731
        most = 0.0
        divided: list[float] = []
        for probe in self.probes.longer():
            (sent,) = self.sent(probe, self.parts.params)
            names = {message.sender for message in sent}
            others = [name for name in self.parts.population.names if name not in names][:OTHERS]
            zeros = [Message(name, {"update": torch.zeros_like(self.parts.params)}) for name in others]
            empty, silent = (server.moved(base, still, round=0) for base in ([], zeros))
            for message in (*sent, *(crafted(name, self.parts.params) for name in names)):
                alone = float(np.linalg.norm(server.moved([message], still, round=0) - empty))
                among = float(np.linalg.norm(server.moved([message, *zeros], still, round=0) - silent))
                most = max(most, alone, among)
                if alone > 0.1 * clip * min(1.0, server.algorithm.weights[message.sender]):
                    divided.append(alone / max(among, 1e-12))
        yield Check(
            self.where, "clip", clip, Exact(most), "a client changes more of the sum than the clip that is priced"
        )
        if divided and len(self.parts.population) > OTHERS:
            off, said = max(abs(ratio - 1) for ratio in divided), "a sum is not divided by the expected weight"
            yield Check(self.where, "divisor off by", 0.0, Exact(off, slack=ROUNDING), said)


def crafted(name: str, params: torch.Tensor) -> Message:
    """A message of a client that did not clip."""
    return Message(name, {"update": torch.full_like(params, 1e3)}, {"unclipped": True})


def with_count(claim: Claim, count: float | None) -> float:
    """The noise over sensitivity on the sum alone: more than is priced for both, where a count of clipped updates is released."""
    if count is None:
        return claim.noise_multiplier
    other = count / (1.0 if claim.fixed else 0.5)  # Theorem 1 of arXiv:1905.03871
    return (claim.noise_multiplier**-2 - other**-2) ** -0.5


def server_central(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The server's noise, and whom it draws."""
    return Server(plant(parts)).checks(read(parts.algorithm.cost(parts.population[0])), clip=probes.clip)


def clients_central(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return CentralSubject(where, parts, making, plant, probes, heaviest(parts, where)).checks()


def heaviest(parts: Parts, where: str) -> tuple[int, ...]:
    """Clients of all sizes, the largest first."""
    picked = clients_of(parts, "")
    turn = parts.plan.sampler.scheduled(0)
    if turn is not None:  # what they send is added in round 0
        picked = sorted(turn, key=lambda index: -int(parts.population.sizes[index]))[: len(picked)]
    ordered = sorted(picked, key=lambda index: -int(parts.population.sizes[index]))
    return tuple(ordered[:1] if where == "site" else ordered)


# Distributed DP as run: every client's share of the noise, what a client can change on the grid, and the opened sum.

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
        silent = self.reports(self.probes.noise, rounds=evidence.rounds_for(len(self.cohort), layers), start=still)
        due = np.sqrt([event.share_variance for event in events])
        excess = 1 / min(event.share_variance for event in events)  # of a Skellam share; a discrete Gaussian has less
        yield from evidence.checks(self.where, silent / due[:, None], layers, multiplier=1.0, excess=excess)
        yield from self._bounds(events)

    def _layers(self) -> list[Layer]:
        """Layers lie on the grid as they are, unless it is rotated."""
        grid = self.plan.grid
        if grid.rotation == "none":
            return evidence.layers_of(self.parts.model)
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


def server_distributed(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
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


def clients_distributed(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return DistributedSubject(where, parts, making, plant, probes, weighty(parts, where)).checks()


def weighty(parts: Parts, where: str) -> tuple[int, ...]:
    """The first clients and the one that weighs most."""
    everybody = len(parts.population)
    picked = sorted({*range(min(CLIENTS, everybody)), int(parts.population.sizes.argmax())})
    return (picked[-1],) if where == "site" else tuple(picked)
