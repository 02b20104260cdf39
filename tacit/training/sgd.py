"""Plain SGD at one client, as FedAvg runs it (McMahan et al. 2017). No privacy."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tacit.errors import TrainingDiverged
from tacit.random import Stream
from tacit.training.batches import shuffled
from tacit.training.clipping import Trained, Workspace
from tacit.training.flat import trainable
from tacit.training.optimizer import PLAIN, Descent
from tacit.types import Client, Raw


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
        settings: dict[str, Any] = {"steps": self.steps(client), "batch_size": self.batch_size(client)}
        settings |= {"learning_rate": self.learning_rate, "descent": self.descent}
        return sgd(work, theta_0, client, **settings, stream=stream)


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
    """Runs `steps` steps on shuffled batches from theta_0 and returns the difference; a new shuffle every epoch."""
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


# Local training that always has an outcome: where it fails or leaves float32, the update is zero.

LOG = logging.getLogger(__name__)
Local = Callable[[Workspace, torch.Tensor, Client, Stream], Trained]


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
