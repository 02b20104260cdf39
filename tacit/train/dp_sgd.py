"""DP-SGD at one client: Algorithm 2, lines 8-15, of Naseri, Hayes, De Cristofaro 2022 (arXiv:2009.03561).

Guarantee: that of the mechanism it is given (record level, add or remove one), for whoever sees the update. The batch
is sampled, the sum noised and the bill written by that one object. An empty batch still adds noise; the divisor is the
expected batch. Whatever theta_0 is, there is an answer: gradients without a finite norm count as zero, and an update that is not
finite in the end, noise and all, is sent as zeros.
"""

from dataclasses import dataclass
from functools import partial

import torch

from tacit.privacy.mechanism import TrainingMechanism
from tacit.random import Stream
from tacit.train.views import Shifts
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Private


def dp_sgd(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    mechanism: TrainingMechanism,
    *,
    learning_rate: float,
    stream: Stream,
    views: Shifts | None = None,
) -> Trained:
    """Runs `mechanism.steps` steps from theta_0 and returns the difference. With `views` a record's gradient is their mean."""
    theta, p_D = work.theta.copy_(theta_0), mechanism.sampling_rate * client.size
    state, loss, seen, clipped = mechanism.init(), 0.0, 0, 0.0
    for _ in range(mechanism.steps):
        state, drawn = mechanism.sample(state, stream, client.size)  # line 11: each record with probability p
        batch = torch.from_numpy(drawn)
        y, rows = client.y[batch], partial(client.x.__getitem__, batch)
        if views is None:
            total, info = work.clipped_sum(rows(), y, again=rows)  # sum of g_i min(1, C/|g_i|)
        else:
            offsets = views.offsets(stream, len(batch))
            moved = partial(lambda rows, offsets: views.of(rows(), offsets), rows, offsets)
            total, info = work.viewed_sum(moved(), y, again=moved)
        state, noisy = mechanism.noise(state, stream, total)  # + N(0, (zC)^2 I)
        theta.add_(noisy.vector, alpha=-learning_rate / p_D)  # line 14
        for part in work.frozen:
            theta[part] = theta_0[part]
        loss, seen = loss + info.loss_sum, seen + info.examples
        clipped += info.fraction_clipped * info.examples
    noise_std = learning_rate / p_D * mechanism.noise_std * mechanism.noise_growth
    seen = max(seen, 1)
    update = finite(theta - theta_0.to(theta.device))
    return Trained(Private(update, noise_std), {"loss": loss / seen, "clipped": clipped / seen})


def finite(update: torch.Tensor) -> torch.Tensor:
    """The update, or zeros in its place where it left float32: it carries its noise, so that this releases nothing more."""
    return torch.where(update.isfinite().all(), update, torch.zeros((), device=update.device))


@dataclass(frozen=True)
class DpSgd:
    """`dp_sgd` at one learning rate: how a client trains where the noise stands in every step."""

    learning_rate: float
    views: Shifts | None = None

    def __call__(
        self, work: Workspace, theta: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, stream: Stream
    ) -> Trained:
        rate, views = self.learning_rate, self.views
        return dp_sgd(work, theta, client, mechanism, learning_rate=rate, stream=stream, views=views)
