"""The randomness of a round's releases, and who trains its clients: one after the other in this process (the slow twin), or in one
process per core, with the same bytes in the same order; many at once are `engine/stacked.py`, sites `deploy/server/trainer.py`.
A trainer is made of `Parts` alone. Guarantee asked of every trainer: a client's step is `mechanism.sample`, a sum over exactly the
drawn units of what `workspace.clip` bounds, labelled with that clip (`Bounded`), then `mechanism.noise`; nothing else leaves the
client. Whoever changes one of these objects therefore changes what is trained, and `tacit audit` finds out (tacit/lab/audit)."""

import json
import mmap
import multiprocessing
import os
import signal
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

import tacit
from tacit.algorithms import Algorithm, Rule, Server, in_round
from tacit.data.population import Population
from tacit.engine import release
from tacit.errors import TacitError, TrainingDiverged
from tacit.random import Derive, Stream, from_os, keyed
from tacit.store import cores, forks
from tacit.training.flat import beside
from tacit.training.fused import DeviceStream
from tacit.training.sgd import Workspace, workspace
from tacit.types import Client, Message
from tacit.wire import digest_of, pack, unpack

if TYPE_CHECKING:
    from tacit.engine.assemble import Parts

FORMAT = "tacit release 1"
ONE_BY_ONE, STACKED = "one by one", "stacked"  # trainers that give other bits
ClientDerive = Callable[[str, int, Client, str], Stream]  # (question, round, client, purpose)
Reply = tuple[bytes, dict[str, float]]
Carried = tuple[Message, dict[str, float]]
Pending = Iterator[tuple[bytes | Message, dict[str, float]]]
Task = Callable[[Message, str, int, int], Reply]  # (what was broadcast, its digest, round, client) -> message and info
ROOM = 8 << 20  # bytes of address space beyond a message's expected size; untouched pages cost nothing
DENORMAL = 1e-40
SLOTS_PER_WORKER = 3  # replies that may wait for their turn
LOST = "A training process ended unexpectedly (out of memory?): use fewer run.workers, then go on with --resume."


# The key of all noise: everything that a release is a function of (engine/release.py).


