"""A cohort over several devices: each trains a part of it with a stack of its own, and their answers come in the cohort's order.

Every client's batches and noise are its own, whichever device it is on, so another split gives the same updates up to rounding.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext

import torch

from tacit.digest import question_mark
from tacit.engine.trainers.processes import Reply
from tacit.engine.trainers.stacked import Carried, Stacked
from tacit.engine.wire import pack, unpack
from tacit.train.precision import coarse, full_precision
from tacit.types import Message


class Split:
    """The trainers of several devices, one thread for each. `precision` is that of plain SGD; the trainers know float32 alone."""

    def __init__(self, trainers: Sequence[Stacked], *, precision: str = "float32"):
        self.trainers, self.precision = trainers, precision

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        """As every trainer: from bytes to bytes."""
        for message, info in self._answers(unpack(received), question_mark(received), round, cohort):
            yield pack(message), info

    def carry(self, received: Message, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """From tensors to tensors; what was trained elsewhere comes to where the model is."""
        return self._answers(received, self.trainers[0].question(received), round, cohort)

    def _answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        count, home = len(self.trainers), received.tensors["params"].device
        cuts = [len(cohort) * k // count for k in range(count + 1)]

        def train(k: int) -> list[Carried]:
            part, device = cohort[cuts[k] : cuts[k + 1]], self.trainers[k].work.theta.device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # of this thread, for kernels
                return list(self.trainers[k].answers(received, question, round, part)) if part else []

        with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
            # precision is torch's, for all threads: it is set before they begin and set back after the last has ended
            private = self.trainers[0].clips_examples
            stack.enter_context(
                full_precision(self.trainers[0].work.theta.device) if private else coarse(self.precision)
            )
            parts = list(threads.map(train, range(count)))
        for message, info in (answer for part in parts for answer in part):
            yield message.to(home), info
