"""Local training at one client: clipping by example, plain SGD as FedAvg runs it (McMahan et al. 2017), DP-SGD, and plain SGD whose
update is noised.

Guarantee of a clipped sum (Abadi et al. 2016, Algorithm 1, arXiv:1607.00133v2): one example more or less changes it by at most C in
Euclidean norm, rounding included (docs/derivations.md has the bound and its limits). `clipped_sum_slow` says what is computed,
`Clipper` computes it as fast as the model allows.

Guarantee of `dp_sgd` (Algorithm 2, lines 8-15, of Naseri, Hayes, De Cristofaro 2022, arXiv:2009.03561): that of the mechanism it is
given (record level, add or remove one), for whoever sees the update. The batch is sampled, the sum noised and the bill written by
that one object. An empty batch still adds noise; the divisor is the expected batch. Whatever theta_0 is, there is an answer:
gradients without a finite norm count as zero, and an update that is not finite in the end, noise and all, is sent as zeros. What
`descent` does comes after the noise, so neither noise nor price know of it."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn

from tacit import check
from tacit.errors import BadInput, ModelRefused, TrainingDiverged
from tacit.parts.losses import Losses, cross_entropy
from tacit.privacy.mechanism import TrainingMechanism, bound
from tacit.random import Stream
from tacit.training import per_example
from tacit.training.batches import Shifts, Viewed, counted, over_rows, over_views, own, rows_of, shuffled
from tacit.training.flat import blocks, flatten, fresh, frozen, hooked, trainable, training
from tacit.training.independence import reason_of
from tacit.training.layers import sum_type
from tacit.training.optimizer import PLAIN, Descent, full_precision, noise_growth
from tacit.training.per_example import MARGIN, OUT_OF_MEMORY, PATHS, Looped, Path, Watched, example_gradient, settle
from tacit.types import Bounded, Client, Private, Raw, Shared

LOG = logging.getLogger(__name__)
# of a clip: entries whose squares leave float32, below 2^-63, are missing from a norm: 1e-16 of 10^6 of them
SMALLEST = 1e-12
PROBED = 32  # examples that a path without a proof is tried with at once, where a physical batch holds so many


def clipped_sum_slow(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, clip: float, losses: Losses = cross_entropy
) -> torch.Tensor:
    """The slow twin: one example at a time, by autograd. Flat, in the order of `flat.blocks`."""
    total = torch.zeros(sum(parameter.numel() for _, parameter in trainable(model)), device=x.device)
    for i in range(len(y)):
        gradient, _ = example_gradient(model, x[i : i + 1], y[i : i + 1], losses)
        norm = gradient.norm()
        total += torch.where(norm.isfinite(), gradient * (clip * (1 - MARGIN) / norm).clamp(max=1.0), 0.0)
    return total


@dataclass(frozen=True)
class NotPrivate:
    """What the researcher may look at and nobody may release: exact facts about the examples of a batch."""

    norms: torch.Tensor = field(repr=False)
    losses: torch.Tensor = field(repr=False)
    clip: float

    @property
    def examples(self) -> int:
        return len(self.norms)

    @property
    def fraction_clipped(self) -> float:
        return float((self.norms > self.clip).float().mean()) if self.examples else 0.0

    @property
    def loss_sum(self) -> float:
        return float(self.losses.nan_to_num(0.0, 0.0, 0.0).sum())


class Clipper:
    """Sums the clipped per-example gradients of a model's loss; `losses` gives one number per example.
    The `path` is "book-keeping" where every operation is known to keep examples apart and every trainable parameter belongs to a
    layer with a rule, else "vmap", else "loop"; it is chosen on synthetic rows, and `reason` says why a faster one was not taken.
    Parameters may be changed in place between calls; what is frozen, and on "book-keeping" what the model computes, is read once.
    A caller who gives the rows `again` saves a copy of them.
    Guarantee: the vector changes by at most `clip` when an example comes or goes, whatever the example and the parameters: a
    gradient without a finite norm counts as zero. Nothing that is raised depends on values in x and y.
    Assumes: what the model computes of an example has the same bits whoever else is in the batch.
    Raises: ModelRefused for a model that mixes or remembers examples; BadInput.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clip: float,
        physical_batch: int = 256,
        path: str | None = None,
        losses: Losses = cross_entropy,
    ):
        check.positive(clip=clip)
        check.at_least(SMALLEST, clip=clip)
        check.at_least(1, physical_batch=physical_batch)
        if path is not None:
            check.one_of(PATHS, path=path)
        per_example.refuse(model)
        self.model, self.clip, self.physical_batch = model, float(clip), int(physical_batch)
        self.path: str | None = None
        self.reason, self.losses = "", losses
        self._names = tuple(PATHS) if path is None else (path,)
        self._first = next(model.parameters(), torch.zeros(0))
        self._size = sum(block.stop - block.start for block in blocks(model))
        self._settled: dict[object, tuple[str, Path, str]] = {}  # by what a choice may depend on, which is public

    def __call__(
        self, x: torch.Tensor, y: torch.Tensor, *, again: Callable[[], torch.Tensor] | None = None
    ) -> tuple[Bounded, NotPrivate]:
        if len(x) != len(y):
            raise BadInput(f"Expected as many labels as examples, got {len(y)} for {len(x)}.")
        with full_precision(x.device):
            public = (x.shape[1:], x.dtype, y.shape[1:], y.dtype, self.model.training)
            if public not in self._settled:
                most = min(self.physical_batch, PROBED)
                self._settled[public] = settle(self.model, self._names, x, y, losses=self.losses, most=most)
            self.path, path, self.reason = self._settled[public]
            try:
                return self._sum(path, x if again else x.clone(), y)
            except OUT_OF_MEMORY:
                raise
            except Exception:  # noqa: BLE001 - rows of this shape went through, so that it depends on values: no word about it
                rows = again() if again else x  # not the rows that were written into
                return self._sum(Looped(self.model, x, self.losses), rows, y)

    def _sum(self, path: Path, x: torch.Tensor, y: torch.Tensor) -> tuple[Bounded, NotPrivate]:
        x = x.contiguous()  # how rows lie would decide what a model that writes in place overwrites
        device = self._first.device
        total, facts = torch.zeros(self._size, device=device, dtype=sum_type(device, len(y))), []
        for i in range(0, len(y), self.physical_batch):
            part = slice(i, i + self.physical_batch)
            facts.append(path(x[part], y[part], clip=self.clip, out=total))
        nothing = torch.zeros(2, 0, device=device)
        norms, losses = facts[0] if len(facts) == 1 else map(torch.cat, zip(nothing, *facts, strict=True))
        return Bounded(total, self.clip), NotPrivate(norms, losses, self.clip)


