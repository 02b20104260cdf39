"""The one seam for speed: how the clients of a round are trained.

`one_by_one` is the slow twin. `SideBySide` runs clients in parallel, one process per core, each with one thread, and
yields the same bytes in the same order: every client's randomness is a function of what it releases, so where and when it
trains does not matter. Data is shared with the workers by fork, without copies; parameters and updates cross by shared
memory."""

import mmap
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

import torch

from tacit.algorithms import Algorithm, in_round
from tacit.data.population import Population
from tacit.digest import question_mark
from tacit.engine.budget import Meter
from tacit.engine.release import ClientDerive
from tacit.engine.watch import Traffic
from tacit.errors import TacitError, TrainingDiverged
from tacit.training.clipping import Workspace
from tacit.types import Client, Message, State
from tacit.wire import pack, receive, receive_any, size_of, unpack

Reply = tuple[bytes, dict[str, float]]
Task = Callable[[Message, str, int, int], Reply]  # (what was broadcast, its mark, round, client) -> message and info
Trainer = Callable[[bytes, int, Sequence[int]], Iterator[Reply]]
ROOM = 8 << 20  # bytes of address space beyond a message's expected size; untouched pages cost nothing
DENORMAL = 1e-40
SLOTS_PER_WORKER = 3  # replies that may wait for their turn


def task(
    algorithm: Algorithm, work: Workspace, population: Population | Mapping[int, Client], derive: ClientDerive
) -> Task:
    """Trains one client for one round and packs what it releases. `derive` is the clients' randomness (build/release.py)."""

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


def one_by_one(train: Task) -> Trainer:
    """Trains the cohort in this process, one client after the other."""

    def trainer(received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        message, question, threads = unpack(received), question_mark(received), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index in cohort:
                yield train(message, question, round, index)
        finally:
            torch.set_num_threads(threads)

    return trainer


class SideBySide:
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
        question = question_mark(received)
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
    """Whether a fork of this process could compute gradients. Once a backward pass has begun threads for another device, none can.

    Torch says so in the child alone, so one is asked.
    """
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
    """A worker's life: until its line closes, which happens also when the parent is killed."""
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
    """Trains one client and leaves its message in the slot; a failure is told, not raised."""
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


# Between the trainer and the server's part: how clients are asked, what of their answers is read, and who is missing.

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