@dataclass(frozen=True, eq=False)
class Releases:
    """The digests of one start of a run, of its parts; `start` is this one's."""

    parts: "Parts" = field(repr=False)
    start: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def common(self) -> str:
        """What all releases of the run have in common; every party of a deployment knows it."""
        parts, p = self.parts, self.parts.population
        sizes, epsilons = (np.ascontiguousarray(part).tobytes() for part in (p.offsets, p.epsilons))
        clients = digest_of(json.dumps(p.names), sizes, epsilons, repr((p.delta, p.unit)))
        own = (repr(parts.model), parts.initial_model_digest, release.held(self.rule, *release.named_code(parts.ruled)))
        code = digest_of(release.package(), tacit.__version__, torch.__version__, np.__version__, *own)
        seed, machine = str(parts.experiment.seeds.noise), release.arithmetic(parts.experiment.run.device)
        return digest_of(FORMAT, seed, release.experiment_text(parts.ruled), clients, code, machine, parts.nonce)

    @property
    def rule(self) -> Rule | None:  # central DP has none
        server = getattr(self.parts.algorithm, "server", None)
        return server.rule if isinstance(server, Server) else None

    @property
    def trainer(self) -> str:
        at_once = self.parts.together
        return f"{STACKED} by {at_once}" if at_once else ONE_BY_ONE

    def client(self, client: Client) -> bytes:
        p = self.parts.population
        rows = client.digest or p.row_digests[client.index].tobytes()
        budget = repr((float(p.epsilons[client.index]), p.delta, p.unit))
        who = (self.common, self.trainer, client.id, str(client.index), budget, self.parts.plan.key(client))
        return bytes.fromhex(digest_of("client", *who, rows, *self._planted))

    def streams(self) -> ClientDerive:
        """Every client's randomness: `derive(question, round, client, purpose)`."""
        if self.parts.experiment.run.randomness == "os":
            return from_os()
        self.common  # noqa: B018 - once, before processes fork
        known: dict[str, Derive] = {}

        def derive(question: str, round: int, client: Client, purpose: str) -> Stream:
            if client.id not in known:
                known[client.id] = keyed(self.client(client), kind=self._stream)
            return known[client.id](question, round, purpose)

        return derive

    def server(self, state: str) -> Derive:
        """The server's randomness in the round that starts from a state (its digest)."""
        if self.parts.experiment.run.randomness == "os":
            return from_os()
        return keyed(bytes.fromhex(digest_of("server", self.server_key, state)), kind=self._stream)

    @property
    def _planted(self) -> tuple[str, ...]:
        """Which of a search's runs it is, and the hash of all coins: canaries move what the rows are asked at."""
        trial = ("draw", self.parts.trial_id) if self.parts.trial_id else ()
        return (*trial, self.parts.canaries.commitment) if self.parts.canaries else trial  # without any no bit changes

    @cached_property
    def _stream(self) -> type[Stream]:
        on_device = self.parts.experiment.run.device != "cpu"
        return DeviceStream if on_device and not self.parts.is_deployed else Stream

    @cached_property
    def server_key(self) -> str:
        """What the server's randomness is keyed by beside the state: all that a deployed server knows."""
        return digest_of("server", self.common, self.parts.plan.key(None), *self._planted)

    @cached_property
    def digest(self) -> str:
        """Everything that all releases of the run are a function of, but the state: every row, budget and mechanism."""
        rows = "elsewhere" if self.parts.is_deployed else self.parts.population.digest()
        trainer = () if self.trainer == ONE_BY_ONE else (self.trainer,)
        return digest_of("run", self.server_key, self.parts.plan.digest(), rows, *trainer)

    def attempt(self, state: str) -> str:
        """The name of one round's release, for the ledger: the same name is the same bits, and is paid once."""
        if self.parts.is_deployed and not self.parts.plan.sampler.charges_all:
            return digest_of("deployment", state)  # sites keep their answers: what is asked again is the same release
        # whoever answers a deployed server may be others than before its restart, and give another sum
        return digest_of("attempt", self.digest, state, self.start if self.parts.is_deployed else "")


# Who trains.


class Trainer:
    """Trains the clients of a round, here or at sites of their own. Called with bytes it gives bytes, in the cohort's order."""

    absent: Any = None  # {name: reason} of who did not answer in the last round; None: nobody can be missing
    counts: Any = None  # how many took part and answered, where the loop has not seen all of it
    unpaid: Any = frozenset()  # the clients whose own ledger does not pay any more

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        raise NotImplementedError

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """The clients' replies, in their order. It may be called before anybody has paid.
        Guarantee: nothing of what is trained is read, by whomever, before the first reply is asked for. A CPU computes each reply
        when it is read, a site is asked when the first one is; a device may be at work already."""
        yield from self(pack(message), round, cohort)  # a generator: nothing happens before it is read

    def away(self) -> set[int]:
        return set()  # who has left, and need not be asked before it is back


class OverTensors(Trainer):
    """A trainer in this process that passes tensors on, which stay on their device. Guarantee: every number in them is finite."""

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        raise NotImplementedError

    def question(self, received: Message) -> str:  # what noise is keyed by
        return digest_of("question", pack(received))

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        for message, info in self.answers(unpack(received), digest_of("question", received), round, cohort):
            yield pack(message), info

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        return self.answers(message, self.question(message), round, cohort)


def task(
    algorithm: Algorithm, work: Workspace, population: Population | Mapping[int, Client], derive: ClientDerive
) -> Task:
    """Trains one client for one round and packs what it releases. `derive` is the clients' randomness (release.py)."""

    def train(received: Message, question: str, round: int, index: int) -> Reply:
        client = population[index]
        streams = partial(derive, question, round, client)

        with torch.random.fork_rng(devices=[]), flushed_denormals():
            on_cpu = (
                work.theta.device.type == "cpu"
            )  # torch.manual_seed notes its caller's stack for every device that is not there
            (torch.default_generator if on_cpu else torch).manual_seed(streams("dropout").torch_seed())
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