# Where one process trains: a model whose trainable parameters are views into one vector, and the loss that trains it.

CLIENTS, ROWS = 3, 4  # made-up ones, by which a memory is looked for; each of several rows, for layers that need them
OWN_CODE = ("torch.nn.modules.", "tacit.parts.models")  # modules that remember in their buffers at most


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model and its flat trainable parameters `theta`; made once per process and used for every client it trains."""

    model: nn.Module
    theta: torch.Tensor
    clip: float | None
    physical_batch: int
    buffers: tuple[torch.Tensor, ...] = ()
    losses: Losses = cross_entropy
    # frozen parameters that code could write into, as they were
    kept: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def forget(self) -> None:
        """Sets buffers and frozen parameters back, so that no client meets what another one left in them."""
        for buffer, first in zip(self.model.buffers(), self.buffers, strict=True):
            buffer.copy_(first)
        for parameter, first in self.kept:
            if not torch.equal(parameter, first):  # a look is cheap, and leaves memory shared between processes
                parameter.data.copy_(first)

    def forgetful(self) -> nn.Module:
        """The model with these parameters, remembering no client: where its own code could, a copy that nobody has used."""
        self.forget()
        return fresh(self.model) if self._could_remember else self.model

    @cached_property
    def _could_remember(self) -> bool:
        return could_remember(self.model)

    def refuse_memory(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Raises: ModelRefused where what made-up clients train depends on who trained before, although each has a copy of its own.
        Of x and y only shape and type are used. Code of torch and Tacit is not tried: it does not remember."""
        if not self._could_remember:
            return

        def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            try:
                with per_example.same_chance(x.device), Watched():
                    return example_gradient(self.forgetful(), x.clone(), y, self.losses)[0]
            except Exception as error:
                raise ModelRefused(f"The model cannot be trained on made-up rows: {reason_of(error)}") from error

        rows, labels = per_example.synthetic(self.model, x, y, count=CLIENTS * ROWS)
        clients = list(zip(rows.split(ROWS), labels.split(ROWS), strict=True))
        with per_example.same_chance(x.device), per_example.drawn(self.model):
            gradients = [gradient(*client) for client in clients]
            again = [gradient(*client) for client in reversed(clients)]
        per_example.refuse_other_order(torch.stack(gradients), torch.stack(again[::-1]))

    @cached_property
    def clipped_sum(self) -> Clipper:
        return self._sums(self.model, self.losses)

    @cached_property
    def viewed_sum(self) -> Clipper:
        """The same for examples (views, ...) that come in several views: clipped is the mean over the views."""
        return self._sums(Viewed(self.model), over_views(self.losses))

    @cached_property
    def person_sum(self) -> Clipper:
        """The same for persons (rows, ...): clipped once is the mean over the rows that count."""
        return self._sums(Viewed(self.model), over_rows(self.losses))

    def _sums(self, model: nn.Module, losses: Losses) -> Clipper:
        if self.clip is None:
            raise ValueError("this workspace was made for training without clipping")
        return Clipper(model, clip=self.clip, physical_batch=self.physical_batch, losses=losses)


