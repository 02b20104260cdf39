"""Trains a whole cohort at once: every client is a row of one matrix of parameters, its rows are places in one tensor.
Clients that run DP-SGD are sampled, clipped, summed and noised in step (stacked_private.py); those that run plain SGD are trained
in step, and what their algorithm then does to an update is its own code. The twin of `OneByOne`: the streams are the same, so they
differ by float32 rounding, and by noise that is drawn on the device. Guarantee: that of each client's mechanism."""

import copy
import dataclasses
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from tacit.algorithms import Algorithm, in_round
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.fedavg import FedAvg
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.mean_regularised import MeanRegularised
from tacit.algorithms.record_sums import RecordSums, SecretRecordSums
from tacit.algorithms.scaffold import correction_of
from tacit.data.population import Population
from tacit.engine.assemble import Parts
from tacit.engine.release import ClientDerive
from tacit.engine.stacked_private import InStep, noised_there
from tacit.engine.trainers import Carried, OverTensors, Pending, Task, task, task_of, workspace_of
from tacit.errors import TacitError, TrainingDiverged
from tacit.random import Stream
from tacit.training.batches import Batches, Viewed, equal, filled, later, over_views, shuffled, shuffled_alike
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd, NoisedUpdate
from tacit.training.independence import Unsupported
from tacit.training.optimizer import coarse, full_precision
from tacit.training.sgd import LocalSgd
from tacit.training.stacked import stack_of
from tacit.training.stacked_steps import Captured, sgd_steps
from tacit.types import Client, Message, Raw
from tacit.wire import digest_of, pack, unpack

LOG = logging.getLogger(__name__)
FIRST = 4  # of a cohort on a device, which part is trained first: meanwhile the batches of the others are drawn
Finish = Callable[[], list[Carried]]


def started(working: Iterator[Any]) -> Iterator[Any]:
    """A generator that has come to its first yield, where it has read nothing. What it raised before is raised when it is read."""
    try:
        next(working)
    except Exception as error:  # noqa: BLE001 - told when the replies are read, which is after the charge
        return _raising(error)
    return working


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def _after_start(working: Iterator[Any]) -> Iterator[Any]:
    next(working)
    yield from working


def local_of(algorithm: Algorithm) -> DpSgd | LocalSgd:
    """How an algorithm's clients train. Raises: Unsupported for somebody else's training, which nobody can stack."""
    local: Any = getattr(algorithm, "local", None)
    local = local.sgd if isinstance(local, NoisedUpdate) else local
    if isinstance(algorithm, RecordSums | SecretRecordSums):
        raise Unsupported("its clients sum the gradients of one batch each, and do not train")
    if type(local) is DpSgd or type(local) is LocalSgd:
        return local
    raise Unsupported("its clients run somebody else's training")


