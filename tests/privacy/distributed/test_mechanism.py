"""Shares of noise: what a sum carries, what it costs, who is counted on, and what is refused."""

import math

import numpy as np
import pytest
from scipy import special
from statistical import has_masses

from tacit.crypto.grid import Quantised
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.distributed.mechanism import LOG2_CUT, SHARES, calibrate, even, note_2020
from tacit.random import seeded
from tacit.types import Shared

SETTINGS = {"law": "skellam", "l2_squared": 400, "dimension": 50_000, "fewest": 6, "colluding": 2, "most": 8}


def shares(noise, count):
    zero = Quantised(np.zeros(noise.dimension, dtype=np.int64), noise.l2_squared, 0)
    return [noise.noise({}, seeded(0)(f"client-{i}"), zero)[1].vector.numpy() for i in range(count)]


@pytest.mark.parametrize("share", SHARES)
def test_the_sum_without_the_colluders_shares_carries_the_multiplier_and_not_two_thirds_or_three_halves(share):
    noise = SHARES[share](multiplier=0.7, **SETTINGS)
    total = sum(shares(noise, noise.fewest)[noise.colluding :])
    variance = noise.multiplier**2 * noise.l2_squared
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert has_masses(total, lambda k, v=variance * factor**2: special.ive(np.abs(k), v)) is right


def test_even_shares_are_sized_for_the_fewest_honest_reports():
    noise = even(multiplier=3.0, **SETTINGS)
    assert noise.multiplier == pytest.approx(3.0)
    assert noise.share_variance == pytest.approx(9 * 400 / 4)
    assert noise.event().shares == 4
    assert noise.alone().shares == 1
    assert price.epsilon(((noise.alone(), 1),), delta=1e-5) > price.epsilon(((noise.event(), 1),), delta=1e-5)


def test_the_notes_share_is_worth_sigma_over_the_root_of_the_cohort():
    whole = SETTINGS | {"fewest": 8, "colluding": 0}
    ours, theirs = even(multiplier=4.0, **whole), note_2020(multiplier=4.0, **whole)
    assert theirs.multiplier == pytest.approx(4.0 / math.sqrt(8))
    assert price.epsilon(((theirs.event(), 1),), delta=1e-5) == pytest.approx(
        price.epsilon(((even(multiplier=4.0 / math.sqrt(8), **whole).event(), 1),), delta=1e-5)
    )
    assert ours.share_variance == pytest.approx(8 * theirs.share_variance)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("law", ["skellam", "discrete-gaussian"])
def test_calibration_keeps_the_budget_and_wastes_almost_nothing(share, law):
    settings = SETTINGS | {"law": law, "l2_squared": 10**6}
    z = calibrate(share, epsilon=3.0, delta=1e-5, rounds=40, **settings)
    spent = price.epsilon(((SHARES[share](multiplier=z, **settings).event(), 40),), delta=1e-5)
    assert 3.0 * 0.995 < spent <= 3.0
    less = SHARES[share](multiplier=z * 2 / 3, **settings)
    assert price.epsilon(((less.event(), 40),), delta=1e-5) > 4.0


def test_a_share_is_added_to_the_integers_and_cut_to_its_lane():
    noise = even(multiplier=1.0, **SETTINGS)
    values = np.zeros(50_000, dtype=np.int64)
    values[:3] = (12, -9, 7)
    _, noised = noise.noise({}, seeded(0)("a"), Quantised(values, 400, 20))
    _, plain = noise.noise({}, seeded(0)("a"), Quantised(values * 0, 400, 20))
    assert isinstance(noised, Shared)
    assert (noised.vector.numpy() - plain.vector.numpy() == values).all()
    assert plain.vector.abs().max() <= noise.tail


def test_what_lies_beyond_the_lane_is_cut_to_it():
    noise = even(multiplier=1.0, **SETTINGS)
    beyond = Quantised(np.full(50_000, 10 * noise.tail), 400, 20)
    assert (noise.noise({}, seeded(0)("a"), beyond)[1].vector == noise.tail + 20).all()


def test_the_probability_of_a_cut_is_what_the_event_pays_for():
    noise = even(multiplier=1.0, **SETTINGS)
    once = noise._law.log2_tail(noise.tail) + 1 + math.log2(noise.dimension * noise.most)
    assert once <= LOG2_CUT
    assert noise.event().cut >= 2.0**once
    assert noise.alone().cut == 0


def test_noise_for_another_sensitivity_or_size_is_refused():
    noise = even(multiplier=1.0, **SETTINGS)
    with pytest.raises(BadInput, match="squared length 400"):
        noise.noise({}, seeded(0)("a"), Quantised(np.zeros(50_000, dtype=np.int64), 401, 20))
    with pytest.raises(BadInput, match="50000 integers"):
        noise.noise({}, seeded(0)("a"), Quantised(np.zeros(10, dtype=np.int64), 400, 20))


@pytest.mark.parametrize(
    "change",
    [{"colluding": 6}, {"colluding": -1}, {"fewest": 9}, {"law": "laplace"}, {"l2_squared": 0}, {"dimension": 0}],
)
def test_shares_that_could_not_keep_the_promise_are_refused(change):
    with pytest.raises(BadInput):
        even(multiplier=1.0, **SETTINGS | change)
