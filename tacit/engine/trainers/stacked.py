"""DP-SGD of a whole cohort at once, for GPUs: every client is a row of one matrix of parameters.

The twin of `dp_sgd` (Algorithm 2, lines 8-15, of arXiv:2009.03561): the same batches and the same noise from the same
streams, so the two differ by float32 rounding only. Gradients are taken per client and per example by `torch.func`, so
nothing can mix; batches are filled up to the longest of the cohort with examples of weight zero. Guarantee: that of
each client's mechanism, which samples, adds the noise and names the price here as there.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.scaffold import correction_of
from tacit.build.release import ClientDerive
from tacit.data.population import Population
from tacit.digest import question_mark
from tacit.engine.trainers.processes import Reply, Trainer
from tacit.engine.wire import pack, unpack
from tacit.losses import Losses
from tacit.privacy.mechanism import NoiseState, TrainingMechanism
from tacit.random import Stream
from tacit.train.descent import noise_growth
from tacit.train.dp_sgd import DpSgd, finite, in_units
from tacit.train.flat import blocks
from tacit.train.fresh import fresh
from tacit.train.per_example import row_norms
from tacit.train.per_example_check import refuse, settle
from tacit.train.per_example_paths import clip_weights
from tacit.train.precision import full_precision
from tacit.train.views import Shifts, Viewed, over_views
from tacit.train.workspace import Trained, Workspace
from tacit.types import Bounded, Client, Private

MOST_FLOATS = 1 << 29  # 2 GiB of per-example gradients at once


def stackable(algorithm: LocalDP, work: Workspace, population: Population) -> bool:
    """Whether the model's gradients can be taken for many clients at once; tried on synthetic rows like every fast path."""
    if not isinstance(algorithm.local, DpSgd):
        return False
    refuse(work.model)
    views, x, y = algorithm.local.views, population.x[:3], population.y[:3]
    if views is not None:
        x = x[:, None].expand(-1, views.count, *x.shape[1:])
    return settle(_model(work, views), ("vmap", "loop"), x, y, losses=_losses(work, views))[0] == "vmap"


