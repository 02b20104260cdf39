"""Central DP as run: the server's noise, what a client can change, who is drawn, and the divisor.

Where clients take turns in public, the noise of consecutive rounds is multiplied by the factorisation C, dense, which must give
independent noise as large as is priced, and nobody may have two turns within one band.

Clients are trained by each trainer, and what they send goes through the real server's part. Its optimiser is post-processing, and
is a step of 1 here. The noise of a count, for a clip that adapts, is not measured.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import torch

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.audit import noise
from tacit.audit.claims import Claim, read
from tacit.audit.evidence import Exact, Rate, Spread
from tacit.audit.local import clients_of
from tacit.audit.probes import Prepare, Probes
from tacit.audit.subject import Subject
from tacit.audit.trainers import Making
from tacit.audit.verdict import Check
from tacit.build.parts import Parts
from tacit.digest import state_mark
from tacit.privacy.banded.plan import BandedPlan
from tacit.privacy.central.plan import CentralPlan
from tacit.random import Derive, keyed
from tacit.server_optimizer import Sgd
from tacit.types import Message

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
        layers = noise.layers_of(self.parts.model)
        rounds = noise.rounds_for(1, layers)
        if self.parts.plan.once:
            yield from self._banded(cast(BandedPlan, self.parts.plan), claim, rounds, clip=clip)
            return
        found = np.array([[self.moved([], partial(self.derive(), "server", r), round=r)] for r in range(rounds)])
        z = with_count(claim, self.plan.mechanism.count_std)
        sensitivity = clip * (2 if claim.fixed else 1)
        yield from noise.checks(SERVER, found / (z * sensitivity), layers, multiplier=z)
        yield from self._drawn(claim)

    def _banded(self, plan: BandedPlan, claim: Claim, rounds: int, *, clip: float) -> Iterator[Check]:
        strategy, z = plan.mechanism.strategy, claim.noise_multiplier
        found: list[np.ndarray] = []
        for again in range(-(-rounds // strategy.rounds)):
            released = self.run_of(partial(self.derive(), "again", again), rounds=min(rounds, strategy.rounds))
            found.extend(strategy.dense()[: len(released), : len(released)] @ released)  # C C^-1 z
        layers = noise.layers_of(self.parts.model)
        yield from noise.checks(SERVER, np.array(found)[:, None] / (z * clip), layers, multiplier=z)
        bands = range(max(1, plan.mechanism.cycle - strategy.bands + 1) + plan.mechanism.cycle)
        turns = [[plan.scheduled(r + step) for step in range(strategy.bands)] for r in bands]
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
        draws = [self.plan.drawn(self.derive()(r, "cohort")) for r in range(DRAWS)]
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


def server(parts: Parts, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The server's noise, and whom it draws."""
    return Server(plant(parts)).checks(read(parts.algorithm.cost(parts.population[0])), clip=probes.clip)


def clients(where: str, parts: Parts, making: Making, plant: Prepare, probes: Probes) -> Iterator[Check]:
    """The checks of one trainer."""
    return CentralSubject(where, parts, making, plant, probes, heaviest(parts, where)).checks()


def heaviest(parts: Parts, where: str) -> tuple[int, ...]:
    """Clients of all sizes, the largest first."""
    picked = clients_of(parts, "")
    turn = parts.plan.scheduled(0)
    if turn is not None:  # what they send is added in round 0
        picked = sorted(turn, key=lambda index: -int(parts.population.sizes[index]))[: len(picked)]
    ordered = sorted(picked, key=lambda index: -int(parts.population.sizes[index]))
    return tuple(ordered[:1] if where == "site" else ordered)
