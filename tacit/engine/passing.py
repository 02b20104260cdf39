"""Between the trainer and the server's part: how clients are asked, what of their answers is read, and who is missing."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from tacit.algorithms import Algorithm
from tacit.engine.meter import Meter
from tacit.engine.trainers.processes import Trainer
from tacit.engine.watch import Traffic
from tacit.engine.wire import pack, receive, receive_any, size_of
from tacit.errors import TacitError
from tacit.types import Client, Message, State

Asked = tuple[Message, Iterator[tuple[Any, dict[str, float]]]]


@runtime_checkable
class Carrying(Protocol):
    """A trainer that passes tensors on, which stay on their device; its clients are in this very process."""

    def carry(
        self, received: Message, round: int, cohort: Sequence[int], /
    ) -> Iterator[tuple[Message, dict[str, float]]]:
        """What the clients release, in their order. Guarantee: every number in it is finite."""
        ...


@runtime_checkable
class Beginning(Protocol):
    """A trainer that can set a device to work while somebody else pays."""

    def begin(
        self, received: Message, round: int, cohort: Sequence[int], /
    ) -> Iterator[tuple[Message, dict[str, float]]] | None:
        """As `carry`, with the device at work already; None where there is nothing to gain.

        Guarantee: nothing of what is trained is read, by whomever, before the first answer is asked for.
        """
        ...


def begun(
    trainer: Trainer, algorithm: Algorithm, state: State, round: int, cohort: Sequence[Client] | None
) -> Asked | None:
    """Sets a device to work for clients that have not paid yet. Their answers are taken when all have, or never.

    None where no device can, and where anything goes wrong: it goes wrong again when they have paid, and is told then.
    """
    if cohort is None or not isinstance(trainer, Beginning):
        return None
    try:
        message = algorithm.broadcast(state, cohort, round=round)
        replies = trainer.begin(message, round, [client.index for client in cohort])
    except TacitError:
        return None
    return None if replies is None else (message, replies)


def asked(trainer: Trainer, algorithm: Algorithm, state: State, round: int, cohort: Sequence[Client]) -> Asked:
    """What is broadcast to clients that have paid, and their answers: messages where the trainer carries them, else bytes."""
    message, indices = algorithm.broadcast(state, cohort, round=round), [client.index for client in cohort]
    if isinstance(trainer, Carrying):
        return message, trainer.carry(message, round, indices)
    return message, trainer(pack(message), round, indices)


def read_off(raw: bytes | Message, told: dict[str, float], traffic: Traffic, round: int, *, forgiving: bool) -> Message:
    """What arrives. A forgiving server judges each message itself, so that no client can end the run."""
    traffic.info.append(told)
    if isinstance(raw, Message):
        traffic.uplink += size_of(raw)
        if not forgiving:
            traffic.take(raw)
        return raw
    traffic.uplink += len(raw)
    if forgiving:  # what it gets may be anything, and carries no noise
        return receive_any(raw)
    message = receive(raw, round=round)
    traffic.take(message)
    return message


@runtime_checkable
class Elsewhere(Protocol):
    """A trainer whose clients are on other machines: some are away, and some do not answer."""

    absent: dict[str, str]  # who did not answer in the last round, with the reason
    unpaid: set[int]  # whose own ledger does not pay any more

    def away(self) -> set[int]:
        """Who has left, and need not be asked before it is back."""
        ...


def away_of(trainer: Trainer, meter: Meter) -> set[int]:
    """Who is asked nothing in the coming round; whose own ledger is spent counts as out of budget."""
    if not isinstance(trainer, Elsewhere):
        return set()
    meter.leave(trainer.unpaid)
    return trainer.away()


def absent_of(trainer: Trainer) -> dict[str, Any]:
    """Who was missing from the round, and why, where clients can be missing."""
    return {"absent": dict(trainer.absent)} if isinstance(trainer, Elsewhere) else {}
