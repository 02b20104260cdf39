"""DP-SGD at one client: Algorithm 2, lines 8-15, of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561).

Guarantee: that of the mechanism it is given (record level, add or remove one), for whoever sees the update. The batch
is sampled, the sum noised and the bill written by that one object. An empty batch still adds noise; the divisor is the
expected batch. Whatever theta_0 is, there is an answer: gradients without a finite norm count as zero, and an update that is not
finite in the end, noise and all, is sent as zeros. Momentum, weight decay, the proximal term, SCAFFOLD's correction and the
schedule of the learning rate (`descent`) come after the noise, so neither noise nor price know of them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit.errors import BadInput
from tacit.privacy.mechanism import TrainingMechanism, bound
from tacit.random import Stream
from tacit.training.batches import Shifts
from tacit.training.clipping import NotPrivate, Trained, Workspace
from tacit.training.optimizer import PLAIN, Descent, noise_growth
from tacit.training.sgd import Local, LocalSgd, attempt
from tacit.types import Bounded, Client, Private


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
    batch = torch.from_numpy(drawn)
    y, rows = client.y[batch], partial(client.x.__getitem__, batch)
    if views is None:
        return work.clipped_sum(rows(), y, again=rows)
    offsets = views.offsets(stream, len(batch))
    moved = partial(lambda rows, offsets: views.of(rows(), offsets), rows, offsets)
    return work.viewed_sum(moved(), y, again=moved)


def finite(update: torch.Tensor) -> torch.Tensor:
    """The update, or zeros in its place where it left float32: it carries its noise, so that this releases nothing more."""
    return torch.where(update.isfinite().all(), update, torch.zeros((), device=update.device))


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
        how: dict[str, Any] = {"learning_rate": self.learning_rate, "views": self.views, "descent": self.descent}
        return in_units(dp_sgd(work, theta, client, mechanism, **how, stream=stream), self.descent.share)


def in_units(trained: Trained, share: float) -> Trained:
    """A noised update in units of the first round's learning rate. Post-processing."""
    update = trained.update
    if share == 1.0 or not isinstance(update, Private):
        return trained
    return Trained(Private(finite(update.vector / share), update.noise_std / share), trained.info)


# Client-level local DP at one client: plain SGD, then the whole update is clipped and noised before it leaves.


def noised_update(
    work: Workspace, theta_0: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, sgd: Local, stream: Stream
) -> Trained:
    """Trains from theta_0 and returns the difference, clipped to C, plus N(0, (zC)^2 I)."""
    if (mechanism.sampling_rate, mechanism.steps) != (1.0, 1):
        raise BadInput("A noised update is one release of all that the client has: it has no sampling to be priced.")
    trained = attempt(sgd, work, theta_0, client, stream)
    bounded = bound(trained.update.vector, clip=mechanism.clip)
    clipped = float(bounded.vector is not trained.update.vector)
    _, noised = mechanism.noise(mechanism.init(), stream, bounded)
    return Trained(noised, trained.info | {"clipped": clipped})


@dataclass(frozen=True)
class NoisedUpdate:
    """`noised_update` of one kind of training: whatever that does, the whole of it is clipped and noised."""

    sgd: Local

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "NoisedUpdate":
        return NoisedUpdate(self.sgd.for_round(round, correction)) if isinstance(self.sgd, LocalSgd) else self

    def __call__(
        self, work: Workspace, theta: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, stream: Stream
    ) -> Trained:
        return noised_update(work, theta, client, mechanism, sgd=self.sgd, stream=stream)
