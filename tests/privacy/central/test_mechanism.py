import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from statistical import has_std

from tacit.algorithms.central_dp import QuantileClip
from tacit.errors import BadInput
from tacit.privacy.accounting import events, price
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.mechanism import bound, norm_bound, row_scales
from tacit.privacy.samplers import Poisson
from tacit.random import seeded
from tacit.types import Bounded

POISSON = CohortGaussian(1.3, clip=0.5, cohorts=Poisson(50, 10))
PAPER = CohortGaussian(1.0, clip=1.0, cohorts=Poisson(2400, 30))  # the example of docs/papers.md
ADAPTIVE = replace(PAPER, count_std=30 / 20 * 4)


def epsilon(mechanism, rounds=300):
    return price.epsilon(((mechanism.event(), rounds),), delta=1e-5)


def test_the_golden_price_of_poisson_cohorts():
    assert epsilon(PAPER) == pytest.approx(1.35, abs=0.02)
    assert price._rdp(((PAPER.event(), 300),), 1e-5)[0] == pytest.approx(1.71, abs=0.02)


def test_without_sampling_nothing_is_amplified():
    everybody = replace(PAPER, cohorts=Poisson(2400, 2400))
    assert events.rate_and_multiplier(everybody.event()) == (1.0, 1.0)
    assert epsilon(everybody, rounds=1) > 3


def test_cohorts_are_sometimes_empty_and_never_of_another_population():
    rare, stream = replace(POISSON, cohorts=Poisson(5, 1)), seeded(0)("cohort")
    assert any(len(rare.sample({}, stream, 5)[1]) == 0 for _ in range(100))
    with pytest.raises(BadInput, match="priced for 5 clients, got 4"):
        rare.sample({}, stream, 4)


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_whatever_is_bounded_is_within_the_clip_and_points_the_same_way(values, clip):
    vector = torch.tensor(values)
    bounded = bound(vector, clip=clip).vector
    assert float(bounded.double().norm()) <= clip
    assert bool((bounded.sign() * vector.sign() >= 0).all())
    if float(vector.double().norm()) <= clip * (1 - 1e-7):
        assert torch.equal(bounded, vector)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_cannot_be_bounded(value):
    with pytest.raises(BadInput, match="not finite"):
        bound(torch.tensor([1.0, value]), clip=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"clip": 0.0}, "clip > 0"),
        ({"count_std": 0.65}, "privacy.adaptive_clip.count_noise higher"),
    ],
)
def test_a_mechanism_that_would_break_its_promise_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        replace(POISSON, **change)


@pytest.mark.parametrize(("cohort", "message"), [(51, "clients_per_round <= 50 clients, got 51"), (0, "cohort >= 1")])
def test_a_cohort_that_cannot_be_drawn_is_refused(cohort, message):
    with pytest.raises(BadInput, match=message):
        Poisson(50, cohort)


def test_the_joint_price_of_sum_and_count_is_that_of_the_paper():
    """z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the two Gaussians together are one of multiplier z."""
    z, sigma_b = ADAPTIVE.noise_multiplier, ADAPTIVE.count_std
    assert ADAPTIVE.update_multiplier == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5)
    assert ADAPTIVE.update_multiplier > z
    assert ADAPTIVE.event() == PAPER.event()
    together = ADAPTIVE.update_multiplier**-2 + (2 * sigma_b) ** -2
    assert together**-0.5 == pytest.approx(z)


def test_the_noise_on_the_sum_grows_to_pay_for_the_count():
    _, noised = ADAPTIVE.noise({}, seeded(0)("noise"), Bounded(torch.zeros(2_000_000), 1.0))
    assert has_std(noised.vector, ADAPTIVE.update_multiplier)
    assert not has_std(noised.vector, 1.0)  # as if the count were free


def test_the_count_has_its_noise_and_not_two_thirds_of_it():
    stream = seeded(0)("count")
    shares = np.array([ADAPTIVE.noised_share(stream, 12, 20) for _ in range(4000)])
    noise = (shares - 0.5) * ADAPTIVE.cohorts.cohort - (12 - 10)
    assert has_std(noise, ADAPTIVE.count_std)
    assert not has_std(noise, ADAPTIVE.count_std * 2 / 3)


def test_a_client_moves_the_count_by_one_half_whatever_its_bit():
    quiet = replace(ADAPTIVE, count_std=1e9)  # the same noise twice cancels
    shares = [quiet.noised_share(seeded(0)("count"), *counts) for counts in ((5, 10), (5, 11), (6, 11))]
    moved = (np.array(shares[1:]) - shares[0]) * quiet.cohorts.cohort
    assert moved == pytest.approx([-0.5, 0.5], abs=1e-3)


def test_without_a_count_none_is_released():
    with pytest.raises(TypeError):
        PAPER.noised_share(seeded(0)("count"), 1, 1)


@pytest.mark.parametrize(("within", "direction"), [(30, -1), (0, 1)])
def test_the_clip_shrinks_if_everybody_was_within_it_and_grows_if_nobody_was(within, direction):
    """Flower 1.41 adapts the other way."""
    bits = [True] * within + [False] * (30 - within)
    steps = [math.log(QuantileClip().next(replace(PAPER, count_std=1.5), bits, seeded(n)("count"))) for n in range(400)]
    assert np.mean(steps) == pytest.approx(direction * 0.2 * 0.5, abs=0.005)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_clip_finds_the_quantile_of_the_norms_from_far_below_and_far_above(quantile):
    norms = np.random.default_rng(0).lognormal(0.0, 0.5, 2000)
    stream, adapt = seeded(0)("count"), QuantileClip(quantile)
    for start in (0.01, 100.0):
        mechanism, found = CohortGaussian(1.0, start, Poisson(2000, 200), count_std=10.0), []
        for _ in range(400):
            drawn = norms[mechanism.sample({}, stream, 2000)[1]]
            mechanism = mechanism.at(adapt.next(mechanism, (drawn <= mechanism.clip).tolist(), stream))
            found.append(mechanism.clip)
        assert np.median(found[-100:]) == pytest.approx(np.quantile(norms, quantile), rel=0.08)


@pytest.mark.parametrize("size", [1 << 14, (1 << 14) + 7, 159_010])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e15, 1e30])
def test_the_fast_norm_is_an_upper_bound_and_a_tight_one(size, scale):
    for seed in range(5):
        vector = scale * torch.randn(size, generator=torch.Generator().manual_seed(seed)) ** 3
        exact = float(torch.linalg.vector_norm(vector.double()))
        assert exact <= norm_bound(vector) <= exact * (1 + 5e-5)


def test_a_long_update_that_is_not_finite_or_huge_is_still_bounded_or_refused():
    vector = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    for wrong in (float("nan"), float("inf")):
        broken = vector.clone()
        broken[-1] = wrong
        with pytest.raises(BadInput, match="not finite"):
            bound(broken, clip=1.0)
    huge = bound(vector * 1e37, clip=1.0).vector
    assert 0.999 < float(torch.linalg.vector_norm(huge.double())) <= 1 + 1e-6


def test_a_row_that_is_not_finite_or_too_long_counts_as_nought():
    rows = torch.ones(3, 1 << 14)
    rows[0, 5], rows[1, 7], rows[2] = torch.nan, torch.inf, 1e25
    assert row_scales(rows, clip=1.0).tolist() == [0.0, 0.0, 0.0]