class Stacked(OverTensors):
    """The trainer. `chunk` is how many clients are trained together.
    Raises: Unsupported with the reason where the model or the algorithm's training cannot be stacked."""

    def __init__(
        self,
        algorithm: Algorithm,
        work: Workspace,
        population: Population,
        derive: ClientDerive,
        *,
        chunk: int,
        repeats: bool = True,
        precision: str = "float32",
    ):
        self.algorithm, self.work, self.population, self.derive = algorithm, work, population, derive
        self.chunk, self.repeats, self.precision = chunk, repeats, precision
        self.local = local_of(algorithm)
        if isinstance(getattr(getattr(algorithm, "server", None), "control", None), MeanRegularised):
            raise Unsupported("each client's round begins with a model of its own (personal.when)")
        views = self.local.views if isinstance(self.local, DpSgd) else None
        x, y = population.x[:3], population.y[:3]
        if views is None:
            self.stack = stack_of(work.model, x, y, work.losses)
        else:
            shown = x[:, None].expand(-1, views.count, *x.shape[1:])
            self.stack = stack_of(Viewed(work.model), shown, y, over_views(work.losses))
        self._recorded: dict[Any, Captured] = {}

    @property
    def width(self) -> int:
        """What the number of clients is filled up to a multiple of, so that shapes repeat."""
        return max(1, self.chunk // 16)

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """As every trainer; a device is at work before this returns, and what goes wrong there is told when it is read.
        A mechanism that noises each client by itself may be somebody else's code, which reads what it noises: it waits."""
        working = self._working(message, self.question(message), round, cohort)
        if self.work.theta.is_cuda and self._noised_there(cohort):
            return started(working)
        return _after_start(working)

    def question(self, received: Message) -> str:
        """What noise is keyed by: the question's bytes; where a start cannot be repeated, this call alone."""
        return digest_of("question", pack(received)) if self.repeats else uuid.uuid4().hex

    def _noised_there(self, cohort: Sequence[int]) -> bool:
        algorithm, clients = self.algorithm, [self.population[index] for index in cohort]
        if not isinstance(self.local, DpSgd) or not isinstance(algorithm, LocalDP):
            return True
        streams = [self.derive("", 0, client, "kind") for client in clients[:1]]
        return noised_there([algorithm.mechanism(client) for client in clients], streams)

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """What the clients release, in their order."""
        return _after_start(self._working(received, question, round, cohort))

    def _working(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Any]:
        message, at, silent = in_round(received, round), 0, True
        begun: Finish | None = None
        while at < len(cohort):
            clients, after = [self.population[index] for index in cohort[at : at + self._part(at)]], None
            try:
                after = self._begin(message, question, round, clients)
            except torch.OutOfMemoryError:
                clients = []
            except TacitError:
                raise
            except Exception:  # noqa: BLE001 - rows of this shape went through: it depends on values, and no word about it
                after = partial(self._one_by_one, message, question, round, clients)
            if begun and silent:
                yield None
                silent = False
            yield from begun() if begun else ()
            if after is None:
                self._smaller()
            begun, at = after, at + len(clients)
        if silent:
            yield None
        yield from begun() if begun else ()

    def _part(self, at: int) -> int:
        if at or not self.work.theta.is_cuda:
            return self.chunk
        return max(1, self.chunk // FIRST // self.width) * self.width

    def _one_by_one(self, received: Message, question: str, round: int, clients: Sequence[Client]) -> list[Carried]:
        train, home = task(self.algorithm, self.work, self.population, self.derive), self.work.theta.device
        told = received.to(torch.device("cpu"))
        replies = [train(told, question, round, client.index) for client in clients]
        return [(unpack(raw).to(home), info) for raw, info in replies]

    def _smaller(self) -> None:
        self._recorded.clear()
        torch.cuda.empty_cache()
        if self.chunk == 1:
            raise TacitError(
                "The device has not enough memory for one client: use a smaller train.batch_size or model."
            )
        self.chunk = -(-self.chunk // 2)
        LOG.warning("The device has not enough memory: %d clients are trained together from now on.", self.chunk)

    def _begin(self, received: Message, question: str, round: int, clients: Sequence[Client]) -> Finish:
        # each stream is made once: what has been drawn of one is never drawn again for something else
        streams = [cache(partial(self.derive, question, round, client)) for client in clients]
        theta, device = received.tensors["params"].to(self.work.theta.device), self.work.theta.device
        drawn = [derive("train") for derive in streams]
        with chance(device, streams[0]("dropout").torch_seed()):
            if isinstance(self.local, LocalSgd):
                updates, losses = self._plain(theta, received, clients, drawn, round)
                sound, scales, facts = self._looked_at(updates, losses, received)
                return lambda: self._finished(updates, sound, scales, facts(), received, clients, streams, round)
            groups = self._private(theta, received, clients, drawn, round)

        def released() -> list[Carried]:
            done = {k: trained for places, results in groups for k, trained in zip(places, results(), strict=True)}
            pairs = [(done[k], client) for k, client in enumerate(clients)]
            return [(self.algorithm.release(trained, client, received), trained.info) for trained, client in pairs]

        return released

    def _corrections(self, received: Message, clients: Sequence[Client]) -> torch.Tensor | None:
        server = getattr(self.algorithm, "server", None)
        if server is None or not server.control:
            return None
        return torch.stack([correction_of(received, client) for client in clients]).to(self.work.theta.device)

    # plain SGD, and what the algorithm then does to an update

    def _plain(
        self, theta: torch.Tensor, received: Message, clients: Sequence[Client], streams: Sequence[Stream], round: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        local = self.local
        if not isinstance(local, LocalSgd):
            raise TypeError("only plain SGD is trained here")
        corrections = self._corrections(received, clients)
        local = local.for_round(round, None)
        idle = (
            -len(clients) % self.width if theta.is_cuda else 0
        )  # cohorts of other sizes are filled up with nobody's rows
        starts = [int(self.population.offsets[client.index]) for client in clients] + [0] * idle
        batches, uneven = _shuffled(local, clients, streams, starts)
        batches, rate = batches.to(theta.device), theta.new_full((), local.learning_rate * local.descent.share)
        how = {"descent": dataclasses.replace(local.descent, correction=None), "uneven": uneven}
        steps = partial(sgd_steps, self.stack, **how)
        more = () if corrections is None else (torch.cat([corrections, corrections.new_zeros(idle, len(theta))]),)
        with coarse(self.precision):
            updates, losses = self._run(("plain", uneven), steps, theta, batches, rate, *more)
        return updates[: len(clients)], losses[: len(clients)]

    def _looked_at(
        self, updates: torch.Tensor, losses: torch.Tensor, received: Message
    ) -> tuple[torch.Tensor, bool, Callable[[], list[list[float]]]]:
        least, most = updates.aminmax(dim=1)  # both are NaN where anything is
        sound = least.isfinite() & most.isfinite() & losses.isfinite()
        scales = self.algorithm.scale_rows_(updates, received) if isinstance(self.algorithm, CentralDP) else None
        known = [losses, sound.to(losses.dtype)] + ([] if scales is None else [scales])
        return sound, scales is not None, later(torch.stack(known))

    def _finished(
        self,
        updates: torch.Tensor,
        sound: torch.Tensor,
        scaled: bool,
        facts: list[list[float]],
        received: Message,
        clients: Sequence[Client],
        streams: Sequence[Callable[[str], Stream]],
        round: int,
    ) -> list[Carried]:
        losses, fine, *scales = facts
        if not all(fine):
            updates.masked_fill_(~sound[:, None], 0.0)  # in place: no row decides how much memory is asked for
        told = [{"loss": loss} if good else {"diverged": 1.0} for loss, good in zip(losses, fine, strict=True)]
        if isinstance(self.algorithm, FedAvg):
            _refuse_diverged(told, clients, round)
            return self.algorithm.released_rows(updates, told, clients, received)
        if isinstance(self.algorithm, CentralDP):
            # what is zero now is within every clip
            own = [scale if good else 1.0 for scale, good in zip(scales[0], fine, strict=True)] if scaled else None
            return self.algorithm.released_rows(updates, told, clients, received, scales=own)
        answers = []
        for client, update, info, derive in zip(clients, updates, told, streams, strict=True):
            algorithm: Any = dataclasses.replace(self.algorithm, local=self._given(Trained(Raw(update), info)))  # type: ignore
            trained = algorithm.train(self.work, received, client, derive)
            answers.append((algorithm.release(trained, client, received), trained.info))
        return answers

    def _given(self, trained: Trained) -> Any:
        def given(*_: Any, **__: Any) -> Trained:
            return trained

        return NoisedUpdate(given) if isinstance(self.algorithm, LocalDP) else given

    def _private(
        self, theta: torch.Tensor, received: Message, clients: Sequence[Client], streams: Sequence[Stream], round: int
    ) -> list[tuple[list[int], Callable[[], list[Trained]]]]:
        algorithm, local = self.algorithm, self.local
        if not isinstance(algorithm, LocalDP) or not isinstance(local, DpSgd):
            raise TypeError("only clients that run DP-SGD are trained here")
        local, corrections = local.for_round(round, None), self._corrections(received, clients)
        mechanisms, clip = [algorithm.mechanism(client) for client in clients], float(self.work.clip or 0)
        groups = []
        for count in sorted({mechanism.steps for mechanism in mechanisms}):
            group = [k for k, mechanism in enumerate(mechanisms) if mechanism.steps == count]
            own = corrections[group] if corrections is not None else None
            some = ([clients[k] for k in group], [mechanisms[k] for k in group], [streams[k] for k in group])
            at = (self.stack, self.population, clip, local, self._run, theta)
            groups.append((group, InStep(*at, *some, own).begin()))
        return groups

    def _run(
        self, name: Any, steps: Callable[..., Any], theta: torch.Tensor, batches: Batches, *more: torch.Tensor
    ) -> Any:
        if name not in self._recorded:
            x, y = self.population.x, self.population.y
            self._recorded[name] = Captured(lambda start, *rest: steps(start, x, y, *rest))
        return self._recorded[name](theta, batches.places, batches.mask, *more)


def _shuffled(
    local: LocalSgd, clients: Sequence[Client], streams: Sequence[Stream], starts: Sequence[int]
) -> tuple[Batches, bool]:
    shapes = [(client.size, local.batch_size(client), local.steps(client)) for client in clients]
    if len(set(shapes)) == 1:
        size, batch_size, steps = shapes[0]
        alike = shuffled_alike(streams, size, batch_size=batch_size, steps=steps)
        if alike is not None:
            return equal(alike, starts), False
    drawn = [
        list(shuffled(stream, size, batch_size=batch_size, steps=steps))
        for stream, (size, batch_size, steps) in zip(streams, shapes, strict=True)
    ]
    idle: list[list[np.ndarray]] = [[]] * (len(starts) - len(clients))
    return filled(drawn + idle, starts), len({len(batches) for batches in drawn}) > 1


@contextmanager
def chance(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's own generator of a device under a seed within the block, for dropout; afterwards it is where it was."""
    index = device.index if device.index is not None else torch.cuda.current_device() if device.type == "cuda" else 0
    generator = torch.cuda.default_generators[index] if device.type == "cuda" else torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _refuse_diverged(told: Sequence[dict[str, float]], clients: Sequence[Client], round: int) -> None:
    for info, client in zip(told, clients, strict=True):
        if "diverged" in info:
            raise TrainingDiverged(
                f"The training of client {client.id} diverged in round {round + 1}: lower train.learning_rate; the last good"
                " checkpoint is kept."
            )


# Cohorts that one stack does not train alone: some clients are malicious, or there are several devices.


def stacked(parts: Parts) -> OverTensors:
    """Trains `parts.together` clients at once, on each of the run's devices; malicious ones by themselves.
    Raises: Unsupported with the reason where the algorithm's training or the model cannot be stacked."""
    if parts.attack is not None:
        malicious: Any = parts.algorithm
        honest = dataclasses.replace(malicious, local=malicious.local.honest)
        stack = stacked(dataclasses.replace(parts, algorithm=honest, attack=None))
        return Beside(stack, task_of(parts), parts.attack[0].malicious)
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
        self.question = stack.question

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
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
        self.question = trainers[0].question

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        """What the clients release, in their order; what was trained on another device comes to where the model is."""
        count, home = len(self.trainers), received.tensors["params"].device
        cuts = [len(cohort) * k // count for k in range(count + 1)]

        def train(k: int) -> list[Carried]:
            part, device = cohort[cuts[k] : cuts[k + 1]], self.trainers[k].work.theta.device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # of this thread, for kernels
                return list(self.trainers[k].answers(received, question, round, part)) if part else []

        exact = isinstance(self.trainers[0].local, DpSgd)  # gradients are clipped example by example
        # precision is torch's, for all threads: it is set before they begin and set back after the last has ended
        how = full_precision(self.trainers[0].work.theta.device) if exact else coarse(self.precision)
        with how, ThreadPoolExecutor(count) as threads:
            parts = list(threads.map(train, range(count)))
        for message, info in (answer for part in parts for answer in part):
            yield message.to(home), info