def workspace(
    model: nn.Module, *, clip: float | None, physical_batch: int, losses: Losses = cross_entropy
) -> Workspace:
    """Prepares a model for training; it is changed in place."""
    training(model)
    buffers = tuple(buffer.detach().clone() for buffer in model.buffers())
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    # a table with max_norm makes rows shorter in place when they are looked up
    guarded = could_remember(model) or any(table.max_norm is not None for table in tables)
    kept = tuple((p.detach(), p.detach().clone()) for _, p in frozen(model)) if guarded else ()
    return Workspace(model, flatten(model), clip, physical_batch, buffers, losses, kept)


def could_remember(model: nn.Module) -> bool:
    """Whether code runs in a model that is neither torch's nor Tacit's."""
    return any(hooked(m) or not type(m).__module__.startswith(OWN_CODE) for m in model.modules())


@dataclass(frozen=True)
class Trained:
    """What local training gives: the update, and numbers for the researcher that never leave the simulator."""

    update: Raw | Private | Shared | Bounded  # a bounded sum of records, which goes to a trusted server alone
    info: dict[str, float] = field(default_factory=dict)


# Training from one vector to another.

Local = Callable[[Workspace, torch.Tensor, Client, Stream], Trained]


@dataclass(frozen=True)
class LocalSgd:
    """SGD with the settings of an experiment. A rate gives each client a batch of its own, epochs its own steps."""

    steps: int
    batch_size: int
    learning_rate: float
    descent: Descent = PLAIN
    sampling_rate: float | None = None
    epochs: int | None = None

    def batch_and_steps(self, client: Client) -> tuple[int, int]:
        """How many rows are in a client's batches, and how many steps it takes."""
        batch = max(1, round(self.sampling_rate * client.size)) if self.sampling_rate else self.batch_size
        return batch, self.epochs * -(-client.size // batch) if self.epochs else self.steps

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "LocalSgd":
        return replace(self, descent=self.descent.for_round(round, correction))

    def __call__(self, work: Workspace, theta_0: torch.Tensor, client: Client, stream: Stream) -> Trained:
        batch, steps = self.batch_and_steps(client)
        how = {"learning_rate": self.learning_rate, "descent": self.descent, "stream": stream}
        return sgd(work, theta_0, client, steps=steps, batch_size=batch, **how)  # type: ignore


def sgd(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    stream: Stream,
    descent: Descent = PLAIN,
) -> Trained:
    """Runs `steps` steps on shuffled batches from theta_0 and returns the difference; a new shuffle every epoch. No privacy."""
    model, theta = work.forgetful(), work.theta.copy_(theta_0)
    params = [parameter for _, parameter in trainable(model)]
    moves, rate = descent.begin_each(model), learning_rate * descent.share
    loss = torch.zeros(())
    for rows in shuffled(stream, client.size, batch_size=batch_size, steps=steps):
        batch = torch.from_numpy(rows)
        loss = work.losses(model(client.x[batch]), client.y[batch]).mean()
        for parameter, gradient, move in zip(params, torch.autograd.grad(loss, params), moves, strict=True):
            parameter.data.add_(move(gradient, parameter.data), alpha=-rate)
    if not math.isfinite(last := float(loss.detach())):
        raise TrainingDiverged(f"The loss became {last}")
    return Trained(Raw(theta - theta_0.to(theta.device)), {"loss": last})


def attempt(local: Local, work: Workspace, theta: torch.Tensor, client: Client, stream: Stream) -> Trained:
    """What `local` trains from theta, or zeros. Guarantee: a finite update of theta's shape, whatever the rows and theta."""
    try:
        trained = local(work, theta, client, stream)
        vector = trained.update.vector
        if vector.shape == theta.shape and bool(vector.isfinite().all()):
            return trained
        reason = "its update has another shape" if vector.shape != theta.shape else "its update is not finite"
    except Exception as error:  # noqa: BLE001 - somebody else's training may raise anything; its words may quote a row
        reason = type(error).__name__
    LOG.warning("The training of %s failed (%s): a zero update takes its place.", client.id, reason)
    return Trained(Raw(torch.zeros_like(theta)), {"diverged": 1.0})


@dataclass(frozen=True)
class DpSgd:
    """`dp_sgd` with the settings of an experiment.
    Under a schedule the update is sent over the round's share of the learning rate, and the server multiplies by it again: so
    noise and differences of clients that a rule has seen in other rounds are in one unit.
    """

    learning_rate: float
    views: Shifts | None = None
    descent: Descent = PLAIN

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "DpSgd":
        return replace(self, descent=self.descent.for_round(round, correction))

    def __call__(
        self, work: Workspace, theta: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, stream: Stream
    ) -> Trained:
        how = {"learning_rate": self.learning_rate, "views": self.views, "descent": self.descent}
        return in_units(dp_sgd(work, theta, client, mechanism, **how, stream=stream), self.descent.share)  # type: ignore


def dp_sgd(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    mechanism: TrainingMechanism,
    *,
    learning_rate: float,
    stream: Stream,
    views: Shifts | None = None,
    descent: Descent = PLAIN,
) -> Trained:
    """Runs `mechanism.steps` steps from theta_0 and returns the difference. With `views` a record's gradient is their mean."""
    theta, p_D = work.theta.copy_(theta_0), mechanism.sampling_rate * client.size
    move, rate = descent.begin(theta_0.to(theta.device)), learning_rate * descent.share
    state, loss, seen, clipped = mechanism.init(), 0.0, 0, 0.0
    for _ in range(mechanism.steps):
        state, drawn = mechanism.sample(state, stream, client.size)  # line 11: each record with probability p
        total, info = clipped_batch(work, client, drawn, stream, views)
        state, noisy = mechanism.noise(state, stream, total)  # + N(0, (zC)^2 I)
        theta.add_(move(noisy.vector, theta, summed=p_D), alpha=-rate / p_D)  # line 14
        loss, seen = loss + info.loss_sum, seen + info.examples
        clipped += info.fraction_clipped * info.examples
    noise_std = rate / p_D * mechanism.noise_std * noise_growth(mechanism, descent, learning_rate=learning_rate)
    seen = max(seen, 1)
    update = finite(theta - theta_0.to(theta.device))
    return Trained(Private(update, noise_std), {"loss": loss / seen, "clipped": clipped / seen})


def clipped_batch(
    work: Workspace, client: Client, drawn: np.ndarray, stream: Stream, views: Shifts | None = None
) -> tuple[Bounded, NotPrivate]:
    """The sum of g_i min(1, C/|g_i|) over the drawn units: a record's g_i is its gradient, or with `views` the mean of its
    views'; a person's is the mean of its rows', of which at most so many are drawn anew each time."""
    places = drawn_rows(client, drawn, stream)
    offsets = None if views is None else views.offsets(stream, len(drawn))
    return clipped_rows(work, client.x, client.y, places, views, offsets)


def drawn_rows(client: Client, drawn: np.ndarray, stream: Stream, *, start: int = 0) -> torch.Tensor:
    """The places of a batch among rows of which the client's begin at `start`: of records, or (person, row)."""
    if client.persons is None:
        return torch.from_numpy(drawn + start)
    return torch.from_numpy(rows_of(client.persons, drawn, stream, start=start))


def clipped_rows(
    work: Workspace,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    views: Shifts | None,
    offsets: torch.Tensor | None,
) -> tuple[Bounded, NotPrivate]:
    """The same over the rows at these places; `offsets` are where their views begin."""
    if places.dim() > 1:
        rows = partial(x.__getitem__, own(places))
        return work.person_sum(rows(), counted(y, places), again=rows)
    rows = partial(x.__getitem__, places)
    if views is None or offsets is None:
        return work.clipped_sum(rows(), y[places], again=rows)

    def moved() -> torch.Tensor:
        return views.of(rows(), offsets)

    return work.viewed_sum(moved(), y[places], again=moved)


def finite(update: torch.Tensor) -> torch.Tensor:
    """The update, or zeros in its place where it left float32: it carries its noise, so that this releases nothing more."""
    return torch.where(update.isfinite().all(), update, torch.zeros((), device=update.device))


def in_units(trained: Trained, share: float) -> Trained:
    """A noised update in units of the first round's learning rate. Post-processing."""
    update = trained.update
    if share == 1.0 or not isinstance(update, Private):
        return trained
    return Trained(Private(finite(update.vector / share), update.noise_std / share), trained.info)


@dataclass(frozen=True)
class NoisedUpdate:
    """Client-level local DP: whatever `sgd` does, the whole update is clipped to C and noised, N(0, (zC)^2 I), before it leaves."""

    sgd: Local

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "NoisedUpdate":
        return NoisedUpdate(self.sgd.for_round(round, correction)) if isinstance(self.sgd, LocalSgd) else self

    def __call__(
        self, work: Workspace, theta: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, stream: Stream
    ) -> Trained:
        if (mechanism.sampling_rate, mechanism.steps) != (1.0, 1):
            raise BadInput(
                "A noised update is one release of all that the client has: it has no sampling to be priced."
            )
        trained = attempt(self.sgd, work, theta, client, stream)
        bounded = bound(trained.update.vector, clip=mechanism.clip)
        clipped = float(bounded.vector is not trained.update.vector)
        _, noised = mechanism.noise(mechanism.init(), stream, bounded)
        return Trained(noised, trained.info | {"clipped": clipped})
