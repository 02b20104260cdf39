"""From a run's parts to whoever trains its clients: the seam that a run, a site and an audit share.

A trainer is made of `Parts` alone: the algorithm (whose mechanisms sample and noise), the workspace (whose clip bounds), the
clients, and their randomness. Guarantee asked of every trainer: a client's step is `mechanism.sample`, a sum over exactly the drawn
units of what `workspace.clip` bounds, labelled with that clip (`Bounded`), then `mechanism.noise`; nothing else leaves the client.
Whoever changes one of these objects therefore changes what is trained, and `tacit audit` finds out (tacit/lab/audit)."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tacit.engine.assemble import Parts
from tacit.engine.pool import (
    Carried,
    InProcess,
    OverTensors,
    Pending,
    SideBySide,
    Task,
    Trainer,
    fork_can_train,
    one_by_one,
    task,
)
from tacit.engine.stacked import Stacked
from tacit.store import cores, forks
from tacit.training.clipping import Workspace, workspace
from tacit.training.flat import beside
from tacit.training.optimizer import coarse, full_precision
from tacit.types import Client, Message
from tacit.wire import pack, unpack


def workspace_of(parts: Parts, *, model: nn.Module | None = None) -> Workspace:
    """Where a process trains: the model (its copy shares what is frozen, unless one is given), the plan's clip, the task's loss."""
    physical = parts.experiment.train.physical_batch
    own = beside(parts.model) if model is None else model
    return workspace(own, clip=parts.plan.training_clip, physical_batch=physical, losses=parts.losses)


def alone(parts: Parts, clients: Mapping[int, Client] | None = None, *, model: nn.Module | None = None) -> InProcess:
    """Trains clients in this process, one after the other; a site has only itself among its `clients`."""
    work = workspace_of(parts, model=model)
    return InProcess(one_by_one(task(parts.algorithm, work, clients or parts.population, parts.derive)))


def side_by_side(parts: Parts, *, workers: int) -> SideBySide:
    """Trains clients in so many processes; whoever made it closes it."""
    server = getattr(parts.algorithm, "server", None)
    told = range(parts.cohort if getattr(server, "control", None) else 1)  # whose control variates are in a message
    cohort = [parts.population[index] for index in told]
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), cohort, round=0))
    train = task(parts.algorithm, workspace_of(parts), parts.population, parts.derive)
    return SideBySide(train, workers=workers, message_bytes=len(message))


def wanted_workers(parts: Parts) -> int:
    """In how many processes the clients of a run are to train, where a fork can."""
    run = parts.experiment.run
    return min(run.workers or cores(), parts.cohort) if forks() and run.device == "cpu" else 1


def each_by_itself(parts: Parts, stack: ExitStack) -> Trainer:
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


def stacked(parts: Parts) -> OverTensors:
    """Trains `parts.together` clients at once, on each of the run's devices; malicious ones by themselves.
    Raises: Unsupported with the reason where the algorithm's training or the model cannot be stacked."""
    if parts.attack is not None:
        malicious: Any = parts.algorithm
        honest = dataclasses.replace(malicious, local=malicious.local.honest)
        train = task(malicious, workspace_of(parts), parts.population, parts.derive)
        stack = stacked(dataclasses.replace(parts, algorithm=honest, attack=None))
        return Beside(stack, train, parts.attack[0].malicious)
    devices, precision = parts.experiment.run.devices, parts.experiment.run.precision
    how = {"chunk": max(1, parts.together), "repeats": not parts.nonce}
    if len(devices) == 1:
        return Stacked(parts.algorithm, workspace_of(parts), parts.population, parts.derive, **how, precision=precision)
    trainers = []
    for name in devices:
        work = workspace_of(parts, model=copy.deepcopy(parts.model).to(name))
        trainers.append(Stacked(parts.algorithm, work, parts.population.to(torch.device(name)), parts.derive, **how))
    return Split(trainers, precision=precision)


class Beside(OverTensors):
    """`stack` trains the honest clients at once, `alone` each of the `malicious` by itself; replies keep the cohort's order.
    Guarantee: the honest clients' answers are the stack's, for a cohort without the others."""

    def __init__(self, stack: OverTensors, alone: Task, malicious: Sequence[int]):
        self.stack, self.alone, self.malicious = stack, alone, frozenset(malicious)

    def question(self, received: Message) -> str:
        """As of the stack."""
        return self.stack.question(received)

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """What the clients release, in their order."""
        honest = self.stack.answers(received, question, round, [i for i in cohort if i not in self.malicious])
        home, on_cpu = received.tensors["params"].device, received.to(torch.device("cpu"))
        for index in cohort:
            if index in self.malicious:
                raw, info = self.alone(on_cpu, question, round, index)
                yield unpack(raw).to(home), info
            else:
                yield next(honest)


class Split(OverTensors):
    """A cohort over several devices, one thread for each. `precision` is that of plain SGD; the trainers know float32 alone."""

    def __init__(self, trainers: Sequence[Stacked], *, precision: str = "float32"):
        self.trainers, self.precision = trainers, precision

    def question(self, received: Message) -> str:
        """As of each trainer."""
        return self.trainers[0].question(received)

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """What the clients release, in their order; what was trained on another device comes to where the model is."""
        count, home = len(self.trainers), received.tensors["params"].device
        cuts = [len(cohort) * k // count for k in range(count + 1)]

        def train(k: int) -> list[Carried]:
            part, device = cohort[cuts[k] : cuts[k + 1]], self.trainers[k].work.theta.device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # of this thread, for kernels
                return list(self.trainers[k].answers(received, question, round, part)) if part else []

        exact = self.trainers[0].clips_examples
        # precision is torch's, for all threads: it is set before they begin and set back after the last has ended
        how = full_precision(self.trainers[0].work.theta.device) if exact else coarse(self.precision)
        with how, ThreadPoolExecutor(count) as threads:
            parts = list(threads.map(train, range(count)))
        for message, info in (answer for part in parts for answer in part):
            yield message.to(home), info


# What the server of a simulation gets, heard by somebody else too: for attacks, which see what their attacker would see.

Heard = Sequence[tuple[int, Message]]  # the index of a client and what it sent, in the order of the cohort
Hear = Callable[[int, Message, Heard], None]  # of a round: its number, what was broadcast, what was answered


@dataclass(frozen=True)
class Overheard(Trainer):
    """A trainer with somebody who hears every round, once all of its clients have answered and before the next begins."""

    trainer: Trainer
    hear: Hear

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """The trainer's replies."""
        return self._heard(self.trainer.dispatch(message, round, cohort), message, round, cohort)

    def _heard(self, pending: Pending, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        answers = []
        for index, reply in zip(cohort, pending, strict=True):
            sent = reply[0] if isinstance(reply[0], Message) else unpack(reply[0])
            kept = {name: tensor.clone() for name, tensor in sent.tensors.items()}  # buffers are used again
            answers.append((index, Message(sent.sender, kept, dict(sent.facts))))
            yield reply
        self.hear(round, message, answers)
