"""Corners of training where a clipped sum moved by more than its clip, or a record was drawn more often than was paid for."""

import math

import numpy as np
import pytest
import torch
from redteam.test_training import CLIP, client_of
from torch import nn

import tacit
from tacit.algorithms.central_dp import QuantileClip
from tacit.errors import BadInput
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.local import SampledGaussian
from tacit.privacy.samplers import Poisson
from tacit.random import Stream, seeded
from tacit.training.sgd import Clipper, dp_sgd, workspace


class TurnsAround(nn.Module):
    """Writes into its rows: large values change their sign, so that a second pass would undo the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(36, 4)

    def forward(self, x):
        x.mul_(1 - 2 * (x.abs() > 3.5).float())
        return self.out(x.flatten(1))


def test_a_record_that_a_path_cannot_take_does_not_make_the_others_be_read_twice():
    """Its label is of no class: the whole batch was then added up again, from rows that the first attempt had written into."""
    x = 6 + torch.randn(9, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0] * 8 + [9])
    mechanism, sums = SampledGaussian(1e-9, CLIP, 1.0), []
    for part in (slice(0, 8), slice(0, 9)):
        work = workspace(TurnsAround(), clip=CLIP, physical_batch=4)
        given = {"learning_rate": float(len(y[part])), "stream": seeded(0)("a")}
        sums.append(
            dp_sgd(work, torch.zeros_like(work.theta), client_of(x[part], y[part]), mechanism, **given).update.vector
        )
    assert float((sums[0] - sums[1]).norm()) <= CLIP * (1 + 1e-3)


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
def test_a_clip_so_small_that_norms_leave_float32_is_refused(path):
    """The norm of a gradient of 1e-22 was nothing, so that a clip of 1e-25 left it whole."""
    with pytest.raises(BadInput, match="clip"):
        Clipper(nn.Linear(6, 4), clip=1e-25, path=path)
    for kind in ("local", "central", "distributed"):
        with pytest.raises(BadInput, match=r"privacy\.clip"):
            tacit.Experiment(privacy={"kind": kind, "epsilon": 1.0, "clip": 1e-25})


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
def test_the_smallest_clip_that_is_taken_holds_for_gradients_of_any_size(path):
    torch.set_flush_denormal(True)
    try:
        for bias in range(0, 87, 3):
            model = nn.Linear(6, 4)
            model.weight.data.zero_()
            model.bias.data.copy_(torch.tensor([float(bias), 0.0, 0.0, 0.0]))
            total = Clipper(model, clip=1e-12, path=path)(torch.ones(1, 6), torch.tensor([0]))[0].vector
            assert float(total.double().norm()) <= 1e-12 * (1 + 1e-4)
    finally:
        torch.set_flush_denormal(False)


def test_a_clip_that_adapts_stays_where_its_noise_is_a_number():
    for b in (True, False):
        clip = 0.1
        for turn in range(3000):
            mechanism = CohortGaussian(1.0, clip, Poisson(10, 10), count_std=1.0)
            clip = QuantileClip(0.5, 0.9).next(mechanism, [b] * 10, seeded(0)(turn))
        assert 1e-10 < clip < 1e10


class Fixed(Stream):
    """A stream whose uniforms are given."""

    def __init__(self, values):
        self.values = values

    def uniform(self, count):
        return np.array(self.values[:count])


@pytest.mark.parametrize("rate", [1e-17, 1.5 * 2.0**-53, 1e-12, 0.1, 1 / 3])
def test_no_record_is_drawn_more_often_than_its_rate_says(rate):
    """Uniforms have 53 bits: those below a rate were counted upwards, eleven times too many at 1e-17."""
    below = math.floor(rate * 2**53)  # so many of the 2^53 uniforms may succeed
    assert len(Fixed([below * 2.0**-53]).bernoulli(1, rate)) == 0
    assert len(Fixed([max(below - 1, 0) * 2.0**-53]).bernoulli(1, rate)) == (1 if below else 0)


@pytest.mark.parametrize("path", ["vmap", "loop"])
def test_a_gradient_with_one_large_entry_among_millions_is_not_measured_too_short(path):
    """Squares were added up in float32, where small ones are lost beside a large one: of 10^7 entries, 1.8 % of the norm."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(5_000_000))

        def forward(self, x):
            rest = 1e-4 * x[:, :1] * self.w[1:].sum()
            return torch.cat([x[:, :1] * self.w[0] + rest, torch.zeros_like(rest)], dim=1)

    total = Clipper(Wide(), clip=1e-3, path=path)(torch.ones(1, 2), torch.tensor([0]))[0].vector
    assert float(total.double().norm()) <= 1e-3 * (1 + 1e-4)


def test_one_example_among_many_physical_batches_moves_the_sum_by_no_more_than_the_clip():
    """A float32 sum of 65,536 examples was rounded by 0.7 % of what one of them weighs."""
    torch.manual_seed(0)
    x, y = torch.randn(65536, 20) * 0.1 + 3, torch.zeros(65536, dtype=torch.long)
    clipper = Clipper(nn.Linear(20, 4), clip=CLIP)
    total = clipper(x, y)[0].vector.double()
    for i in (0, 100):
        rest = torch.arange(len(y)) != i
        assert float((total - clipper(x[rest], y[rest])[0].vector.double()).norm()) <= CLIP * (1 + 1e-3)