def stacked(algorithm: LocalDP, work: Workspace, population: Population, derive: ClientDerive) -> Trainer:
    """Trains the cohort in one go; clients with other numbers of local steps go after each other."""
    if not isinstance(algorithm.local, DpSgd):
        raise TypeError("only clients that run DP-SGD can be stacked")
    local = algorithm.local

    def trainer(received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        message, question = unpack(received), question_mark(received)
        clients = [population[index] for index in cohort]
        steps = [algorithm.mechanism(client).steps for client in clients]
        done: dict[int, Trained] = {}
        for count in sorted(set(steps)):
            group = [client for client, own in zip(clients, steps, strict=True) if own == count]
            streams = [derive(question, round, client, "train") for client in group]
            with torch.random.fork_rng(devices=[work.theta.device] if work.theta.is_cuda else []):
                torch.manual_seed(derive(question, round, group[0], "dropout").torch_seed())
                theta_0, control = message.tensors["params"], algorithm.server.control
                corrections = torch.stack([correction_of(message, client) for client in group]) if control else None
                told = local.told(round, corrections)
                trained = dp_sgd_stacked(work, theta_0, group, algorithm, streams, local=told)
            done |= {client.index: one for client, one in zip(group, trained, strict=True)}
        for client in clients:
            yield pack(algorithm.release(done[client.index], client, message)), done[client.index].info

    return trainer


def dp_sgd_stacked(
    work: Workspace,
    theta_0: torch.Tensor,
    clients: Sequence[Client],
    algorithm: LocalDP,
    streams: Sequence[Stream],
    *,
    local: DpSgd,
) -> list[Trained]:
    """Runs every client's steps from theta_0, all clients in step, and returns the differences."""
    mechanisms = [algorithm.mechanism(client) for client in clients]
    states = [mechanism.init() for mechanism in mechanisms]
    start = theta_0.to(work.theta.device)
    theta = start.repeat(len(clients), 1)
    p_D = torch.tensor([m.sampling_rate * c.size for m, c in zip(mechanisms, clients, strict=True)])
    model, losses_of = _model(work, local.views), _losses(work, local.views)
    move, summed = local.descent.begin(start), p_D[:, None].to(start.device)
    rates = (-local.learning_rate * local.descent.share / p_D).to(start.device)
    seen = torch.zeros(3, len(clients), device=start.device)  # loss, examples, clipped
    for _ in range(mechanisms[0].steps):
        x, y, mask = _batches(
            clients, mechanisms, states, streams, local.views
        )  # line 11: each record with probability p
        with full_precision(x.device):
            total = _clipped_sums(model, work, losses_of, theta, x, y, mask, seen)
        noisy = []
        for k, (mechanism, stream, row) in enumerate(zip(mechanisms, streams, total, strict=True)):
            states[k], noised = mechanism.noise(
                states[k], stream, Bounded(row, float(work.clip or 0))
            )  # + N(0, (zC)^2 I)
            noisy.append(noised.vector)
        theta.add_(move(torch.stack(noisy), theta, summed=summed) * rates[:, None])  # line 14
    return list(_results(mechanisms, theta - start, rates.tolist(), seen.cpu(), local))


def _model(work: Workspace, views: Shifts | None) -> nn.Module:
    return work.model if views is None else Viewed(work.model)


def _losses(work: Workspace, views: Shifts | None) -> Losses:
    return work.losses if views is None else over_views(work.losses)


def _batches(
    clients: Sequence[Client],
    mechanisms: Sequence[TrainingMechanism],
    states: list[NoiseState],
    streams: Sequence[Stream],
    views: Shifts | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clients' samples (client, example), filled up with examples that will weigh nothing; `states` go on in place."""
    drawn = []
    for k, (client, mechanism, stream) in enumerate(zip(clients, mechanisms, streams, strict=True)):
        states[k], batch = mechanism.sample(states[k], stream, client.size)
        drawn.append(batch)
    longest = max(1, *(len(batch) for batch in drawn))
    places = torch.zeros(len(drawn), longest, dtype=torch.long)
    mask = torch.zeros(len(drawn), longest)
    for row, batch in enumerate(drawn):
        places[row, : len(batch)] = torch.from_numpy(batch)
        mask[row, : len(batch)] = 1
    device = clients[0].x.device
    places = places.to(device)
    x = torch.stack([client.x[rows] for client, rows in zip(clients, places, strict=True)])
    y = torch.stack([client.y[rows] for client, rows in zip(clients, places, strict=True)])
    if views is not None:
        offsets = torch.zeros(*places.shape, views.count, 2, dtype=torch.long)
        for row, (stream, batch) in enumerate(zip(streams, drawn, strict=True)):
            offsets[row, : len(batch)] = views.offsets(stream, len(batch))
        x = views.of(x.flatten(0, 1), offsets.flatten(0, 1)).unflatten(0, places.shape)
    return x, y, mask.to(device)


def _clipped_sums(
    model: nn.Module,
    work: Workspace,
    losses_of: Losses,
    theta: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    mask: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """For each client the sum of g_i min(1, C/|g_i|) over its batch; counts what the researcher may look at."""
    clip, total = float(work.clip or 0), torch.zeros_like(theta)
    layout = blocks(model)
    params = {b.name: theta[:, b.start : b.stop].unflatten(1, b.shape) for b in layout}

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return losses_of(functional_call(copied, own, (x[None],)), y[None]).sum()

    per_example = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    per_client = vmap(per_example, randomness="different")
    whole = len(theta) * sum(
        parameter.numel() for parameter in model.parameters()
    )  # activations of a frozen body count too
    part = max(1, MOST_FLOATS // whole)
    for x_part, y_part, m in zip(x.split(part, 1), y.split(part, 1), mask.split(part, 1), strict=True):
        copied = fresh(model)  # remembers nothing of the part before
        found, losses = per_client(params, x_part, y_part)
        rows = [found[b.name].flatten(2) for b in layout]
        norms = torch.stack([row_norms(row) for row in rows]).square().sum(0).sqrt()
        weights = clip_weights(norms, clip) * m
        for block, row in zip(layout, rows, strict=True):
            total[:, block.start : block.stop] += torch.bmm(weights[:, None], torch.nan_to_num(row))[:, 0]
        seen += torch.stack([losses.nan_to_num(0.0, 0.0, 0.0) * m, m, (norms > clip) * m]).sum(2)
    return total


def _results(
    mechanisms: Sequence[TrainingMechanism],
    updates: torch.Tensor,
    rates: list[float],
    seen: torch.Tensor,
    local: DpSgd,
) -> Iterator[Trained]:
    for mechanism, update, rate, column in zip(mechanisms, updates, rates, seen.T, strict=True):
        loss, examples, clipped = column.tolist()
        growth = noise_growth(mechanism, local.descent, learning_rate=local.learning_rate)
        noise_std = -rate * mechanism.noise_std * growth
        info = {"loss": loss / max(examples, 1), "clipped": clipped / max(examples, 1)}
        yield in_units(Trained(Private(finite(update), noise_std), info), local.descent.share)
