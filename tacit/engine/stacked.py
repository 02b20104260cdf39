"""Trains a whole cohort at once: every client is a row of one matrix of parameters, its rows are places in one tensor.

Clients that run DP-SGD are sampled, clipped, summed and noised in step (`InStep`); those of plain SGD are trained in step, and what
their algorithm then does to an update is its own code. The streams are those of `OneByOne`: the two differ by float32 rounding,
and by noise that is drawn on the device. Guarantee: that of each client's mechanism."""

import copy
import dataclasses
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
from tacit.engine.summed import begin_sums, settle_sums
from tacit.engine.trainers import Carried, ClientDerive, OverTensors, Pending, Task, task, task_of, workspace_of
from tacit.errors import TacitError, TrainingDiverged
from tacit.privacy.local import DRAWN_AT_ONCE, row_noise
from tacit.privacy.mechanism import TrainingMechanism
from tacit.random import Stream
from tacit.training.batches import Batches, Shifts, Viewed, filled, later, over_views, sent, shuffled_cohort
from tacit.training.fused import DeviceStream, add_normals_, keys_of
from tacit.training.independence import Unsupported
from tacit.training.optimizer import Motion, coarse, full_precision, noise_growth
from tacit.training.sgd import DpSgd, LocalSgd, NoisedUpdate, Trained, Workspace, in_units
from tacit.training.stacked import Captured, dp_sgd_step, dp_sgd_steps, sgd_steps, stack_of
from tacit.types import Bounded, Client, Message, Private, Raw
from tacit.wire import digest_of, pack, unpack

LOG = logging.getLogger(__name__)
FIRST = 4  # of a cohort on a device, which part is trained first: meanwhile the batches of the others are drawn
FOLD = 4  # batches of other sizes are filled up to a multiple of this at least
Finish = Callable[[], list[Carried]]
Pair = tuple[torch.Tensor, torch.Tensor]


def started(working: Iterator[Any]) -> Iterator[Any]:
    """A generator that has come to its first yield, where it has read nothing. What it raised before is raised when it is read,
    which is after the charge."""

    def raising(error: Exception) -> Iterator[Any]:
        raise error
        yield

    try:
        next(working)
    except Exception as error:  # noqa: BLE001
        return raising(error)
    return working


def _after_start(working: Iterator[Any]) -> Iterator[Any]:
    next(working)
    yield from working


