"""Plain SGD at one client, as FedAvg runs it (McMahan et al. 2017). No privacy."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tacit.errors import TrainingDiverged
from tacit.random import Stream
from tacit.train.batches import shuffled
from tacit.train.descent import PLAIN, Descent
from tacit.train.flat import trainable
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Raw


@dataclass(frozen=True)
class LocalSgd:
    """SGD with the settings of an experiment: how many steps a client takes, on which batches."""

    steps: Callable[[Client], int]
    batch_size: Callable[[Client], int]
    learning_rate: float
    descent: Descent = PLAIN

    def told(self, round: int, correction: torch.Tensor | None = None) -> "LocalSgd":
        """The training of one round."""
        return replace(self, descent=self.descent.told(round, correction))

    def __call__(self, work: Workspace, theta_0: torch.Tensor, client: Client, stream: Stream) -> Trained:
        """Trains one client."""
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
