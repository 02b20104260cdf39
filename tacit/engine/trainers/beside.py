"""Malicious clients beside a stack of honest ones: these are trained at once, those one by one; answers keep the cohort's order."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tacit.digest import question_mark
from tacit.engine.trainers.processes import Reply, Task
from tacit.engine.wire import pack, unpack
from tacit.types import Message


class Beside:
    """A trainer of two: `stack` has the honest clients, `alone` trains one of the `malicious`.

    Guarantee: the honest clients' answers are the stack's, for a cohort without the others.
    """

    def __init__(self, stack: Any, alone: Task, malicious: Sequence[int]):
        self.stack, self.alone, self.malicious = stack, alone, frozenset(malicious)

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        """As every trainer: from bytes to bytes."""
        for message, info in self.carry(unpack(received), round, cohort):
            yield pack(message), info

    def carry(
        self, received: Message, round: int, cohort: Sequence[int], /
    ) -> Iterator[tuple[Message, dict[str, float]]]:
        """From tensors to tensors, which stay on the device."""
        honest = self.stack.carry(received, round, [index for index in cohort if index not in self.malicious])
        home, told = received.tensors["params"].device, received.to(torch.device("cpu"))
        question = question_mark(pack(told))
        for index in cohort:
            if index in self.malicious:
                raw, info = self.alone(told, question, round, index)
                yield unpack(raw).to(home), info
            else:
                yield next(honest)