class Stacked(OverTensors):
    """The trainer. `chunk` is how many clients are trained at once.
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
        self._recorded: dict[Any, Captured] = {}
        self.sums_records = isinstance(algorithm, RecordSums | SecretRecordSums)
        local: Any = getattr(algorithm, "local", None)
        self.local: Any = local.sgd if isinstance(local, NoisedUpdate) else local  # LocalSgd or DpSgd
        if self.sums_records:  # at one model, so that there is nothing to stack
            self.work = dataclasses.replace(work, physical_batch=work.physical_batch * chunk)  # so many of each client
            settle_sums(algorithm, self.work, population)  # here: how gradients are clipped is found out in one thread
            return
        if type(self.local) not in (DpSgd, LocalSgd):
            raise Unsupported("its clients run somebody else's training")
        if isinstance(getattr(getattr(algorithm, "server", None), "control", None), MeanRegularised):
            raise Unsupported("each client's round begins with a model of its own (personal.when)")
        if population.persons is not None:
            raise Unsupported("a person's rows are drawn and averaged before they are clipped, client by client")
        views = self.local.views if isinstance(self.local, DpSgd) else None
        x, y = population.x[:3], population.y[:3]
        if views is None:
            self.stack = stack_of(work.model, x, y, work.losses)
        else:
            shown = x[:, None].expand(-1, views.count, *x.shape[1:])
            self.stack = stack_of(Viewed(work.model), shown, y, over_views(work.losses))

    @property
    def width(self) -> int:  # what the number of clients is filled up to a multiple of, so that shapes repeat
        return max(1, self.chunk // 16)

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        """As every trainer; a device is at work before this returns, and what goes wrong there is raised when it is read.
        A mechanism that noises each client alone may be somebody else's code, which reads what it noises: it waits."""
        working = self._working(message, self.question(message), round, cohort)
        if self.work.theta.is_cuda and self._noised_there(cohort):
            return started(working)
        return _after_start(working)

    def question(self, received: Message) -> str:  # where a start cannot be repeated, noise is keyed by this call alone
        return digest_of("question", pack(received)) if self.repeats else uuid.uuid4().hex

    def _noised_there(self, cohort: Sequence[int]) -> bool:
        algorithm, clients = self.algorithm, [self.population[index] for index in cohort]
        if not isinstance(self.local, DpSgd) or not isinstance(algorithm, LocalDP):
            return True
        streams = [self.derive("", 0, client, "kind") for client in clients[:1]]
        return noised_there([algorithm.mechanism(client) for client in clients], streams)

    def answers(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Carried]:
        return _after_start(self._working(received, question, round, cohort))

    def _working(self, received: Message, question: str, round: int, cohort: Sequence[int]) -> Iterator[Any]:
        message, at, silent = in_round(received, round), 0, True
        begun: Finish | None = None
        while at < len(cohort):
            several = self.chunk
            if not at and self.work.theta.is_cuda:
                several = max(1, self.chunk // FIRST // self.width) * self.width
            clients, after = [self.population[index] for index in cohort[at : at + several]], None
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

    def _one_by_one(self, received: Message, question: str, round: int, clients: Sequence[Client]) -> list[Carried]:
        train, home = task(self.algorithm, self.work, self.population, self.derive), self.work.theta.device
        message = received.to(torch.device("cpu"))
        replies = [train(message, question, round, client.index) for client in clients]
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
        streams: list[Any] = [cache(partial(self.derive, question, round, client)) for client in clients]
        if self.sums_records:
            algorithm: Any = self.algorithm
            if type(algorithm) not in (RecordSums, SecretRecordSums):  # somebody's steps are hooked into it
                return partial(self._one_by_one, received, question, round, clients)
            with chance(self.work.theta.device, streams[0]("dropout").torch_seed()):
                return begin_sums(algorithm, self.work, self.population, received, clients, streams)
        theta, device = received.tensors["params"].to(self.work.theta.device), self.work.theta.device
        drawn, local = [derive("train") for derive in streams], self.local.for_round(round, None)
        server, corrections = getattr(self.algorithm, "server", None), None
        if server is not None and server.control:
            corrections = torch.stack([correction_of(received, client) for client in clients]).to(device)
        with chance(device, streams[0]("dropout").torch_seed()):
            if isinstance(local, LocalSgd):
                updates, losses = self._plain(local, theta, clients, drawn, corrections)
                return self._finish(updates, losses, received, clients, streams, round)
            algorithm = self.algorithm  # of local DP
            mechanisms, groups = [algorithm.mechanism(client) for client in clients], []
            for steps in sorted({mechanism.steps for mechanism in mechanisms}):
                group = [k for k, mechanism in enumerate(mechanisms) if mechanism.steps == steps]
                own: Any = [[one[k] for k in group] for one in (clients, mechanisms, drawn)]
                own.append(corrections[group] if corrections is not None else None)
                groups.append((group, InStep(self, local, theta, *own).begin()))

        def released() -> list[Carried]:
            done = {k: trained for places, results in groups for k, trained in zip(places, results(), strict=True)}
            pairs = [(done[k], client) for k, client in enumerate(clients)]
            return [(self.algorithm.release(trained, client, received), trained.info) for trained, client in pairs]

        return released

    def _plain(
        self,
        local: LocalSgd,
        theta: torch.Tensor,
        clients: Sequence[Client],
        streams: Sequence[Stream],
        corrections: torch.Tensor | None,
    ) -> Pair:
        idle = -len(clients) % self.width if theta.is_cuda else 0  # rows of nobody, which fill a cohort up
        starts = [int(self.population.offsets[client.index]) for client in clients] + [0] * idle
        shapes = [(client.size, *local.batch_and_steps(client)) for client in clients]
        batches, uneven = shuffled_cohort(streams, shapes, starts)
        batches, rate = batches.to(theta.device), theta.new_full((), local.learning_rate * local.descent.share)
        how = {"descent": dataclasses.replace(local.descent, correction=None), "uneven": uneven}
        steps = partial(sgd_steps, self.stack, **how)
        more = () if corrections is None else (torch.cat([corrections, corrections.new_zeros(idle, len(theta))]),)
        with coarse(self.precision):
            updates, losses = self.play(("plain", uneven), steps, theta, batches, rate, *more)
        return updates[: len(clients)], losses[: len(clients)]

    def _finish(
        self,
        updates: torch.Tensor,
        losses: torch.Tensor,
        received: Message,
        clients: Sequence[Client],
        streams: Sequence[Callable[[str], Stream]],
        round: int,
    ) -> Finish:
        algorithm: Any = self.algorithm
        least, most = updates.aminmax(dim=1)  # both are NaN where anything is
        sound = least.isfinite() & most.isfinite() & losses.isfinite()
        scales = algorithm.scale_rows_(updates, received) if isinstance(algorithm, CentralDP) else None
        facts = later(torch.stack([losses, sound.to(losses.dtype)] + ([] if scales is None else [scales])))

        def finished() -> list[Carried]:
            numbers, fine, *scaled = facts()
            if not all(fine):
                updates.masked_fill_(~sound[:, None], 0.0)  # in place: no row decides how much memory is asked for
            infos = [{"loss": loss} if good else {"diverged": 1.0} for loss, good in zip(numbers, fine, strict=True)]
            if isinstance(algorithm, FedAvg):
                if not all(fine):
                    raise TrainingDiverged(
                        f"The training of client {clients[fine.index(0.0)].id} diverged in round {round + 1}: lower"
                        " train.learning_rate; the last good checkpoint is kept."
                    )
                return algorithm.released_rows(updates, infos, clients, received)
            if isinstance(algorithm, CentralDP):
                # what is zero now is within every clip
                own = [s if good else 1.0 for s, good in zip(scaled[0], fine, strict=True)] if scaled else None
                return algorithm.released_rows(updates, infos, clients, received, scales=own)
            answers = []
            for client, update, info, derive in zip(clients, updates, infos, streams, strict=True):
                given: Any = partial(lambda trained, *_, **__: trained, Trained(Raw(update), info))
                local = NoisedUpdate(given) if isinstance(algorithm, LocalDP) else given
                trained = dataclasses.replace(algorithm, local=local).train(self.work, received, client, derive)
                answers.append((algorithm.release(trained, client, received), trained.info))
            return answers

        return finished

    def play(
        self, name: Any, steps: Callable[..., Any], theta: torch.Tensor, batches: Batches, *more: torch.Tensor
    ) -> Any:
        """Runs `steps`, recorded under its name, on the population's rows."""
        if name not in self._recorded:
            x, y = self.population.x, self.population.y
            self._recorded[name] = Captured(lambda start, *rest: steps(start, x, y, *rest))
        return self._recorded[name](theta, batches.places, batches.mask, *more)


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


@dataclass(frozen=True, eq=False)
class InStep:
    """DP-SGD of clients that take as many steps, from `theta` (Algorithm 2, lines 8-15, of arXiv:2009.03561). Guarantee: that
    of each client's mechanism. It samples and noises here as in `dp_sgd`; the sums are labelled with the clip that bounded
    them, and a mechanism made for another one refuses. Where noise is drawn on the device, its deviation is read off the
    mechanism whose event is charged (`row_noise`); any other mechanism than `SampledGaussian` noises each client itself."""

    trainer: Stacked
    local: DpSgd  # of the round
    theta: torch.Tensor
    clients: Sequence[Client]
    mechanisms: Sequence[TrainingMechanism]
    streams: Sequence[Stream]
    corrections: torch.Tensor | None  # SCAFFOLD's, one row for each

    def begin(self) -> Callable[[], list[Trained]]:
        """Sets them to work. What is returned waits for the device, and gives what each has trained."""
        local, pairs = self.local, list(zip(self.mechanisms, self.clients, strict=True))
        expected = np.array([mechanism.sampling_rate * client.size for mechanism, client in pairs])
        rates = local.learning_rate * local.descent.share / expected
        numbers = [sent(torch.from_numpy(part).to(self.theta.dtype), self.theta.device) for part in (rates, expected)]
        with full_precision(self.theta.device):
            updates, seen = self._there(*numbers) if self._on_device() else self._here(*numbers)
        updates = torch.where(updates.isfinite().all(1, keepdim=True), updates, 0.0)  # `sgd.finite`, for all at once
        seen_later = later(seen.T)

        def trained() -> list[Trained]:
            results = []
            each = zip(self.mechanisms, updates, rates.tolist(), seen_later(), strict=True)
            for mechanism, update, rate, (loss, examples, clipped) in each:
                growth = noise_growth(mechanism, local.descent, learning_rate=local.learning_rate)
                info = {"loss": loss / max(examples, 1), "clipped": clipped / max(examples, 1)}
                one = Trained(Private(update, rate * mechanism.noise_std * growth), info)
                results.append(in_units(one, local.descent.share))
            return results

        return trained

    def _on_device(self) -> bool:
        return self.theta.is_cuda and noised_there(self.mechanisms, self.streams)

    def _filled(self, drawn: Sequence[Sequence[np.ndarray]], *, fold: int = 1) -> Batches:
        starts = [int(self.trainer.population.offsets[client.index]) for client in self.clients]
        return filled(drawn, starts, fold=fold).to(self.theta.device)

    def _there(self, rates: torch.Tensor, summed: torch.Tensor) -> Pair:
        trios = list(zip(self.clients, self.mechanisms, self.streams, strict=True))
        drawn = [
            [mechanism.sample(mechanism.init(), stream, client.size)[1] for _ in range(mechanism.steps)]
            for client, mechanism, stream in trios
        ]
        clip, stack, keys = (
            float(self.trainer.work.clip or 0),
            self.trainer.stack,
            keys_of(self.streams, self.theta.device),
        )
        own: Any = self.mechanisms  # each a SampledGaussian, by `_on_device`
        stds = sent(row_noise(own, clip=clip), self.theta.device)
        longest = max(len(batch) for batches in drawn for batch in batches)
        batches = self._filled(drawn, fold=max(FOLD, 1 << max(0, longest.bit_length() - 5)))
        how = {"descent": dataclasses.replace(self.local.descent, correction=None), "clip": clip}
        views, corrected = self.local.views, self.corrections is not None

        def steps(start: torch.Tensor, *rest: torch.Tensor) -> Pair:
            x, y, places, mask, rates, summed, keys, stds, *more = rest
            own = more.pop(0) if corrected else None
            shown = None if views is None else partial(_shown, views, more.pop(0))

            def noise(sums: torch.Tensor, step: int) -> torch.Tensor:
                return add_normals_(sums, stds, keys, step)

            return dp_sgd_steps(stack, start, x, y, places, mask, rates, summed, own, **how, noise=noise, shown=shown)

        more = [] if self.corrections is None else [self.corrections]
        more += [] if views is None else [self._offsets(batches, drawn)]
        return self.trainer.play("private", steps, self.theta, batches, rates, summed, keys, stds, *more)

    def _offsets(self, batches: Batches, drawn: Sequence[Sequence[np.ndarray]]) -> torch.Tensor:
        views: Any = self.local.views
        offsets = torch.zeros(*batches.places.shape, views.count, 2, dtype=torch.long)
        for k, (stream, own) in enumerate(zip(self.streams, drawn, strict=True)):
            for step, batch in enumerate(own):
                offsets[step, k, : len(batch)] = views.offsets(stream, len(batch))
        return sent(offsets, self.theta.device)

    def _here(self, rates: torch.Tensor, summed: torch.Tensor) -> Pair:
        stack, population, clip = self.trainer.stack, self.trainer.population, float(self.trainer.work.clip or 0)
        states = [mechanism.init() for mechanism in self.mechanisms]
        rows, seen = stack.rows(self.theta, len(self.clients)), self.theta.new_zeros(3, len(self.clients))
        move = Motion(self.local.descent, self.theta, self.corrections)

        def noise(sums: torch.Tensor) -> torch.Tensor:
            noisy = []
            for k, (mechanism, stream, row) in enumerate(zip(self.mechanisms, self.streams, sums, strict=True)):
                states[k], noised = mechanism.noise(states[k], stream, Bounded(row, clip))  # + N(0, (zC)^2 I)
                noisy.append(noised.vector)
            return torch.stack(noisy)

        trios = list(zip(self.clients, self.mechanisms, self.streams, strict=True))
        for _ in range(self.mechanisms[0].steps):
            drawn = []
            for k, (client, mechanism, stream) in enumerate(trios):
                states[k], batch = mechanism.sample(states[k], stream, client.size)  # line 11: each with probability p
                drawn.append([batch])
            batches = self._filled(drawn)
            x, y = population.x[batches.places[0]], population.y[batches.places[0]]
            if self.local.views is not None:
                x = _shown(self.local.views, self._offsets(batches, drawn), x, 0)
            at = (stack, rows, seen, x, y, batches.mask[0], rates, summed, move)
            dp_sgd_step(*at, clip=clip, noise=noise)
        return rows - self.theta, seen


def noised_there(mechanisms: Sequence[TrainingMechanism], streams: Sequence[Stream]) -> bool:
    """Whether a device draws the noise: of mechanisms that it knows, and of streams that a seeded simulation has."""
    plain = all(type(mechanism) in DRAWN_AT_ONCE for mechanism in mechanisms)
    return plain and all(isinstance(stream, DeviceStream) for stream in streams)


def _shown(views: Shifts, offsets: torch.Tensor, x: torch.Tensor, step: int) -> torch.Tensor:
    return views.of(x.flatten(0, 1), offsets[step].flatten(0, 1)).unflatten(0, x.shape[:2])


# Cohorts that one stack does not train alone: some clients are malicious, or there are several devices.


def stacked(parts: Parts) -> OverTensors:
    """Trains `parts.together` clients at once, on each of the run's devices; malicious ones alone.
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
    """`stack` trains the honest clients at once, `alone` each of the `malicious`; replies keep the cohort's order.
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
        count, home = len(self.trainers), received.tensors["params"].device
        cuts = [len(cohort) * k // count for k in range(count + 1)]

        def train(k: int) -> list[Carried]:
            part, device = cohort[cuts[k] : cuts[k + 1]], self.trainers[k].work.theta.device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # of this thread, for kernels
                return list(self.trainers[k].answers(received, question, round, part)) if part else []

        exact = not isinstance(self.trainers[0].local, LocalSgd)  # gradients are clipped example by example
        # precision is torch's, for all threads: it is set before they begin and set back after the last has ended
        how = full_precision(self.trainers[0].work.theta.device) if exact else coarse(self.precision)
        with how, ThreadPoolExecutor(count) as threads:
            parts = list(threads.map(train, range(count)))
        for message, info in (answer for part in parts for answer in part):
            yield message.to(home), info