@dataclass(frozen=True, eq=False)
class OneByOne(Trainer):
    train: Task

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        message, question, threads = unpack(received), digest_of("question", received), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index in cohort:
                yield self.train(message, question, round, index)
        finally:
            torch.set_num_threads(threads)


def workspace_of(parts: "Parts", *, model: nn.Module | None = None) -> Workspace:
    """Where a process trains: the model (its copy shares what is frozen, unless one is given), the plan's clip, the task's
    loss."""
    physical = parts.experiment.train.physical_batch
    own = beside(parts.model) if model is None else model
    return workspace(own, clip=parts.plan.training_clip, physical_batch=physical, losses=parts.losses)


def task_of(parts: "Parts", clients: Mapping[int, Client] | None = None, *, model: nn.Module | None = None) -> Task:
    return task(parts.algorithm, workspace_of(parts, model=model), clients or parts.population, parts.derive)


def alone(parts: "Parts", clients: Mapping[int, Client] | None = None, *, model: nn.Module | None = None) -> OneByOne:
    """Trains clients in this process, one after the other; a site has only itself among its `clients`."""
    return OneByOne(task_of(parts, clients, model=model))


def side_by_side(parts: "Parts", *, workers: int) -> "SideBySide":
    server = getattr(parts.algorithm, "server", None)
    told = range(parts.cohort if getattr(server, "control", None) else 1)  # whose control variates are in a message
    cohort = [parts.population[index] for index in told]
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), cohort, round=0))
    return SideBySide(task_of(parts), workers=workers, message_bytes=len(message))


def wanted_workers(parts: "Parts") -> int:
    run = parts.experiment.run
    return min(run.workers or cores(), parts.cohort) if forks() and run.device == "cpu" else 1


def each_by_itself(parts: "Parts", stack: ExitStack) -> Trainer:
    """Trains clients in as many processes as the run has workers, or in this one; `stack` ends what was begun."""
    workers = wanted_workers(parts)
    if workers == 1 or not fork_can_train():
        return alone(parts)
    pool = side_by_side(parts, workers=workers)
    stack.callback(pool.close)
    # the server's part takes one thread while clients train: threads that wait for each other would take the clients' cores
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return pool


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


# Processes: they have the data by fork, and updates cross by shared memory.


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
        for next_one in range(len(cohort)):
            while next_one not in done:
                while waiting and free and idle:
                    line, position, slot = idle.pop(), waiting.popleft(), free.pop()
                    running[line] = (position, slot)
                    with _lost():
                        line.send((len(received), question, round, cohort[position], slot))
                for line in wait(list(running)):
                    position, slot = running.pop(line)
                    with _lost():
                        kind, *rest = cast(Connection, line).recv()
                    if kind == "refused":
                        raise rest[0]
                    if kind == "failed":
                        raise RuntimeError(f"a training process failed:\n{rest[0]}")
                    done[position] = (slot, rest[0], rest[1])
                    idle.append(line)
            slot, length, info = done.pop(next_one)
            reply = self._slots[slot][:length]
            free.append(slot)
            yield reply, info

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise TacitError(LOST) from error


def _work(
    train: Task, line: Connection, others: list[Connection], broadcast: mmap.mmap, slots: list[mmap.mmap]
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # to the whole group: the parent decides, and closes the line
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
        except (EOFError, OSError):
            os._exit(0)
        try:
            reply, info = train(heard[question], question, round, index)
            room = len(slots[slot])
            if len(reply) > room:
                raise TacitError(f"A message of {len(reply)} bytes does not fit the {room} reserved for it.")
            slots[slot][: len(reply)] = reply
            answer = ("done", len(reply), info)
        except TacitError as error:
            answer = ("refused", error)
        except Exception:  # noqa: BLE001 - whatever it was, the parent tells
            answer = ("failed", traceback.format_exc())
        try:
            line.send(answer)
        except (EOFError, OSError):
            os._exit(0)
