"""What an audit holds of each kind of privacy, as run: the noise, what one unit can change, how often it is drawn, and the divisor.

What clients release is taken off the trainer's own messages. Of local DP the server's rule is post-processing, and is the mean; of
central DP the server's sum is noised; of distributed DP every client adds a share of the noise to integers before it seals them."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto.seal import Plain, Seal, Sealed
from tacit.engine.assemble import Parts
from tacit.engine.trainers import Trainer
from tacit.lab.audit import evidence
from tacit.lab.audit.evidence import Check, Exact, Layer, Rate, Spread
from tacit.lab.audit.probes import Claim, Prepare, Probe, Probes, claim_of
from tacit.lab.audit.trainers import Making, one_by_one
from tacit.privacy.accounting.events import IntegerSumDpEvent
from tacit.privacy.central.kind import BandedPlan, CentralPlan
from tacit.privacy.distributed.kind import DistributedPlan, lanes_of
from tacit.random import Derive, keyed
from tacit.training.optimizer import Sgd
from tacit.training.sgd import DpSgd
from tacit.types import Message
from tacit.wire import pack, state_digest, unpack

SERVER = "server"
ROUNDS = 6  # of exact probes: each draws every client's records anew
WHOLE = 0.05  # how far from a whole number a count of records may be
DRAWS = 400  # cohorts; none is trained
OTHERS = 3  # clients that send zeros, for the divisor
ROUNDING = 0.01
CLIENTS = 8
RUN_BYTES = 8
MOST_SEALED = 400  # ciphertexts that an audit seals: a few seconds


@dataclass(frozen=True)
class Subject:
    """One experiment with the bug that is planted into whatever parts it is made of, if any; and one of its trainers (`where`)."""

    parts: Parts = field(repr=False)
    plant: Prepare = field(repr=False)
    probes: Probes = field(repr=False)
    where: str = SERVER
    making: Making = field(default=one_by_one, repr=False)

    def server(self) -> Iterator[Check]:
        yield from ()

    def clients(self) -> Iterator[Check]:
        """The checks of the trainer."""
        raise NotImplementedError

    def picked(self) -> list[int]:
        """The clients that are asked; of a site, which has a folder and pays a ledger, the first alone."""
        raise NotImplementedError

    @cached_property
    def cohort(self) -> tuple[int, ...]:
        """The clients that this trainer is asked to train."""
        return tuple(self.picked()[:1] if self.where == "site" else self.picked())

    @cached_property
    def layers(self) -> list[Layer]:
        """Where the layers lie in what is released."""
        return evidence.layers_of(self.parts.model)

    def readable(self, parts: Parts) -> Parts:
        """The parts, changed so that messages can be read."""
        return parts

    def sent(self, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> Iterator[list[Message]]:
        """What the clients send under a probe, round after round; beyond the planned rounds each is asked another question."""
        planned = self.parts.experiment.train.rounds
        with self.making(self.parts, lambda parts: self.plant(self.readable(probe(parts)))) as trainer:
            for r in range(rounds):
                yield ask(trainer, self.parts, start, cohort=self.cohort, round=r % planned, turn=r // planned)

    def tensors(self, name: str, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> np.ndarray:
        """One tensor of what the clients send (rounds, clients, coordinates)."""
        sent = self.sent(probe, start, rounds=rounds)
        return np.array([[message.tensors[name].double().numpy() for message in one] for one in sent])

    def check(self, quantity: str, claimed: float, seen: evidence.Evidence, said: str, **more: Any) -> Check:
        return Check(self.where, quantity, claimed, seen, said, **more)


def ask(
    trainer: Trainer, parts: Parts, start: torch.Tensor, *, cohort: Sequence[int], round: int, turn: int = 0
) -> list[Message]:
    """What the clients release in one round from the parameters `start`; another `turn` is another question."""
    algorithm = parts.algorithm
    clients = [parts.population[index] for index in cohort]
    message = algorithm.broadcast(algorithm.init(start), clients, round=round)
    if turn:
        message = replace(message, facts=message.facts | {"probe": turn})
    return [unpack(raw) for raw, _ in trainer(pack(message), round, cohort)]


def by_budget(parts: Parts) -> list[int]:
    """Clients from the tightest budget to the loosest, and the largest of them: as many as noise takes to be told."""
    p, most = parts.population, evidence.clients_for(evidence.layers_of(parts.model))
    order = np.lexsort((p.sizes, p.epsilons))
    picked = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    return np.unique([*picked.tolist(), int(p.sizes.argmax())]).tolist()


class Local(Subject):
    """Local DP, of a record in every step or of the whole client."""

    @property
    def algorithm(self) -> LocalDP:
        return cast(LocalDP, self.parts.algorithm)

    @property
    def by_record(self) -> bool:
        return isinstance(self.algorithm.local, DpSgd)

    @cached_property
    def claims(self) -> list[Claim]:
        """What the clients' ledgers are charged for."""
        return [claim_of(self.algorithm.cost(self.parts.population[index])) for index in self.cohort]

    def picked(self) -> list[int]:
        return by_budget(self.parts)

    def released(self, probes: Probes, probe: Probe, *, rounds: int) -> np.ndarray:
        """What the clients release (rounds, clients, coordinates), over what a sum is multiplied by: eta / (q n), or 1 for a whole
        update. All of it is public."""
        found = self.tensors("update", probe, probes.start, rounds=rounds)
        if not self.by_record:
            return found
        sizes, rate = self.parts.population.sizes[list(self.cohort)], self.parts.experiment.train.learning_rate
        scales = np.array([rate / (claim.rate * size) for claim, size in zip(self.claims, sizes.tolist(), strict=True)])
        return found / scales[:, None]

    def clients(self) -> Iterator[Check]:
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
        rounds, claims = evidence.rounds_for(len(self.cohort), self.layers), self.claims
        # from zeros, where whatever decays or is pulled stays
        still = replace(self.probes, start=torch.zeros_like(self.parts.params))
        found, everybody = self.released(still, still.noise, rounds=rounds), self.parts.plan.noise_multipliers
        grown = [[c.noise_multiplier * self._growth(c, r) for c in claims] for r in range(rounds)]
        due = self.probes.clip * np.array(grown)
        shown = claims[0].noise_multiplier if everybody is None or np.ptp(everybody) == 0 else 1.0
        yield from evidence.checks(self.where, found / due[..., None], self.layers, multiplier=shown)

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
        claimed = np.array([claim.rate for claim in self.claims])
        counts, sizes = np.rint(drawn).astype(int), self.parts.population.sizes[list(self.cohort)]
        for rate in np.unique(claimed):
            mine, of = counts[:, claimed == rate], sizes[claimed == rate]
            chance = Rate(int(mine.clip(0, of).sum()), int(of.sum()) * len(mine))
            seen = Exact(float((mine / of).max())) if rate == 1 else chance
            yield self.check("sampling rate", float(rate), seen, said)
        some = claimed < 1
        if some.any():
            columns = np.broadcast_arrays(counts[:, some], sizes[some], claimed[some])
            spread = Spread(*(tuple(column.ravel().tolist()) for column in columns))
            yield self.check("spread of batches", 1.0, spread, "batches vary less than independent draws do")

    def _divisor(self, silent: np.ndarray) -> Iterator[Check]:
        """A count of drawn records is a whole number, unless what it was divided by is not the expected batch."""
        if self.probes.half is None:
            return
        some = (self.released(self.probes, self.probes.half, rounds=ROUNDS) - silent) @ self.probes.direction
        off, said = float(np.abs(some - np.rint(some)).max()), "a sum is not divided by the expected batch"
        yield self.check("divisor off by", 0.0, Exact(off, slack=WHOLE), said)

    def _added(self, probes: Probes, probe: Probe, silent: np.ndarray, drawn: np.ndarray | None = None) -> np.ndarray:
        """What one record (or, where none are drawn, the client) adds to a sum (clients, coordinates)."""
        (found,) = self.released(probes, probe, rounds=1)
        counts = np.ones(len(found)) if drawn is None else np.rint(drawn[0])
        return (found - silent[0])[counts > 0] / counts[counts > 0, None]

    def _bounds(self, added: list[np.ndarray]) -> Iterator[Check]:
        """The most that was added: in all, and by layer."""
        vectors = np.concatenate(added)
        said = f"a {'record' if self.by_record else 'client'} changes more than its clip"
        parts = [(layer.name, layer.place) for layer in self.layers] if len(self.layers) > 1 else []
        for name, place in (("", slice(None)), *parts):
            most = float(np.linalg.norm(vectors[:, place], axis=-1).max(initial=0.0))
            yield self.check("clip", self.probes.clip, Exact(most), said, part=name)


