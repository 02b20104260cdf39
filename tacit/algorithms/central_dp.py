"""Central DP: DP-FedAvg, Algorithm 1 of McMahan et al. 2018 (arXiv:1710.06963) with the estimator of fixed denominator; the
central half of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561). Adaptive clip: Andrew et al. 2021 (arXiv:1905.03871).
Guarantee: client level, against everybody who sees the models. The server is trusted: it sees clipped updates and who sent
them. It clips again, since a client may not have; whose training fails or diverges sends a zero update, and who does not
answer, or sends what cannot be used, counts as one; the divisor is the expected cohort. So nothing depends on who was drawn,
who answered, or what one client sent. Where clients take turns in public (privacy/central/banded.py), nobody is in a sum out of
turn."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from dp_accounting import DpEvent

from tacit.algorithms import local_for_round
from tacit.check import printable
from tacit.errors import BadInput
from tacit.privacy.mechanism import CohortMechanism, ExactSum
from tacit.random import Derive, Stream
from tacit.training.batches import later, sent
from tacit.training.optimizer import ServerOptimizer
from tacit.training.sgd import Local, Trained, Workspace, attempt
from tacit.types import Bounded, Client, Message, Raw, State
from tacit.wire import digest_of, tensor_bytes

AT_ONCE = 64  # updates on a device that are clipped and added at once
LEAST_CLIP, MOST_CLIP = 1e-9, 1e9  # how far a clip adapts: beyond, the noise that goes with it leaves float32


@dataclass(frozen=True)
class QuantileClip:
    """The clip follows the quantile gamma of the norms: C <- C exp(-eta (b - gamma)), b the noised share within C. If too
    many updates were within C, it shrinks. Algorithm 1 of arXiv:1905.03871. Guarantee: it sees nothing of the updates but
    the noised share, so that it is post-processing and costs nothing more."""

    quantile: float = 0.5
    learning_rate: float = 0.2

    def next(self, mechanism: CohortMechanism, within: Sequence[bool], stream: Stream) -> float:
        """The clip of the next round; that of this round is the mechanism's."""
        b = mechanism.noised_share(stream, sum(within), len(within))
        moved = mechanism.clip * math.exp(-self.learning_rate * (b - self.quantile))
        return min(max(moved, LEAST_CLIP), MOST_CLIP)


