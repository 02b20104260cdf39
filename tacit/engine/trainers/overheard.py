"""What the server of a simulation gets, heard by somebody else too: for attacks, which see what their attacker would see.

A run has none of this unless it is asked for. Guarantee: the trainer is called as before and its answers are passed on as they are,
so that a run that is heard is the same run, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.engine.passing import Carrying
from tacit.engine.trainers.processes import Reply, Trainer
from tacit.engine.wire import unpack
from tacit.types import Message

Heard = Sequence[tuple[int, Message]]  # the index of a client and what it sent, in the order of the cohort
Hear = Callable[[int, Message, Heard], None]  # of a round: its number, what was broadcast, what was answered


def overheard(trainer: Trainer, hear: Hear) -> Trainer:
    """The trainer with somebody who hears every round, once all of its clients have answered and before the next begins."""
    return _Tensors(trainer, hear) if isinstance(trainer, Carrying) else _Bytes(trainer, hear)


@dataclass(frozen=True)
class _Bytes:
    trainer: Trainer
    hear: Hear

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        answers = []
        for index, reply in zip(cohort, self.trainer(received, round, cohort), strict=True):
            answers.append((index, unpack(reply[0])))
            yield reply
        self.hear(round, unpack(received), answers)


@dataclass(frozen=True)
class _Tensors:
    trainer: Any
    hear: Hear

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        raise TypeError("this trainer passes tensors on: use carry")

    def carry(
        self, received: Message, round: int, cohort: Sequence[int], /
    ) -> Iterator[tuple[Message, dict[str, float]]]:
        answers = []
        for index, reply in zip(cohort, self.trainer.carry(received, round, cohort), strict=True):
            kept = {name: tensor.clone() for name, tensor in reply[0].tensors.items()}  # buffers are used again
            answers.append((index, Message(reply[0].sender, kept, dict(reply[0].facts))))
            yield reply
        self.hear(round, received, answers)
