import pytest
import torch
from statistical import has_std, is_normal, is_poisson_sampling
from torch import nn

from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training.sgd import dp_sgd, workspace
from tacit.types import Budget, Client

SIZE = 40


def make(clip=1.0, features=64, scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 10))
    work = workspace(model, clip=clip, physical_batch=256)
    x, y = scale * torch.randn(SIZE, features), torch.randint(10, (SIZE,))
    return work, work.theta.clone(), Client(0, "a", Budget(1.0, 1e-5), x, y)


def train(work, theta, client, *, z=1.0, rate=1.0, steps=1, clip=1.0, place="a", learning_rate=0.5):
    mechanism = SampledGaussian(noise_multiplier=z, clip=clip, sampling_rate=rate, steps=steps)
    return dp_sgd(work, theta, client, mechanism, learning_rate=learning_rate, stream=seeded(0)(place))


@pytest.mark.parametrize("steps", [1, 9])
def test_the_update_carries_the_stated_noise_and_not_two_thirds_or_three_halves_of_it(steps):
    work, theta, client = make(features=3000, scale=1e-6, clip=1e-3)  # the gradient is too small to see
    learning_rate, z = 0.5, 1.5
    trained = train(work, theta, client, z=z, steps=steps, clip=1e-3, learning_rate=learning_rate)
    std = learning_rate / SIZE * z * 1e-3 * steps**0.5
    noise = trained.update.vector[: 3000 * 10]  # the biases have a visible gradient
    assert trained.update.noise_std == pytest.approx(std)
    assert has_std(noise, std)
    assert is_normal(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)


def test_one_arbitrary_record_moves_a_step_by_at_most_the_clip():
    work, theta, client = make(scale=1.0)
    x, y = torch.cat([client.x, torch.full((1, 64), 1e6)]), torch.cat([client.y, client.y[:1]])
    huge = Client(0, "a", client.budget, x, y)
    without = train(work, theta, client, z=1e-9).update.vector * SIZE
    with_it = train(work, theta, huge, z=1e-9).update.vector * (SIZE + 1)
    assert 0.5 * 0.99 < (with_it - without).norm() <= 0.5 * (1 + 1e-4)  # learning rate 0.5 times clip 1


def test_batches_are_sampled_as_the_accountant_is_told(monkeypatch):
    work, theta, client = make()
    order = torch.arange(SIZE, dtype=torch.float32)[:, None]
    marked = Client(0, "a", client.budget, order.expand(SIZE, 64) / 100, client.y)
    batches, real = [], work.clipped_sum

    def spy(x, y, **given):
        batches.append((x[:, 0] * 100).round().int().numpy())
        return real(x, y, **given)

    monkeypatch.setitem(work.__dict__, "clipped_sum", spy)
    train(work, theta, marked, rate=0.1, steps=1500)
    assert is_poisson_sampling(batches, size=SIZE, rate=0.1)
    assert any(len(batch) == 0 for batch in batches)


def test_an_empty_batch_still_adds_noise():
    work, theta, client = make()
    trained = train(work, theta, client, rate=1e-9)
    assert trained.info["loss"] == 0.0
    assert has_std(trained.update.vector, 0.5 / (1e-9 * SIZE))


def test_the_divisor_is_the_expected_batch_not_the_drawn_one():
    work, theta, client = make()
    one = train(work, theta, client, z=1e-9, rate=0.5, place="a").update.vector
    batch = seeded(0)("a").bernoulli(SIZE, 0.5)
    assert len(batch) != SIZE // 2
    work.theta.copy_(theta)
    total, _ = work.clipped_sum(client.x[batch], client.y[batch])
    assert torch.allclose(one, -0.5 / (0.5 * SIZE) * total.vector.float(), atol=1e-6)


def test_training_starts_from_the_broadcast_parameters_every_time():
    work, theta, client = make()
    first = train(work, theta, client, steps=3).update.vector
    assert torch.equal(first, train(work, theta, client, steps=3).update.vector)