class Central(Subject):
    """Central DP: the server's noise and whom it draws; what a client adds to the sum, however many others there are."""

    @property
    def algorithm(self) -> CentralDP:
        return replace(cast(CentralDP, self.parts.algorithm), optimizer=Sgd(1.0))

    @property
    def plan(self) -> CentralPlan:
        return cast(CentralPlan, self.parts.plan)

    @property
    def planted(self) -> "Central":
        """The same with the bug in its own parts: the server's."""
        return replace(self, parts=self.plant(self.parts))

    def picked(self) -> list[int]:
        """Clients of all sizes, the largest first; of public cohorts those whose updates are added in round 0."""
        picked, turn, sizes = by_budget(self.parts), self.parts.plan.sampler.scheduled(0), self.parts.population.sizes
        if turn is not None:
            picked = sorted(turn, key=lambda index: -int(sizes[index]))[: len(picked)]
        return sorted(picked, key=lambda index: -int(sizes[index]))

    def moved(self, messages: Sequence[Message], derive: Derive, *, round: int) -> np.ndarray:
        """How far the model moves in a round of these messages, times the expected weight: the noised sum."""
        algorithm = self.algorithm
        state = algorithm.init(torch.zeros_like(self.parts.params))
        after, _ = finished(algorithm.collect(state, round=round), messages, derive)
        return after.params.double().numpy() * self.plan.expected_weight

    def derive(self) -> Derive:
        """The server's own randomness in rounds from zeros."""
        return self.parts.releases.server(state_digest(self.algorithm.init(torch.zeros_like(self.parts.params))))

    def server(self) -> Iterator[Check]:
        claim, bug = claim_of(self.parts.algorithm.cost(self.parts.population[0])), self.planted
        rounds = evidence.rounds_for(1, self.layers)
        if self.parts.plan.traits.single_release:
            yield from bug._banded(cast(BandedPlan, bug.parts.plan), claim, rounds)
            return
        found = np.array([[bug.moved([], partial(bug.derive(), "server", r), round=r)] for r in range(rounds)])
        z = with_count(claim, bug.plan.mechanism.count_std)
        yield from evidence.checks(SERVER, found / (z * self.probes.clip), self.layers, multiplier=z)
        yield from bug._drawn(claim)

    def _banded(self, plan: BandedPlan, claim: Claim, rounds: int) -> Iterator[Check]:
        strategy, z = plan.mechanism.strategy, claim.noise_multiplier
        found: list[np.ndarray] = []
        for again in range(-(-rounds // strategy.rounds)):
            released = self._run(partial(self.derive(), "again", again), rounds=min(rounds, strategy.rounds))
            found.extend(strategy.dense()[: len(released), : len(released)] @ released)  # C C^-1 z
        noise = np.array(found)[:, None] / (z * self.probes.clip)
        yield from evidence.checks(SERVER, noise, self.layers, multiplier=z)
        bands = range(max(1, plan.mechanism.cycle - strategy.bands + 1) + plan.mechanism.cycle)
        turns = [[plan.mechanism.cohorts.scheduled(r + step) for step in range(strategy.bands)] for r in bands]
        most = max(max(np.bincount(np.concatenate(band).astype(int), minlength=1)) for band in turns)
        yield Check(SERVER, "turns in a band", 1.0, Exact(float(most)), "a client is in two rounds whose noise is one")

    def _run(self, derive: Derive, *, rounds: int) -> np.ndarray:
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
        yield Check(SERVER, "sampling rate", claim.rate, Rate(sum(counts), everybody * DRAWS), said)
        spread = Spread(tuple(counts), (everybody,) * DRAWS, (claim.rate,) * DRAWS)
        yield Check(SERVER, "spread of cohorts", 1.0, spread, "cohorts vary less than independent draws do")

    def clients(self) -> Iterator[Check]:
        server, clip = self.planted, self.probes.clip
        still: Derive = lambda *purpose: keyed(b"the noise of an audit's pairs")("noise")  # noqa: E731
        most, divided = 0.0, list[float]()
        for probe in self.probes.longer():
            (sent,) = self.sent(probe, self.parts.params)
            names = {message.sender for message in sent}
            others = [name for name in self.parts.population.names if name not in names][:OTHERS]
            zeros = [Message(name, {"update": torch.zeros_like(self.parts.params)}) for name in others]
            empty, silent = (server.moved(base, still, round=0) for base in ([], zeros))
            huge = {"update": torch.full_like(self.parts.params, 1e3)}  # of a client that did not clip
            for message in (*sent, *(Message(name, huge, {"unclipped": True}) for name in names)):
                alone = float(np.linalg.norm(server.moved([message], still, round=0) - empty))
                among = float(np.linalg.norm(server.moved([message, *zeros], still, round=0) - silent))
                most = max(most, alone, among)
                if alone > 0.1 * clip * min(1.0, server.algorithm.weights[message.sender]):
                    divided.append(alone / max(among, 1e-12))
        yield self.check("clip", clip, Exact(most), "a client changes more of the sum than the clip that is priced")
        if divided and len(self.parts.population) > OTHERS:
            off, said = max(abs(ratio - 1) for ratio in divided), "a sum is not divided by the expected weight"
            yield self.check("divisor off by", 0.0, Exact(off, slack=ROUNDING), said)


def with_count(claim: Claim, count: float | None) -> float:
    """The noise over sensitivity on the sum alone: more than is priced for both, where a count of clipped updates is released."""
    if count is None:
        return claim.noise_multiplier
    return (claim.noise_multiplier**-2 - (2 * count) ** -2) ** -0.5  # Theorem 1 of arXiv:1905.03871


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
        """Reports that are not sealed."""
        plan = cast(DistributedPlan, parts.plan)
        number = dict(zip(parts.population.names, plan.groups.tolist(), strict=True))
        return _with_seals(
            parts, lambda name, seal: Plain(lanes_of(plan, number[name], None), plan.noises[number[name]].fewest)
        )

    def clients(self) -> Iterator[Check]:
        events = [cast(IntegerSumDpEvent, self.algorithm.cost(self.parts.population[index])) for index in self.cohort]
        still, rounds = torch.zeros_like(self.parts.params), evidence.rounds_for(len(self.cohort), self.layers)
        silent = self.tensors("report", self.probes.noise, still, rounds=rounds)
        due = np.sqrt([event.share_variance for event in events])
        excess = 1 / min(event.share_variance for event in events)  # of a Skellam share; a discrete Gaussian has less
        yield from evidence.checks(self.where, silent / due[:, None], self.layers, multiplier=1.0, excess=excess)
        start, allowed = self.parts.params, np.sqrt([event.l2_squared for event in events])
        base = self.tensors("report", self.probes.silent, start)
        added = [self.tensors("report", probe, start) - base for probe in self.probes.longer()]
        most = max(float((np.linalg.norm(one[0], axis=-1) / allowed).max()) for one in added)
        unit, said = self.plan.grid.step * float(allowed[0]), "a client changes more of the sum than is priced"
        yield self.check("clip on the grid", 1.0, Exact(most), said, unit=unit)

    def server(self) -> Iterator[Check]:
        parts, algorithm, plan = self.parts, self.algorithm, self.plan
        group = next(iter(algorithm.groups.values()))
        members = [k for k, name in enumerate(parts.population.names) if algorithm.groups[name].name == group.name]
        cohort = members[: plan.noises[int(plan.groups[members[0]])].fewest]
        if not isinstance(group.seal, Sealed) or len(cohort) * group.seal.lanes.numbers > MOST_SEALED:
            return
        run = secrets.token_hex(RUN_BYTES)  # of one round and run no second sum is opened
        found: list[np.ndarray] = []
        for ready in (self.readable(parts), _with_seals(parts, lambda name, seal: replace(seal, run=run))):  # type: ignore[type-var]
            with one_by_one(ready, lambda changed: self.plant(self.probes.silent(changed))) as trainer:
                found.append(_summed(ready, ask(trainer, parts, parts.params, cohort=cohort, round=0)))
        off = float(np.abs(found[0] - found[1]).max())
        yield Check(SERVER, "opened sum off by", 0.0, Exact(off), "an opened sum is not the sum of the reports")


def _with_seals(parts: Parts, seal: Callable[[str, Seal], Seal]) -> Parts:
    """The parts with other seals, by client."""
    algorithm = cast(Encrypted, parts.algorithm)
    groups = {name: replace(group, seal=seal(name, group.seal)) for name, group in algorithm.groups.items()}
    return replace(parts, algorithm=replace(algorithm, groups=groups))


def _summed(parts: Parts, messages: Sequence[Message]) -> np.ndarray:
    """The opened sum of reports."""
    collected = cast(Encrypted, parts.algorithm).groups[messages[0].sender].seal.collect(round=0)
    for message in messages:
        collected.accept(message)
    collected.settle()
    return np.asarray(collected.open())


KINDS: dict[type, type[Subject]] = {LocalDP: Local, CentralDP: Central, Encrypted: Distributed}
