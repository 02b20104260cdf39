"""What an audit measures of each kind of privacy: the noise, what one unit can change, how often it is drawn, and the divisor.
What clients release is read off the trainer's own messages. Under local DP the server's rule is post-processing, and is the
mean; under central DP the server's sum is noised; under distributed DP every client adds a share of the noise before it seals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.local_dp import LocalDP
from tacit.engine.assemble import Parts
from tacit.engine.trainers import OverTensors, Trainer
from tacit.lab.audit import evidence
from tacit.lab.audit.estimate import Charged, claim_of
from tacit.lab.audit.evidence import Check, Layer, exact
from tacit.lab.audit.probes import Prepare, Probe, Probes
from tacit.lab.audit.trainers import MadeBy, one_by_one
from tacit.privacy.central.kind import BandedPlan, CentralPlan
from tacit.random import Derive, keyed
from tacit.training.optimizer import Sgd
from tacit.training.sgd import DpSgd
from tacit.types import Message
from tacit.wire import digest_of, pack, state_digest, unpack

SERVER = "server"
ROUNDS = 6  # of exact probes: each draws every client's records anew
WHOLE = 0.05  # how far from a whole number a count of records may be
DRAWS = 400  # cohorts; none is trained
OTHERS = 3  # clients that send zeros, for the divisor
ROUNDING = 0.01


@dataclass(frozen=True)
class Subject:
    """One experiment with the bug that is planted into whatever parts it is made of, if any; and one of its trainers (`where`).
    `server` yields the server's checks, `clients` those of the trainer; `picked` are the clients that it trains."""

    parts: Parts = field(repr=False)
    bug: Prepare = field(repr=False)
    probes: Probes = field(repr=False)
    where: str = SERVER
    made_by: MadeBy = field(default=one_by_one, repr=False)

    def server(self) -> Iterator[Check]:
        yield from ()

    def clients(self) -> Iterator[Check]:
        raise NotImplementedError

    def picked(self) -> list[int]:
        return by_budget(self.parts)

    @cached_property
    def cohort(self) -> tuple[int, ...]:
        """The clients that this trainer trains; of sites, which have a folder and pay a ledger, the first alone."""
        return tuple(self.picked()[:1] if self.where == "site" else self.picked())

    @property
    def cohorts(self) -> list[tuple[int, ...]]:
        """Who is asked at once."""
        return [self.cohort]

    @cached_property
    def layers(self) -> list[Layer]:
        return evidence.layers_of(self.parts.model)

    def readable(self, parts: Parts) -> Parts:
        return parts

    def sent(self, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> Iterator[list[Message]]:
        """What the clients send under a probe, round after round; beyond the planned rounds the broadcast is another one."""
        planned, ask = self.parts.experiment.train.rounds, partial(replies, parts=self.parts, start=start)
        with self.made_by(self.parts, lambda parts: self.bug(self.readable(probe(parts)))) as trainer:
            for r in range(rounds):
                of_round = partial(ask, trainer, round=r % planned, again=r // planned)
                yield [message for cohort in self.cohorts for message in of_round(cohort=cohort)]

    def tensors(self, name: str, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> np.ndarray:
        """One tensor of what the clients send (rounds, clients, coordinates)."""
        sent = self.sent(probe, start, rounds=rounds)
        return np.array([[message.tensors[name].double().numpy() for message in one] for one in sent])

    def check(self, quantity: str, claimed: float, measured: evidence.Evidence, fault: str, **more: Any) -> Check:
        return Check(self.where, quantity, claimed, measured, fault, **more)


def replies(
    trainer: Trainer, parts: Parts, start: torch.Tensor, *, cohort: Sequence[int], round: int, again: int = 0
) -> list[Message]:
    """What the clients release in one round from the parameters `start`; another `again` is another broadcast."""
    clients = [parts.population[index] for index in cohort]
    message = parts.algorithm.broadcast(parts.algorithm.init(start), clients, round=round)
    if again:
        message = replace(message, facts=message.facts | {"probe": again})
    raw = pack(message)
    if isinstance(trainer, OverTensors):  # several clients' sums may be one, which crosses no wire
        return [sent for sent, _ in trainer.answers(unpack(raw), digest_of("question", raw), round, cohort)]
    return [unpack(answer) for answer, _ in trainer(raw, round, cohort)]


def by_budget(parts: Parts) -> list[int]:
    """Clients from the tightest budget to the loosest, and the largest of them: as many as it takes to measure noise."""
    p, most = parts.population, evidence.clients_for(evidence.layers_of(parts.model))
    order = np.lexsort((p.sizes, p.epsilons))
    order = order[~np.isin(order, [*parts.plan.opted_out])]  # of whom nothing is claimed
    picked = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    return np.unique([*picked.tolist(), int(order[p.sizes[order].argmax()])]).tolist()


class Local(Subject):
    """Local DP, of a record in every step or of the whole client."""

    @property
    def algorithm(self) -> LocalDP:
        return cast(LocalDP, self.parts.algorithm)

    @cached_property
    def by_record(self) -> bool:
        return isinstance(self.algorithm.local, DpSgd)

    @cached_property
    def claims(self) -> list[Charged]:
        costs = (self.algorithm.cost(self.parts.population[index]) for index in self.cohort)
        return [claim_of(event) for event in costs if event is not None]

    @cached_property
    def sizes(self) -> np.ndarray:
        return self.parts.population.sizes[list(self.cohort)]

    def released(self, probes: Probes, probe: Probe, *, rounds: int) -> np.ndarray:
        """What the clients release (rounds, clients, coordinates), over what a sum is multiplied by: eta / (q n), or 1 for a whole
        update. All of it is public."""
        updates = self.tensors("update", probe, probes.start, rounds=rounds)
        if not self.by_record:
            return updates
        rates = np.array([claim.rate for claim in self.claims])
        return updates / (self.parts.experiment.train.learning_rate / (rates * self.sizes))[:, None]

    def clients(self) -> Iterator[Check]:
        yield from self._noise()
        other = self.probes.at(self.parts, self.parts.params)
        if not self.by_record:
            silent = self.released(other, other.silent, rounds=1)
            yield from self._bounds([self._added(other, probe, silent) for probe in other.longer()])
            return
        silent = self.released(self.probes, self.probes.silent, rounds=ROUNDS)
        drawn = self._drawn(self.probes, silent)
        if (
            self.probes.half is not None
        ):  # a count of drawn records is whole, unless a sum was divided by something else
            some = (self.released(self.probes, self.probes.half, rounds=ROUNDS) - silent) @ self.probes.direction
            off = exact(float(np.abs(some - np.rint(some)).max()), slack=WHOLE)
            yield self.check("divisor off by", 0.0, off, "a sum is not divided by the expected batch")
        yield from self._rates(drawn)
        first = self.released(other, other.silent, rounds=1)
        added = [self._added(self.probes, probe, silent, drawn) for probe in self.probes.giants()]
        yield from self._bounds([*added, self._added(other, other.giants()[0], first, self._drawn(other, first))])

    def _drawn(self, probes: Probes, silent: np.ndarray) -> np.ndarray:
        # how many records were in each step (rounds, clients)
        return (self.released(probes, probes.faint, rounds=len(silent)) - silent) @ probes.direction

    def _noise(self) -> Iterator[Check]:
        rounds, claims = evidence.rounds_for(len(self.cohort), self.layers), self.claims
        # from zeros, where whatever decays or is pulled stays
        still = replace(self.probes, start=torch.zeros_like(self.parts.params))
        noise, everybody = self.released(still, still.noise, rounds=rounds), self.parts.plan.noise_multipliers
        grown = [[c.multiplier * self._growth(c, r) for c in claims] for r in range(rounds)]
        due = self.probes.clip * np.array(grown)
        unit = claims[0].multiplier if everybody is None or np.ptp(everybody) == 0 else 1.0
        yield from evidence.checks(self.where, noise / due[..., None], self.layers, multiplier=unit)

    def _growth(self, claim: Charged, r: int) -> float:
        # what the noise of a round's steps comes to in the update, in units of one step's
        local, train = self.algorithm.local, self.parts.experiment.train
        if not isinstance(local, DpSgd):
            return 1.0
        descent = local.descent.for_round(r % train.rounds)
        return float(descent.growth(np.array(claim.steps), learning_rate=train.learning_rate))

    def _rates(self, drawn: np.ndarray) -> Iterator[Check]:
        claimed, sizes = np.array([claim.rate for claim in self.claims]), self.sizes
        counts = np.rint(drawn).astype(int)
        for rate in np.unique(claimed):
            mine, of = counts[:, claimed == rate], sizes[claimed == rate]
            chance = evidence.rate(int(mine.clip(0, of).sum()), int(of.sum()) * len(mine))
            measured = exact(float((mine / of).max())) if rate == 1 else chance
            yield self.check("sampling rate", float(rate), measured, "records are drawn more often than is priced")
        some = claimed < 1
        if some.any():
            columns = np.broadcast_arrays(counts[:, some], sizes[some], claimed[some])
            spread = evidence.spread(*(tuple(column.ravel().tolist()) for column in columns))
            yield self.check("spread of batches", 1.0, spread, "batches vary less than independent draws do")

    def _added(self, probes: Probes, probe: Probe, silent: np.ndarray, drawn: np.ndarray | None = None) -> np.ndarray:
        # what one record (or, where none are drawn, the client) adds to a sum (clients, coordinates)
        (updates,) = self.released(probes, probe, rounds=1)
        counts = np.ones(len(updates)) if drawn is None else np.rint(drawn[0])
        return (updates - silent[0])[counts > 0] / counts[counts > 0, None]

    def _bounds(self, added: list[np.ndarray]) -> Iterator[Check]:
        vectors, fault = (
            np.concatenate(added),
            f"a {'record' if self.by_record else 'client'} changes more than its clip",
        )
        parts = [(layer.name, layer.place) for layer in self.layers] if len(self.layers) > 1 else []
        for name, place in (("", slice(None)), *parts):
            most = float(np.linalg.norm(vectors[:, place], axis=-1).max(initial=0.0))
            yield self.check("clip", self.probes.clip, exact(most), fault, part=name)


class Central(Subject):
    """Central DP: the server's noise and whom it draws; what a client adds to the sum, however many others there are."""

    @property
    def algorithm(self) -> CentralDP:
        return replace(cast(CentralDP, self.parts.algorithm), optimizer=Sgd(1.0))

    @property
    def plan(self) -> CentralPlan:
        return cast(CentralPlan, self.parts.plan)

    @cached_property
    def buggy(self) -> "Central":
        """The same with the bug in its own parts: the server's."""
        return replace(self, parts=self.bug(self.parts))

    @cached_property
    def zeros(self) -> torch.Tensor:
        return torch.zeros_like(self.parts.params)

    def picked(self) -> list[int]:
        """Clients of all sizes, the largest first; of public cohorts those whose updates are added in round 0."""
        picked, slot, sizes = by_budget(self.parts), self.parts.plan.sampler.scheduled(0), self.parts.population.sizes
        if slot is not None:
            picked = sorted(slot, key=lambda index: -int(sizes[index]))[: len(picked)]
        return sorted(picked, key=lambda index: -int(sizes[index]))

    def moved(self, messages: Sequence[Message], derive: Derive, *, round: int) -> np.ndarray:
        """How far the model moves in a round of these messages, times the expected weight: the noised sum."""
        algorithm = self.algorithm
        after, _ = finished(algorithm.collect(algorithm.init(self.zeros), round=round), messages, derive)
        return after.params.double().numpy() * self.plan.expected_weight

    def derive(self) -> Derive:
        """The server's own randomness in rounds from zeros."""
        return self.parts.releases.server(state_digest(self.algorithm.init(self.zeros)))

    def server(self) -> Iterator[Check]:
        claim, bug = claim_of(self.algorithm.cost(self.parts.population[0])), self.buggy
        rounds = evidence.rounds_for(1, self.layers)
        if self.parts.plan.traits.single_release:
            yield from bug._banded(cast(BandedPlan, bug.parts.plan), claim, rounds)
            return
        noise = np.array([[bug.moved([], partial(bug.derive(), "server", r), round=r)] for r in range(rounds)])
        z = with_count(claim, bug.plan.mechanism.count_std)
        yield from evidence.checks(SERVER, noise / (z * self.probes.clip), self.layers, multiplier=z)
        if self.plan.sampler.rate < 1:
            yield from bug._cohorts(claim)

    def _banded(self, plan: BandedPlan, claim: Charged, rounds: int) -> Iterator[Check]:
        mechanism, strategy, z = plan.mechanism, plan.mechanism.strategy, claim.multiplier
        whitened: list[np.ndarray] = []
        for again in range(-(-rounds // strategy.rounds)):
            released = self._run(partial(self.derive(), "again", again), rounds=min(rounds, strategy.rounds))
            whitened.extend(strategy.dense()[: len(released), : len(released)] @ released)  # C C^-1 z
        noise = np.array(whitened)[:, None] / (z * self.probes.clip)
        yield from evidence.checks(SERVER, noise, self.layers, multiplier=z)
        bands = range(max(1, mechanism.cycle - strategy.bands + 1) + mechanism.cycle)
        slots = [[mechanism.cohorts.scheduled(r + step) for step in range(strategy.bands)] for r in bands]
        most = max(max(np.bincount(np.concatenate(band).astype(int), minlength=1)) for band in slots)
        yield Check(SERVER, "turns in a band", 1.0, exact(float(most)), "a client is in two rounds whose noise is one")

    def _run(self, derive: Derive, *, rounds: int) -> np.ndarray:
        # the noise of a run's first rounds in which nobody reports, as it goes on from each to the next
        algorithm, noise = self.algorithm, list[np.ndarray]()
        state = algorithm.init(self.zeros)
        for r in range(rounds):
            after, _ = finished(algorithm.collect(state, round=r), [], partial(derive, r))
            noise.append((after.params - state.params).double().numpy() * self.plan.expected_weight)
            state = replace(after, params=self.zeros)
        return np.array(noise)

    def _cohorts(self, claim: Charged) -> Iterator[Check]:
        everybody = len(self.parts.population)
        drawn = [self.plan.sampler.draw(self.derive()(r, "cohort"), r) for r in range(DRAWS)]
        if not self.plan.sampler.charges_alike:
            yield from self._each(np.bincount(np.concatenate(drawn), minlength=everybody))
            return
        counts = [len(cohort) for cohort in drawn]
        hits = evidence.rate(sum(counts), everybody * DRAWS)
        yield Check(SERVER, "sampling rate", claim.rate, hits, "clients are drawn more often than is priced")
        spread = evidence.spread(tuple(counts), (everybody,) * DRAWS, (claim.rate,) * DRAWS)
        yield Check(SERVER, "spread of cohorts", 1.0, spread, "cohorts vary less than independent draws do")

    def _each(self, times: np.ndarray) -> Iterator[Check]:
        # clients at rates of their own: how often each of some was drawn
        for index in self.picked():
            client = self.parts.population[index]
            rate, hits = claim_of(self.algorithm.cost(client)).rate, evidence.rate(int(times[index]), DRAWS)
            yield Check(client.id, "sampling rate", rate, hits, "a client is drawn more often than is priced")

    def clients(self) -> Iterator[Check]:
        server, clip = self.buggy, self.probes.clip
        still: Derive = lambda *purpose: keyed(b"the noise of an audit's pairs")("noise")  # noqa: E731
        most, divided = 0.0, list[float]()
        for probe in self.probes.longer():
            (sent,) = self.sent(probe, self.parts.params)
            names = {message.sender for message in sent}
            others = [name for name in self.parts.population.names if name not in names][:OTHERS]
            zeros = [Message(name, {"update": self.zeros}) for name in others]
            empty, silent = (server.moved(base, still, round=0) for base in ([], zeros))
            huge = {"update": torch.full_like(self.parts.params, 1e3)}  # of a client that did not clip
            for message in (*sent, *(Message(name, huge, {"unclipped": True}) for name in names)):
                alone = float(np.linalg.norm(server.moved([message], still, round=0) - empty))
                among = float(np.linalg.norm(server.moved([message, *zeros], still, round=0) - silent))
                most = max(most, alone, among)
                if alone > 0.1 * clip * min(1.0, server.algorithm.weights[message.sender]):
                    divided.append(alone / max(among, 1e-12))
        yield self.check("clip", clip, exact(most), "a client changes more of the sum than the clip that is priced")
        if divided and len(self.parts.population) > OTHERS:
            off = exact(max(abs(ratio - 1) for ratio in divided), slack=ROUNDING)
            yield self.check("divisor off by", 0.0, off, "a sum is not divided by the expected weight")


def with_count(claim: Charged, count: float | None) -> float:
    """The noise over sensitivity on the sum alone: more than is priced for both, where a count of clipped updates is released."""
    if count is None:
        return claim.multiplier
    return (claim.multiplier**-2 - (2 * count) ** -2) ** -0.5  # Theorem 1 of arXiv:1905.03871
