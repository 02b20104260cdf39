"""The estimators: their limits are exact, they accept what is claimed and reject what is near it."""

import numpy as np
import pytest
from scipy import stats

from tacit.lab.audit import evidence
from tacit.lab.audit.evidence import Check, alike, exact, judge, least, likeness, rate, spread

DRAWS = 4000


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def noise(sample):
    return evidence.noise(float((sample**2).sum()), sample.size)


def within(hits, probability):
    """Whether so many of DRAWS happen with this probability, but for one case in a million."""
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], DRAWS, probability)
    return low <= hits <= high


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_each_limit_of_a_deviation_is_wrong_as_often_as_it_says(rng, level):
    limits = np.array([noise(rng.normal(size=30)).limits(level) for _ in range(DRAWS)])
    assert within(int((limits[:, 0] > 1).sum()), level)
    assert within(int((limits[:, 1] < 1).sum()), level)


def test_honest_noise_is_rejected_as_often_as_the_level_says_and_too_little_always(rng):
    honest = [noise(rng.normal(size=200)).rejects(1.0, 0.05) for _ in range(DRAWS)]
    assert within(sum(honest), 0.05)
    assert all(noise(0.95 * rng.normal(size=20_000)).rejects(1.0, 1e-4) for _ in range(50))


@pytest.mark.parametrize(("hits", "limits"), [(0, (0, 0.16843)), (10, (0.27196, 0.72804)), (20, (0.83157, 1))])
def test_clopper_and_pearsons_limits_are_those_of_the_tables(hits, limits):
    assert rate(hits, 20).limits(0.025) == pytest.approx(limits, abs=1e-4)


def test_limits_of_a_rate_are_wrong_no_more_often_than_they_say(rng):
    hits = rng.binomial(60, 0.25, size=DRAWS)
    lows = np.array([rate(int(k), 60).limits(0.05)[0] for k in hits])
    assert int((lows > 0.25).sum()) <= stats.binom.ppf(1 - 1e-6, DRAWS, 0.05)
    assert rate(30, 60).rejects(0.25, 0.001)
    assert not rate(15, 60).rejects(0.25, 0.001)


def test_independent_noises_are_alike_as_seldom_as_the_level_says_and_reused_ones_always(rng):
    def of(rows):
        cosines = alike(rows)
        return likeness(float(np.abs(cosines).max()), rows.shape[1], len(cosines))

    rejected = sum(of(rng.normal(size=(3, 40))).rejects(0.0, 0.05) for _ in range(DRAWS))
    assert 0.02 * DRAWS < rejected <= stats.binom.ppf(1 - 1e-6, DRAWS, 0.05)
    first, second = rng.normal(size=(2, 40))
    assert of(np.array([first, second, -first])).rejects(0.0, 1e-9)
    assert len(alike(np.array([first]))) == 0


def test_batches_of_a_fixed_size_are_told_from_independent_draws(rng):
    sizes, rates = (100,) * 40, (0.25,) * 40
    assert spread((25,) * 40, sizes, rates).rejects(1.0, 0.001)
    drawn = [spread(tuple(rng.binomial(100, 0.25, 40).tolist()), sizes, rates).rejects(1.0, 0.01) for _ in range(60)]
    assert sum(drawn) <= 6


def test_one_client_with_less_noise_among_many_is_seen(rng):
    clients = [noise(rng.normal(size=500)) for _ in range(8)]
    assert not least(clients).rejects(1.0, 0.001)
    assert least([*clients, noise(0.5 * rng.normal(size=500))]).rejects(1.0, 0.001)


def test_an_exact_number_has_no_chance_in_it_and_takes_none_of_the_level():
    assert exact(1.005).rejects(1.0, 0.05) is False
    assert exact(1.02).rejects(1.0, 0.05) is True
    length = Check("here", "clip", 1.0, exact(2.0), "too long")
    chance = Check("here", "rate", 0.5, rate(10, 20), "too often")
    alone, together = judge([chance])[0], judge([length, length, chance])[2]
    assert (alone.low, alone.high) == (together.low, together.high)
    assert judge([chance, chance])[0].low < alone.low