@dataclass(frozen=True)
class CentralDP:
    """`mechanism` is the round: its cohort, its noise and its price; `weights` (by client, at most 1) are the server's own.
    `expected_weight` is the divisor, whoever answers; `adapt` moves the clip from round to round, or None. `groups` are who
    takes part in rounds 0, 1, .. of a public cycle; without any, chance decides. Assumes: the server is trusted, and without
    `groups` keeps the cohort secret. `cost` is charged to everybody, drawn or not; with `groups` to those whose turn it is."""

    tolerates_invalid: ClassVar[bool] = True  # a broken message is refused by name, and the round goes on
    depends_on_round: ClassVar[bool] = False

    mechanism: CohortMechanism
    weights: Mapping[str, float]
    expected_weight: float  # q W
    local: Local
    optimizer: ServerOptimizer
    adapt: QuantileClip | None = None
    groups: tuple[frozenset[str], ...] = ()

    def init(self, params: torch.Tensor) -> State:
        clip = torch.tensor(self.mechanism.clip, dtype=torch.float64)
        return State(params, {"clip": clip, **self.mechanism.init()}, self.optimizer.init(params))

    def broadcast(self, state: State, cohort: Sequence[Client], *, round: int) -> Message:
        return Message("server", {"params": state.params, "clip": state.memory["clip"]})

    def cost(self, client: Client) -> DpEvent:
        return self.mechanism.event(client.index)

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """What the client trained, or zeros where that failed: silence, or a stopped run, would tell everybody."""
        local = local_for_round(self.local, received, client)
        trained = attempt(local, work, received.tensors["params"], client, derive("train"))
        clipped = float(trained.update.vector.norm()) > float(received.tensors["clip"])
        return Trained(trained.update, trained.info | {"clipped": float(clipped)})

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """The update, clipped but without noise, and whether it was within the clip."""
        bounded = self.mechanism.at(float(received.tensors["clip"])).bound(trained.update.vector)
        unclipped = bounded.vector is trained.update.vector
        return Message(client.id, {"update": bounded.vector}, {"unclipped": unclipped})

    def released_rows(
        self,
        updates: torch.Tensor,
        infos: Sequence[dict[str, float]],
        clients: Sequence[Client],
        received: Message,
        *,
        scales: Sequence[float] | None = None,
    ) -> list[tuple[Message, dict[str, float]]]:
        """`train` and `release` of several clients at once, whose finite updates (client, parameter) are known. `scales` are
        what `scale_rows_` has multiplied them by, where it has."""
        if scales is None:
            over = (torch.linalg.vector_norm(updates, dim=1) > float(received.tensors["clip"])).tolist()
            own = [info | {"clipped": float(long)} for info, long in zip(infos, over, strict=True)]
            given = [Trained(Raw(update), info) for update, info in zip(updates, own, strict=True)]
            return [(self.release(one, client, received), one.info) for one, client in zip(given, clients, strict=True)]
        return [
            (
                Message(client.id, {"update": update}, {"unclipped": scale == 1.0}),
                info | {"clipped": float(scale != 1.0)},
            )
            for client, update, scale, info in zip(clients, updates, scales, infos, strict=True)
        ]

    def scale_rows_(self, updates: torch.Tensor, received: Message) -> torch.Tensor | None:
        """Bounds several updates (client, parameter) where they lie, without a look at the device; by how much each was scaled
        (0: not finite). None, and nothing is done, where the mechanism bounds one at a time."""
        mechanism = self.mechanism.at(float(received.tensors["clip"]))
        if not _in_rows(mechanism):
            return None
        scales: torch.Tensor = mechanism.bound_rows(updates)
        updates.mul_(scales[:, None])
        return scales

    def collect(self, state: State, *, round: int) -> "Summing":
        """An empty sum. Raises: BadInput where noise across rounds is at another round, and for a clip that no round has left."""
        # below what adapting leaves, updates and noise come among float32's smallest numbers, where noise is rounded to nothing
        known = state.memory["clip"]
        clip = float(known) if known.dtype == torch.float64 and not known.shape else math.nan
        if clip != self.mechanism.clip and not (self.adapt is not None and LEAST_CLIP <= clip <= MOST_CLIP):
            raise BadInput(
                "The clip that this run goes on with is not one that its rounds leave: put its newest checkpoint back, or start"
                " anew with --force, which keeps the old files."
            )
        mechanism = self.mechanism.at(clip)  # S_t: noise and clip of one round cannot differ
        total = ExactSum(state.params, clip=mechanism.clip, most=len(self.weights))
        if mechanism.single_release and (turn := mechanism.round_of(state.memory)) != round:
            raise BadInput(f"The noise is that of round {turn + 1}, and this is round {round + 1}.")
        known = self.groups[round % len(self.groups)] if self.groups else self.weights
        return Summing(self, state, mechanism, total, round, known)


