"""Noise once: DP-SGD across clients, one step a round, every record clipped at its client and one noise on the sum of all of
them. Sources: sums of records under a trusted server as in Truex et al. 2019 (arXiv:1812.03224) and Heikkilä et al. 2020
(arXiv:2007.05553); each client's own epsilon by its own sampling rate is Tacit's (docs/derivations.md). Guarantee: record
level, add or remove one record of one client, against everybody who sees the models. The server is trusted: it sees sums of
clipped gradients and who sent them. Batches stay secret at their clients. Who does not answer, or sends what cannot be used, is
left out of sum and divisor, which are about clients and known to all."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from dp_accounting import DpEvent

from tacit.algorithms.central_dp import as_read, stream_of, update_of
from tacit.algorithms.encrypted import Encrypted
from tacit.check import printable
from tacit.crypto.grid import Quantised
from tacit.errors import BadInput
from tacit.privacy.mechanism import STEP_BITS, ExactSum, NoiseState, ShareMechanism, TrainingMechanism, bound
from tacit.random import Derive, Stream
from tacit.training.batches import Shifts
from tacit.training.optimizer import Schedule, ServerOptimizer
from tacit.training.sgd import Trained, Workspace, clipped_batch
from tacit.types import Bounded, Client, Message, Private, State

SPARE = 10.0  # standard deviations of a batch's size beyond which a sum is scaled down: no honest one ever is


def longest(records: float) -> float:
    """A bound, in clips, on the sum of an honest batch of about so many records; exceeded with a probability below 3e-20."""
    return records + SPARE * math.sqrt(records) + SPARE


@dataclass(frozen=True)
class SumNoise:
    noise_multiplier: float
    clip: float
    most: int  # clients in a sum
    records: float  # the expected records of the largest batch
    size: int  # coordinates

    @property
    def length(self) -> float:
        return self.clip * longest(self.records)  # no honest client's sum is longer

    @property
    def sensitivity(self) -> float:
        """The clip; what rounding a sum to float32 can add on either side; and for each coordinate the step that it is cut to
        (`ExactSum`; docs/derivations.md)."""
        step = 2.0 ** (math.frexp(self.length)[1] - STEP_BITS)
        return self.clip + 2.0**-23 * self.length + math.sqrt(self.size) * step

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.sensitivity

    def sum(self, like: torch.Tensor) -> ExactSum:
        return ExactSum(like, clip=self.length, most=self.most)

    def bound(self, update: torch.Tensor) -> torch.Tensor:
        """A client's sum, scaled down where no honest batch is so long: what a liar sends rounds nobody else's away."""
        return bound(update, clip=self.length).vector

    def init(self) -> NoiseState:
        """No round knows of another one."""
        return {}

    def noise(self, state: NoiseState, stream: Stream, total: Bounded) -> tuple[NoiseState, Private]:
        """Adds N(0, (z s)^2 I). Raises: BadInput for a sum of another sensitivity."""
        if total.sensitivity != self.sensitivity:
            raise BadInput(
                f"This noise is made for sensitivity {self.sensitivity}, got a vector of {total.sensitivity}."
            )
        noise = self.noise_std * stream.normal_like(total.vector).double()
        return state, Private(total.vector + noise, self.noise_std)


class Summing:
    """A client's step: `summed` is where its batch is drawn, and all that its records come to."""

    mechanism: Callable[[Client], Any]
    views: Shifts | None

    def summed(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """The sum of the clipped gradients of one Poisson batch at the model that was received, and what it tells its client."""
        work.theta.copy_(received.tensors["params"])
        mechanism, stream = self.mechanism(client), derive("train")
        _, drawn = mechanism.sample(mechanism.init(), stream, client.size)
        total, info = clipped_batch(work, client, drawn, stream, self.views)
        return Trained(total, {"loss": info.loss_sum / max(1, info.examples), "clipped": info.fraction_clipped})


@dataclass(frozen=True)
class InTotal(Message):
    """A client's answer where a trainer of this process adds up for the server: the first of several carries the sum over the
    batches of all of them. It never crosses a wire, and what reads it as an ordinary answer finds no update in it."""

    total: Bounded | None = field(default=None, repr=False)

    def to(self, device: torch.device) -> "InTotal":
        if self.total is None or self.total.vector.device == device:
            return self
        return replace(self, total=replace(self.total, vector=self.total.vector.to(device)))


@dataclass(frozen=True)
class RecordSums(Summing):
    """`mechanism(client)` draws the client's batch and names its price, a sampled Gaussian at its own rate; `noise` is on the
    sum, the same for all. `records` are what each client's batch is expected to hold (q n), by name: the divisor of a round is
    theirs who were asked."""

    tolerates_invalid: ClassVar[bool] = True  # a broken message is refused by name, and the round goes on
    depends_on_round: ClassVar[bool] = False

    mechanism: Callable[[Client], TrainingMechanism]
    noise: SumNoise
    records: Mapping[str, float] = field(repr=False)
    learning_rate: float
    schedule: Schedule
    optimizer: ServerOptimizer
    views: Shifts | None = None

    def init(self, params: torch.Tensor) -> State:
        return State(params, {}, self.optimizer.init(params))

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        return Message("server", {"params": state.params})

    def cost(self, client: Client) -> DpEvent:
        return self.mechanism(client).event()

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        return self.summed(work, received, client, derive)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """The sum, which only a trusted server may see. Raises: TypeError for what is no sum of gradients clipped to C."""
        if not isinstance(trained.update, Bounded) or trained.update.sensitivity != self.noise.clip:
            raise TypeError("a trusted server is sent sums of clipped gradients, and nothing else")
        return Message(client.id, {"update": trained.update.vector.to(received.tensors["params"])})

    @property
    def longest_batch(self) -> float:
        """Records of a batch whose sum the server surely adds as it is."""
        return longest(self.noise.records)

    def released_total(self, total: Bounded, clients: Sequence[Client], received: Message) -> list[Message]:
        """`release` of several clients whose batches are added up already. Raises: TypeError as there."""
        if total.sensitivity != self.noise.clip:
            raise TypeError("a trusted server is sent sums of gradients clipped as was priced, and nothing else")
        as_long = {"summed": received.tensors["params"]}  # as many bytes as an update, for who counts them
        return [InTotal(client.id, as_long, total=None if k else total) for k, client in enumerate(clients)]

    def collect(self, state: State, *, round: int) -> "Adding":
        return Adding(self, state, round, self.noise.sum(state.params))


@dataclass(frozen=True)
class Adding:
    """A round on the trusted server: the exact sum so far, and who was refused and why."""

    algorithm: RecordSums
    state: State
    round: int
    total: ExactSum
    within: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    totals: list[torch.Tensor] = field(default_factory=list, repr=False)  # that were added up before: of honest batches

    def add(self, message: Message) -> None:
        """Bounds and adds; what cannot be used is named in `refused`. Raises nothing."""
        algorithm = self.algorithm
        if isinstance(message, InTotal):
            if message.total is not None:
                self.totals.append(message.total.vector.double())
            self.within.append(message.sender)
            return
        try:
            update = update_of(
                message, like=self.state.params, known=algorithm.records, seen={*self.within, *self.refused}
            )
            self.total.add(algorithm.noise.bound(update), weight=1.0)
        except BadInput as error:
            self.refused[printable(message.sender)] = printable(str(error))
        else:
            self.within.append(message.sender)

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The optimiser's step along the noised sum over the records that those in it were expected to draw. Guarantee: that of
        the mechanisms, whoever answered; who did is public here, and the divisor follows from it alone."""
        algorithm, noise, total = self.algorithm, self.algorithm.noise, sum(self.totals, start=self.total.value())
        _, noised = noise.noise(noise.init(), stream_of(total, derive), Bounded(total, noise.sensitivity))
        batch = sum(algorithm.records[name] for name in self.within) or sum(algorithm.records.values())
        rate = algorithm.learning_rate * algorithm.schedule(self.round)
        mean = (noised.vector * (-rate / batch)).to(self.state.params.dtype)  # rounded once, after the noise
        params, memory = algorithm.optimizer.step(self.state.params, self.state.optimizer, mean)
        info = {"noise_std": rate * noised.noise_std / batch, "refused": self.refused, "batch": batch}
        return State(params, {}, memory), info | {"noised_norm": as_read(mean.norm())}


@dataclass(frozen=True)
class SecretRecordSums(Summing, Encrypted):
    """The same where nobody is trusted: each client's sum is rounded to the grid, carries its share of the noise and is hidden.
    `mechanism(client)` draws the batch, adds the share and names the price of the opened sum at the client's own rate. A
    group's `weights` are the records that a client's batch is expected to hold: what the opened sum is divided by, of those in
    it. Guarantee: record level, add or remove one record of one client, for whoever sees opened sums of enough reports."""

    mechanism: Callable[[Client], Any]
    views: Shifts | None = None

    def share(self, client: Client) -> ShareMechanism:
        return self.mechanism(client)

    def quantised(
        self, work: Workspace, received: Message, client: Client, derive: Derive
    ) -> tuple[Any, dict[str, Any]]:
        trained: Any = self.summed(work, received, client, derive)
        return self.rounded(trained.update, derive), trained.info

    def rounded(self, total: Bounded, derive: Derive) -> Quantised:
        """The integers of a client's sum. Raises: TypeError for what is no sum of gradients clipped to C."""
        if total.sensitivity != self.grid.clip:
            raise TypeError("only sums of gradients that were clipped as was priced are rounded")
        return self.grid.quantise(total.vector.cpu().numpy(), stream=derive("rounding"))
