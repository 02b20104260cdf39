"""What a round tells its reader: seconds by stage and the signal in what was released."""

import math

import pytest
import torch

from tacit.engine.evaluate import STAGES, Traffic, Watch, signal_to_noise
from tacit.types import Message


def test_every_moment_belongs_to_one_stage():
    watch = Watch()
    for stage in STAGES:
        with watch(stage):
            pass
    first = watch.read()
    assert list(first) == [f"seconds_{stage}" for stage in STAGES]
    assert all(value >= 0 for value in first.values())
    assert sum(watch.read().values()) == 0.0


@pytest.mark.parametrize("ratio", [0.0, 0.2, 1.0, 5.0])
def test_the_signal_is_found_under_its_noise(ratio):
    generator = torch.Generator().manual_seed(0)
    size, noise_std = 100_000, 0.3
    signal = torch.full((size,), ratio * noise_std)  # |signal| / |noise| = ratio
    update = signal + noise_std * torch.randn(size, generator=generator)
    found = signal_to_noise(float(update.norm()), noise_std * math.sqrt(size))
    assert found == pytest.approx(ratio, rel=0.05, abs=0.1)


def test_an_update_without_noise_is_not_looked_at():
    traffic = Traffic()
    traffic.receive(Message("a", {"update": torch.ones(3)}, {"examples": 3}), {}, 0)
    traffic.receive(Message("b", {"update": torch.ones(3)}, {"noise_std": 0.0}), {}, 0)
    traffic.receive(Message("c", {"coordinates": torch.ones(3)}, {"noise_std": 1.0}), {}, 0)
    assert traffic.signal({}, 1) == {}


def test_the_median_and_both_ends_are_told():
    traffic = Traffic()
    for length in (1.0, 2.0, 10.0):
        traffic.receive(Message("a", {"update": torch.tensor([length])}, {"noise_std": 1.0}), {}, 0)
    assert traffic.signal({}, 1) == {
        "signal_to_noise": pytest.approx(math.sqrt(3)),
        "signal_to_noise_low": 0.0,
        "signal_to_noise_high": pytest.approx(math.sqrt(99)),
    }


def test_where_the_server_adds_the_noise_its_sum_is_looked_at():
    info = {"noised_norm": 5.0, "noise_std": 3.0 / 10}
    assert Traffic().signal(info, 100) == {"signal_to_noise": pytest.approx(4 / 3)}
