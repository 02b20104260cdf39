"""The one seam for speed: how the clients of a round are trained.
In this process one after the other (the slow twin), or in one process per core: the same bytes in the same order, since every
client's randomness is a function of what it releases. Workers have the data by fork; updates cross by shared memory."""

import mmap
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from tacit.algorithms import Algorithm, in_round
from tacit.data.population import Population
from tacit.engine.release import ClientDerive
from tacit.errors import TacitError, TrainingDiverged
from tacit.training.clipping import Workspace
from tacit.types import Client, Message
from tacit.wire import digest_of, pack, unpack

Reply = tuple[bytes, dict[str, float]]
Carried = tuple[Message, dict[str, float]]
Pending = Iterator[tuple[bytes | Message, dict[str, float]]]
Task = Callable[[Message, str, int, int], Reply]  # (what was broadcast, its digest, round, client) -> message and info
ROOM = 8 << 20  # bytes of address space beyond a message's expected size; untouched pages cost nothing
DENORMAL = 1e-40
SLOTS_PER_WORKER = 3  # replies that may wait for their turn


class Trainer:
    """Trains the clients of a round, here or at sites of their own. Called with bytes it gives bytes, in the cohort's order."""

    absent: Any = None  # {name: reason} of who did not answer in the last round; None: nobody can be missing
    unpaid: Any = frozenset()  # the clients whose own ledger does not pay any more

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        raise NotImplementedError

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """The clients' replies, in their order. It may be called before anybody has paid.
        Guarantee: nothing of what is trained is read, by whomever, before the first reply is asked for. A CPU computes each reply
        when it is read, a site is asked when the first one is; a device may be at work already."""
        yield from self(pack(message), round, cohort)  # a generator: nothing happens before it is read

    def away(self) -> set[int]:
        """Who has left, and need not be asked before it is back."""
        return set()


@dataclass(frozen=True, eq=False)
class InProcess(Trainer):
    """Trains in this process."""

    train: Callable[[bytes, int, Sequence[int]], Iterator[Reply]]

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        return self.train(received, round, cohort)


class OverTensors(Trainer):
    """A trainer in this process that passes tensors on, which stay on their device. Guarantee: every number in them is finite."""

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """What the clients release, in their order."""
        raise NotImplementedError

    def question(self, received: Message) -> str:
        """What noise is keyed by."""
        return digest_of("question", pack(received))

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        for message, info in self.answers(unpack(received), digest_of("question", received), round, cohort):
            yield pack(message), info

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """As every trainer, from tensors to tensors."""
        return self.answers(message, self.question(message), round, cohort)


def task(
    algorithm: Algorithm, work: Workspace, population: Population | Mapping[int, Client], derive: ClientDerive
) -> Task:
    """Trains one client for one round and packs what it releases. `derive` is the clients' randomness (release.py)."""

    def train(received: Message, question: str, round: int, index: int) -> Reply:
        client = population[index]
        streams = partial(derive, question, round, client)

        with torch.random.fork_rng(devices=[]), flushed_denormals():
            torch.manual_seed(streams("dropout").torch_seed())
            try:
                trained = algorithm.train(work, in_round(received, round), client, streams)
            except TrainingDiverged as error:
                text = f"{str(error).rstrip('.')} at client {client.id} in round {round + 1}"
                raise TrainingDiverged(
                    f"{text}: lower train.learning_rate; the last good checkpoint is kept."
                ) from error
        return pack(algorithm.release(trained, client, received)), trained.info

    return train


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Counts numbers below float32's normal range as zero: a core takes many times as long for them, which would show."""
    before = float(torch.full((), DENORMAL) * 1) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def one_by_one(train: Task) -> Callable[[bytes, int, Sequence[int]], Iterator[Reply]]:
    """Trains the cohort in this process, one client after the other."""

    def trainer(received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        message, question, threads = unpack(received), digest_of("question", received), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index in cohort:
                yield train(message, question, round, index)
        finally:
            torch.set_num_threads(threads)

    return trainer


class SideBySide(Trainer):
    """Trains the cohort in `workers` processes. Raises what a client raised, or TacitError if a process is lost."""

    def __init__(self, train: Task, *, workers: int, message_bytes: int):
        context = multiprocessing.get_context("fork")
        self._broadcast = mmap.mmap(-1, 64 * message_bytes + ROOM)
        self._slots = [mmap.mmap(-1, 4 * message_bytes + ROOM) for _ in range(SLOTS_PER_WORKER * workers)]
        self._lines: list[Connection] = []
        self._processes = []
        for _ in range(workers):
            mine, theirs = context.Pipe()
            self._lines.append(mine)
            arguments = (train, theirs, list(self._lines), self._broadcast, self._slots)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        self._broadcast[: len(received)] = received
        question = digest_of("question", received)
        waiting, free = deque(range(len(cohort))), list(range(len(self._slots)))
        idle: list[Any] = list(self._lines)
        running: dict[Any, tuple[int, int]] = {}
        done: dict[int, tuple[int, int, dict[str, float]]] = {}
        for turn in range(len(cohort)):
            while turn not in done:
                while waiting and free and idle:
                    line, position, slot = idle.pop(), waiting.popleft(), free.pop()
                    running[line] = (position, slot)
                    self._send(line, (len(received), question, round, cohort[position], slot))
                for line in wait(list(running)):
                    position, slot = running.pop(line)
                    done[position] = (slot, *self._hear(line))
                    idle.append(line)
            slot, length, info = done.pop(turn)
            reply = self._slots[slot][:length]
            free.append(slot)
            yield reply, info

    def close(self) -> None:
        """Ends the processes."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _send(self, line: Connection, job: tuple[int, str, int, int, int]) -> None:
        try:
            line.send(job)
        except OSError as error:
            raise TacitError(LOST) from error

    def _hear(self, line: Any) -> tuple[int, dict[str, float]]:
        try:
            kind, *rest = line.recv()
        except (EOFError, OSError) as error:
            raise TacitError(LOST) from error
        if kind == "refused":
            raise rest[0]
        if kind == "failed":
            raise RuntimeError(f"a training process failed:\n{rest[0]}")
        return rest[0], rest[1]


def fork_can_train() -> bool:
    """Whether a fork could compute gradients; after a backward pass on another device none can. Torch tells the child alone."""
    child = os.fork()
    if not child:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
            os._exit(0)
        finally:
            os._exit(1)  # whatever was raised is this child's own
    return os.waitpid(child, 0)[1] == 0


LOST = "A training process ended unexpectedly (out of memory?): use fewer run.workers, then go on with --resume."


def _work(
    train: Task, line: Connection, others: list[Connection], broadcast: mmap.mmap, slots: list[mmap.mmap]
) -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # they come to the whole group: the parent decides, and closes the line
        signal.signal(number, signal.SIG_IGN)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    heard: dict[str, Message] = {}
    while True:
        try:
            length, question, round, index, slot = line.recv()
            if question not in heard:
                heard = {question: unpack(broadcast[:length])}
            line.send(_answer(partial(train, heard[question], question, round, index), slots[slot]))
        except (EOFError, OSError):
            os._exit(0)


def _answer(train: Callable[[], Reply], slot: mmap.mmap) -> tuple[Any, ...]:
    try:
        reply, info = train()
        if len(reply) > len(slot):
            raise TacitError(f"A message of {len(reply)} bytes does not fit the {len(slot)} reserved for it.")
        slot[: len(reply)] = reply
        return "done", len(reply), info
    except TacitError as error:
        return "refused", error
    except Exception:  # noqa: BLE001 - whatever it was, the parent tells
        return "failed", traceback.format_exc()
