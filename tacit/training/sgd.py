"""Local training at one client: plain SGD as FedAvg runs it (McMahan et al. 2017), DP-SGD, and plain SGD whose update is noised.

Guarantee of `dp_sgd` (Algorithm 2, lines 8-15, of Naseri, Hayes, De Cristofaro 2022, arXiv:2009.03561): that of the mechanism it is
given (record level, add or remove one), for whoever sees the update. The batch is sampled, the sum noised and the bill written by
that one object. An empty batch still adds noise; the divisor is the expected batch. Whatever theta_0 is, there is an answer:
gradients without a finite norm count as zero, and an update that is not finite in the end, noise and all, is sent as zeros. What
`descent` does comes after the noise, so neither noise nor price know of it."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from tacit.errors import BadInput, TrainingDiverged
from tacit.privacy.mechanism import TrainingMechanism, bound
from tacit.random import Stream
from tacit.training.batches import Shifts, shuffled
from tacit.training.clipping import NotPrivate, Trained, Workspace
from tacit.training.flat import trainable
from tacit.training.optimizer import PLAIN, Descent, noise_growth
from tacit.types import Bounded, Client, Private, Raw

LOG = logging.getLogger(__name__)
Local = Callable[[Workspace, torch.Tensor, Client, Stream], Trained]


@dataclass(frozen=True)
class LocalSgd:
    """SGD with the settings of an experiment: how many steps a client takes, on which batches."""

    steps: Callable[[Client], int]
    batch_size: Callable[[Client], int]
    learning_rate: float
    descent: Descent = PLAIN

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "LocalSgd":
        return replace(self, descent=self.descent.for_round(round, correction))

    def __call__(self, work: Workspace, theta_0: torch.Tensor, client: Client, stream: Stream) -> Trained:
        how = {"learning_rate": self.learning_rate, "descent": self.descent, "stream": stream}
        return sgd(work, theta_0, client, steps=self.steps(client), batch_size=self.batch_size(client), **how)  # type: ignore


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
    """The sum of g_i min(1, C/|g_i|) over the drawn records; with `views` a record's g_i is the mean of its views."""
    offsets = None if views is None else views.offsets(stream, len(drawn))
    return clipped_rows(work, client.x, client.y, torch.from_numpy(drawn), views, offsets)


def clipped_rows(
    work: Workspace,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    views: Shifts | None,
    offsets: torch.Tensor | None,
) -> tuple[Bounded, NotPrivate]:
    """The same over the rows at these places; `offsets` are where their views begin."""
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
