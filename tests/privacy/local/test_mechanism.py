import numpy as np
import pytest
import torch
from statistical import has_std, is_normal, is_poisson_sampling

from tacit.errors import BadInput
from tacit.privacy.local.kind import SampledGaussian
from tacit.random import seeded
from tacit.types import Bounded

MECHANISM = SampledGaussian(noise_multiplier=1.3, clip=0.5, sampling_rate=0.2, steps=4)


def test_noise_has_the_stated_std_and_not_two_thirds_or_three_halves():
    _, noised = MECHANISM.noise({}, seeded(0)("noise"), Bounded(torch.zeros(100_000), 0.5))
    assert has_std(noised.vector, 1.3 * 0.5)
    assert is_normal(noised.vector, 1.3 * 0.5)
    assert not has_std(noised.vector, 1.3 * 0.5 * 2 / 3)
    assert not has_std(noised.vector, 1.3 * 0.5 * 3 / 2)


def test_noise_is_added_to_the_sum():
    total = torch.arange(10.0)
    _, noised = MECHANISM.noise({}, seeded(0)("noise"), Bounded(total, 0.5))
    _, noise = MECHANISM.noise({}, seeded(0)("noise"), Bounded(torch.zeros(10), 0.5))
    assert torch.allclose(noised.vector, total + noise.vector)


def test_noise_for_another_clip_is_refused():
    with pytest.raises(BadInput, match=r"sensitivity 0\.5, got a vector of 1\.0"):
        MECHANISM.noise({}, seeded(0)("noise"), Bounded(torch.zeros(3), 1.0))


def test_noise_takes_nothing_that_was_not_bounded():
    with pytest.raises(AttributeError):
        MECHANISM.noise({}, seeded(0)("noise"), torch.zeros(3))


def test_batches_are_poisson_samples():
    stream = seeded(0)("batches")
    batches = [MECHANISM.sample({}, stream, 50)[1] for _ in range(2000)]
    assert is_poisson_sampling(batches, size=50, rate=0.2)


def test_the_verdict_rejects_fixed_size_shuffled_and_wrong_rate_batches():
    rng = np.random.default_rng(0)
    fixed = [rng.choice(50, size=10, replace=False) for _ in range(2000)]
    shuffled = [part for _ in range(400) for part in np.split(rng.permutation(50), 5)]
    denser = [np.flatnonzero(rng.random(50) < 0.23) for _ in range(2000)]
    replaced = [rng.choice(50, size=rng.binomial(50, 0.2)) for _ in range(2000)]
    for wrong in (fixed, shuffled, denser, replaced):
        assert not is_poisson_sampling(wrong, size=50, rate=0.2)


def test_price_and_noise_come_from_the_same_numbers():
    event = MECHANISM.event()
    assert event.count == 4
    assert event.event.sampling_probability == 0.2
    assert event.event.event.noise_multiplier == 1.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"noise_multiplier": float("nan")}, "finite"),
        ({"clip": -1.0}, "clip > 0"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"steps": 0}, "steps >= 1"),
    ],
)
def test_a_mechanism_that_would_break_its_promise_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        SampledGaussian(**{"noise_multiplier": 1.0, "clip": 1.0, "sampling_rate": 0.1} | change)
