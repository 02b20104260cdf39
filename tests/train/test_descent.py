"""Momentum, weight decay, the proximal term and schedules: as torch takes its steps, and free of charge under DP."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from statistical import has_std, is_normal, is_poisson_sampling
from torch import nn

from tacit.errors import BadInput
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training.batches import shuffled
from tacit.training.optimizer import PLAIN, Cosine, Descent, Step
from tacit.training.sgd import DpSgd, dp_sgd, sgd, workspace
from tacit.types import Budget, Client

SIZE, RATE = 40, 0.3
WAYS = [
    Descent(momentum=0.9),
    Descent(weight_decay=0.2),
    Descent(momentum=0.8, weight_decay=0.1),
    Descent(proximal=0.7),
    Descent(momentum=0.5, weight_decay=0.1, proximal=0.4),
]


def make(clip=None, features=12, scale=1.0, frozen=()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 3))
    for part in frozen:
        model[part].requires_grad_(False)
    work = workspace(model, clip=clip, physical_batch=256)
    x, y = scale * torch.randn(SIZE, features), torch.randint(3, (SIZE,))
    return work, work.theta.clone(), Client(0, "a", Budget(1.0, 1e-5), x, y)


def by_torch(work, theta, client, how, *, steps, correction):
    """The slow twin: torch's own optimiser, and FedProx's term (and SCAFFOLD's) as part of the loss."""
    work.theta.copy_(theta)
    params = list(work.model.parameters())
    optimizer = torch.optim.SGD(params, lr=RATE, momentum=how.momentum, weight_decay=how.weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        w = torch.cat([p.reshape(-1) for p in params])
        loss = nn.functional.cross_entropy(work.model(client.x), client.y)
        loss = loss + how.proximal / 2 * (w - theta).square().sum()
        loss = loss if correction is None else loss + w @ correction
        loss.backward()
        optimizer.step()
    return work.theta - theta


def plainly(work, theta, client, how, *, steps, batch=SIZE):
    given = {"steps": steps, "batch_size": batch, "learning_rate": RATE, "stream": seeded(0)("a")}
    return sgd(work, theta, client, **given, descent=how).update.vector


def privately(work, theta, client, how, *, steps, z=1e-9, clip=1e6, rate=1.0):
    mechanism = SampledGaussian(noise_multiplier=z, clip=clip, sampling_rate=rate, steps=steps)
    return dp_sgd(work, theta, client, mechanism, learning_rate=RATE, stream=seeded(0)("a"), descent=how).update


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_plain_training_and_private_training_without_noise_or_clipping_take_the_steps_of_torch(how, corrected):
    work, theta, client = make(clip=1e6)
    correction = torch.linspace(-1, 1, len(theta)) if corrected else None
    expected = by_torch(work, theta, client, how, steps=7, correction=correction)
    how = dataclasses.replace(how, correction=correction)
    ours = plainly(work, theta, client, how, steps=7)
    assert torch.allclose(ours, expected, atol=1e-5)
    assert torch.allclose(privately(work, theta, client, how, steps=7, z=1e-12).vector, expected, atol=1e-5)
    assert not torch.allclose(ours, plainly(work, theta, client, PLAIN, steps=7), atol=1e-2)


def test_plain_steps_have_the_bits_that_they_had_without_a_descent():
    work, theta, client = make(clip=0.5)
    mechanism, stream = SampledGaussian(1.0, 0.5, 0.4, 5), seeded(0)("a")
    work.theta.copy_(theta)
    for _ in range(5):
        _, drawn = mechanism.sample({}, stream, SIZE)
        batch = torch.from_numpy(drawn)
        total, _ = work.clipped_sum(client.x[batch], client.y[batch])
        _, noisy = mechanism.noise({}, stream, total)
        work.theta.add_(noisy.vector, alpha=-RATE / (0.4 * SIZE))
    expected = (work.theta - theta).clone()
    found = privately(work, theta, client, PLAIN, steps=5, z=1.0, clip=0.5, rate=0.4)
    assert torch.equal(found.vector, expected)
    assert found.noise_std == RATE / (0.4 * SIZE) * 0.5 * 5**0.5

    params = list(work.model.parameters())
    work.theta.copy_(theta)
    for rows in shuffled(seeded(0)("a"), SIZE, batch_size=16, steps=5):
        batch = torch.from_numpy(rows)
        loss = nn.functional.cross_entropy(work.model(client.x[batch]), client.y[batch])
        for parameter, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
            parameter.data.add_(gradient, alpha=-RATE)
    expected = (work.theta - theta).clone()
    assert torch.equal(plainly(work, theta, client, PLAIN, steps=5, batch=16), expected)


@pytest.mark.parametrize("how", [PLAIN, *WAYS, Descent(momentum=0.95, proximal=2.0)])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_an_update_carries_the_stated_noise_and_not_two_thirds_or_three_halves_of_it(how, steps):
    torch.manual_seed(0)
    work = workspace(nn.Sequential(nn.Flatten(), nn.Linear(3000, 10)), clip=1e-3, physical_batch=256)
    client = Client(0, "a", Budget(1.0, 1e-5), 1e-6 * torch.randn(SIZE, 3000), torch.randint(10, (SIZE,)))
    start = torch.zeros_like(work.theta)  # weight decay moves nothing
    update = privately(work, start, client, how, steps=steps, z=1.5, clip=1e-3)
    noise, std = update.vector[:30_000], update.noise_std  # the biases have a visible gradient
    assert has_std(noise, std)
    assert is_normal(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)


def test_momentum_multiplies_noise_as_its_sum_says():
    beta, steps = 0.9, np.array([1, 2, 30])
    weights = [[(1 - beta ** (k - j)) / (1 - beta) for j in range(k)] for k in steps]
    expected = [math.sqrt(sum(w**2 for w in own)) for own in weights]
    assert Descent(momentum=beta).growth(steps, learning_rate=0.5) == pytest.approx(expected)
    assert Descent(momentum=beta).reach(steps, learning_rate=0.5) == pytest.approx([0.5 * sum(own) for own in weights])
    assert PLAIN.growth(steps, learning_rate=0.5) == pytest.approx(np.sqrt(steps))


def test_momentum_over_noise_that_is_correlated_between_steps_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Correlated(SampledGaussian):
        noise_growth = 1.0

    work, theta, client = make(clip=1.0)
    given = {"learning_rate": RATE, "stream": seeded(0)("a")}
    dp_sgd(work, theta, client, Correlated(1.0, 1.0, 0.5, 4), **given)
    with pytest.raises(BadInput, match=r"leave out train\.momentum"):
        dp_sgd(work, theta, client, Correlated(1.0, 1.0, 0.5, 4), **given, descent=WAYS[0])


@pytest.mark.parametrize("how", WAYS)
def test_frozen_parameters_neither_decay_nor_drift(how):
    work, theta, client = make(clip=1.0, frozen=[1])
    body = work.model[1].weight.clone()
    for update in (
        plainly(work, theta, client, how, steps=3),
        privately(work, theta, client, how, steps=3, clip=1.0).vector,
    ):
        assert update.shape == (5 * 3 + 3,)
        assert bool((update != 0).any())
        assert torch.equal(work.model[1].weight, body)


def test_one_record_moves_a_step_with_momentum_by_no_more_than_without():
    work, theta, client = make(clip=1.0)
    x, y = torch.cat([client.x, torch.full((1, 12), 1e4)]), torch.cat([client.y, client.y[:1]])
    huge = Client(0, "a", client.budget, x, y)
    for how in (PLAIN, *WAYS):
        without = privately(work, theta, client, dataclasses.replace(how, weight_decay=0.0), steps=1, clip=1.0).vector
        with_it = privately(work, theta, huge, dataclasses.replace(how, weight_decay=0.0), steps=1, clip=1.0).vector
        moved = with_it * (SIZE + 1) - without * SIZE
        assert RATE * 0.99 < moved.norm() <= RATE * (1 + 1e-4)


def test_batches_are_sampled_as_the_accountant_is_told(monkeypatch):
    work, theta, client = make(clip=1.0)
    order = torch.arange(SIZE, dtype=torch.float32)[:, None]
    marked = Client(0, "a", client.budget, order.expand(SIZE, 12) / 100, client.y)
    batches, real = [], work.clipped_sum

    def spy(x, y, **given):
        batches.append((x[:, 0] * 100).round().int().numpy())
        return real(x, y, **given)

    monkeypatch.setitem(work.__dict__, "clipped_sum", spy)
    privately(work, theta, marked, PLAIN, steps=800, clip=1.0, rate=0.1)
    assert is_poisson_sampling(batches, size=SIZE, rate=0.1)
    assert any(len(batch) == 0 for batch in batches)


def test_an_empty_batch_still_adds_noise_and_the_divisor_is_the_expected_batch():
    work, theta, client = make(clip=1.0)
    assert has_std(
        privately(work, theta, client, PLAIN, steps=1, z=1.0, clip=1.0, rate=1e-9).vector, RATE / (1e-9 * SIZE)
    )
    one = privately(work, theta, client, PLAIN, steps=1, clip=1.0, rate=0.5).vector
    batch = seeded(0)("a").bernoulli(SIZE, 0.5)
    assert len(batch) != SIZE // 2
    work.theta.copy_(theta)
    total, _ = work.clipped_sum(client.x[batch], client.y[batch])
    assert torch.allclose(one, -RATE / (0.5 * SIZE) * total.vector.float(), atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (Cosine(rounds=10, end=0.1), torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": 10, "eta_min": 0.05}),
        (Step(every=3, factor=0.5), torch.optim.lr_scheduler.StepLR, {"step_size": 3, "gamma": 0.5}),
    ],
)
def test_a_schedule_counts_rounds_as_torch_counts_epochs(ours, theirs, options):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler, found = theirs(optimizer, **options), []
    for _ in range(10):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [0.5 * ours(r) for r in range(10)] == pytest.approx(found)


def test_a_scheduled_round_trains_at_its_own_rate():
    work, theta, client = make(clip=1e6)
    how = Descent(schedule=Step(every=1, factor=0.5)).for_round(2)
    mechanism = SampledGaussian(1e-12, 1e6, 1.0, 3)
    slower = dp_sgd(work, theta, client, mechanism, learning_rate=RATE / 4, stream=seeded(0)("a")).update
    scheduled = dp_sgd(work, theta, client, mechanism, learning_rate=RATE, stream=seeded(0)("a"), descent=how).update
    assert torch.equal(slower.vector, scheduled.vector)
    assert slower.noise_std == scheduled.noise_std
    sent = DpSgd(RATE, descent=how)(work, theta, client, mechanism, stream=seeded(0)("a")).update
    assert torch.equal(sent.vector, slower.vector * 4)  # in units of the first round's rate
    assert sent.noise_std == slower.noise_std * 4
