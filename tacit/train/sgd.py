"""Plain SGD at one client, as FedAvg runs it (McMahan et al. 2017). No privacy."""

import math

import torch
from torch.nn.functional import cross_entropy

from tacit.errors import TrainingDiverged
from tacit.random import Stream
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Raw


def sgd(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    stream: Stream,
) -> Trained:
    """Runs `steps` steps on shuffled batches from theta_0 and returns the difference; a new shuffle every epoch."""
    theta = work.theta.copy_(theta_0)
    params = [p for p in work.model.parameters() if p.requires_grad]
    rng, order, loss = stream.generator(), [], torch.zeros(())
    for _ in range(steps):
        if not order:
            order = list(torch.from_numpy(rng.permutation(client.size)).split(batch_size))[::-1]
        batch = order.pop()
        loss = cross_entropy(work.model(client.x[batch]), client.y[batch])
        for parameter, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
            parameter.data.add_(gradient, alpha=-learning_rate)
    if not math.isfinite(last := float(loss.detach())):
        raise TrainingDiverged(f"The loss became {last}")
    return Trained(Raw(theta - theta_0.to(theta.device)), {"loss": last})