@dataclass(frozen=True)
class Summing:
    """A round on the trusted server: the exact sum of clipped updates so far, who is in it, and who was refused and why."""

    algorithm: CentralDP
    state: State
    mechanism: CohortMechanism
    total: ExactSum
    round: int
    known: Collection[str]  # who may be in it
    within: dict[str, bool] = field(default_factory=dict)  # by sender: whether its update was shorter than the clip
    refused: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    waiting: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)  # on a device: added together
    # of those that were added: their names, and by what each was scaled
    added: list[tuple[list[str], Callable[[], list[float]]]] = field(default_factory=list, repr=False)

    def add(self, message: Message) -> None:
        """Clips again and adds; what cannot be used is named in `refused` and counts as zero. Raises nothing. Guarantee: one
        client moves the sum by at most its weight times the clip, with its first message, whatever it sends; out of its turn
        not at all."""
        weights = self.algorithm.weights
        try:
            if message.sender in weights and message.sender not in self.known:
                raise BadInput(f"it is not its turn in round {self.round + 1}")
            update = update_of(message, like=self.state.params, known=self.known, seen=self.seen)
            if update.is_cuda and _in_rows(self.mechanism):
                self.waiting[message.sender] = update
                self.within[message.sender] = bool(message.facts.get("unclipped"))
                if len(self.waiting) == AT_ONCE:
                    self._add_waiting()
                self.seen.add(message.sender)
                return
            update = self.mechanism.bound(update)
        except BadInput as error:
            self.refused[printable(message.sender)] = printable(str(error))
        else:
            self.total.add(update.vector, weight=weights[message.sender])
            self.within[message.sender] = bool(message.facts.get("unclipped"))
        self.seen.add(message.sender)

    def _add_waiting(self) -> None:
        # without a look at the device; the same rule for each as for one alone
        if not self.waiting:
            return
        rows, mechanism = torch.stack(list(self.waiting.values())), self.mechanism
        scales = mechanism.bound_rows(rows)
        own = torch.tensor([self.algorithm.weights[name] for name in self.waiting], dtype=rows.dtype)
        self.total.add_rows(rows, sent(own, rows.device) * scales)
        self.added.append((list(self.waiting), later(scales)))
        self.waiting.clear()

    def finish(self, derive: Derive) -> tuple[State, dict[str, Any]]:
        """The model moved by the noised sum. Guarantee: that of the mechanism, whoever answered."""
        self._add_waiting()
        state, mechanism, total, algorithm = self.state, self.mechanism, self.total.value(), self.algorithm
        stream = stream_of(total, derive)
        rest = {name: tensor for name, tensor in state.memory.items() if name != "clip"}
        rest, noised = mechanism.noise(rest, stream, Bounded(total, mechanism.sensitivity))
        mean = noised.vector.to(state.params.dtype) / algorithm.expected_weight  # rounded once, after the noise
        params, memory = algorithm.optimizer.step(state.params, state.optimizer, mean)
        for names, scales in self.added:
            for name, scale in zip(names, scales(), strict=True):
                if scale == 0:
                    self.refused[printable(name)] = "the update is not finite, or too long to be scaled"
                    del self.within[name]
        within = list(self.within.values())
        count = derive("count", sum(within), len(within))
        clip = algorithm.adapt.next(mechanism, within, count) if algorithm.adapt else mechanism.clip
        std, norm = noised.noise_std / algorithm.expected_weight, mean.norm()
        info = {"clip": mechanism.clip, "noise_std": std, "refused": self.refused, "noised_norm": as_read(norm)}
        return State(params, {**rest, "clip": torch.tensor(clip, dtype=torch.float64)}, memory), info


def _in_rows(mechanism: CohortMechanism) -> bool:
    # whether it bounds many updates at once: its own method, not what a wrapper would pass on to another's
    return hasattr(type(mechanism), "bound_rows")


def stream_of(total: torch.Tensor, derive: Derive) -> Stream:
    """The stream of a sum's noise, keyed by the sum itself: another sum, of other answers or other rows, never meets the same
    noise. A sum on a device is of a start that has a nonce of its own in every key, and in which this round happens once."""
    return derive("noise") if total.is_cuda else derive("noise", digest_of(tensor_bytes(total)))


def as_read(norm: torch.Tensor) -> Any:
    # a device is looked at when a record is made of it
    return norm if norm.is_cuda else float(norm)


def update_of(message: Message, *, like: torch.Tensor, known: Collection[str], seen: Collection[str]) -> torch.Tensor:
    """The update of a known client's first message, of the type and shape of `like`; whether it is finite, the clip checks.
    Raises: BadInput with the reason."""
    update = message.tensors.get("update")
    if message.sender not in known:
        raise BadInput("it is no client of this run")
    if message.sender in seen:
        raise BadInput("it answered twice: its first answer counts")
    if update is None:
        raise BadInput(f"it sent no update: {message.facts.get('failed', 'there was none in its message')}")
    if (update.dtype, update.shape) != (like.dtype, like.shape):
        expected = f"{like.dtype} of shape {tuple(like.shape)}"
        raise BadInput(f"it sent {update.dtype} of shape {tuple(update.shape)} instead of {expected}")
    return update
