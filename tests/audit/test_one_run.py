"""What guesses show, held against published figures and against chance."""

import math

import numpy as np
import pytest
from scipy import stats

from tacit.errors import BadInput
from tacit.lab.audit.estimate import (
    Traces,
    claim_of,
    curve_inverse,
    gaussian_inverse,
    gaussian_mu,
    guess_counts,
    measured,
    no_assumption,
    refutes,
    right_guesses,
    scores,
    shown,
)
from tacit.privacy.accounting.events import RoundedGaussianDpEvent
from tacit.privacy.local import SampledGaussian

DELTA = 1e-5


def gaussian_epsilon(mu):
    """The epsilon of N(0, 1) against N(mu, 1) at DELTA."""
    low, high = 0.0, 100.0
    for _ in range(60):
        e = (low + high) / 2
        off = stats.norm.cdf(mu / 2 - e / mu) - math.exp(e + stats.norm.logcdf(-mu / 2 - e / mu))
        low, high = (e, high) if off > DELTA else (low, e)
    return low


# Table 1 of arXiv:2410.22235: what is shown of a Gaussian mechanism, with canaries and guesses that come near to it
@pytest.mark.parametrize(
    ("true", "published", "canaries", "guesses", "right"),
    [
        (9.99, 4.99, 100_000, 6948, 6922),
        (4.37, 2.61, 100_000, 1609, 1530),
        (1.99, 1.33, 300_000, 2965, 2415),
        (0.92, 0.61, 300_000, 4828, 3209),
    ],
)
def test_the_bound_without_assumption_is_the_published_one(true, published, canaries, guesses, right):
    assert gaussian_mu(true, DELTA) == pytest.approx({9.99: 2, 4.37: 1, 1.99: 0.5, 0.92: 0.25}[true], rel=0.01)
    found = no_assumption(canaries=canaries, guesses=guesses, right=right, delta=DELTA, level=0.05)
    assert found == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(
    ("true", "published", "guesses", "right"), [(4.37, 3.61, 2289, 2228), (1.99, 1.59, 1406, 1201)]
)
def test_the_bound_within_a_family_is_the_published_one(true, published, guesses, right):
    at = {"canaries": 1_000_000, "guesses": guesses, "right": right, "level": 0.05}
    low, high = 0.0, 2 * gaussian_mu(true, DELTA)
    for _ in range(10):
        mu = (low + high) / 2
        low, high = (mu, high) if refutes(gaussian_inverse(mu), **at) else (low, mu)
    assert gaussian_epsilon(low) == pytest.approx(published, rel=0.03)


def test_guesses_that_are_no_better_than_chance_show_nothing_and_many_canaries_at_a_large_delta_less():
    for right in (100, 0):
        assert no_assumption(canaries=1000, guesses=200, right=right, delta=DELTA, level=0.05) == 0.0
    assert not refutes(gaussian_inverse(0.01), canaries=1000, guesses=200, right=100, level=0.05)
    few, many = (no_assumption(canaries=m, guesses=100, right=95, delta=DELTA, level=0.05) for m in (1000, 100_000))
    assert many < few


def test_a_curve_of_pairs_lies_below_the_gaussian_one_and_near_it():
    epsilons = np.linspace(0, 8, 60)
    deltas = stats.norm.cdf(0.5 - epsilons) - np.exp(epsilons) * stats.norm.cdf(-0.5 - epsilons)
    below, exact = curve_inverse(epsilons, deltas), gaussian_inverse(1.0)
    for x in np.linspace(0.001, 0.999, 50):
        assert below(x) <= exact(x) + 1e-9
        assert below(x) == pytest.approx(exact(x), abs=0.01)


def traces_of(charged, count, rng, *, noise=1.0):
    coins = rng.random(count) < 0.5
    drawn = rng.binomial(charged.steps, charged.rate, size=(charged.rounds, count)) * coins
    std = noise * charged.multiplier * math.sqrt(charged.steps)
    return Traces(drawn + std * rng.standard_normal(drawn.shape), drawn, coins)


@pytest.fixture(scope="module")
def charged():
    event = SampledGaussian(2.0, clip=1.0, sampling_rate=0.2, steps=2).event()
    return claim_of(event, 30, delta=DELTA)


def test_a_true_claim_is_rarely_rejected_and_its_limits_hold(charged):
    rng = np.random.default_rng(1)
    found = [measured(traces_of(charged, 300, rng), charged, level=0.05) for _ in range(60)]
    promised = charged.epsilon()
    assert sum(one.low > promised for one in found) <= 9  # 3 of 60 are expected; 10 or more, once in a thousand times
    assert sum(one.high < promised for one in found) <= 9
    assert np.median([one.epsilon for one in found]) == pytest.approx(promised, rel=0.05)
    assert not any(one.dependent for one in found)


def test_seven_tenths_of_the_noise_is_found_by_what_is_measured_and_not_by_what_is_shown(charged):
    traces = traces_of(charged, 1500, np.random.default_rng(2), noise=0.7)
    promised = charged.epsilon()
    assert measured(traces, charged, level=0.05).low > promised
    first, family = shown(traces, charged, level=0.05)
    assert 0 < first < family < promised


def test_a_score_is_the_likelihood_ratio_by_its_definition(charged):
    traces = traces_of(charged, 5, np.random.default_rng(4))
    std, q = charged.multiplier * math.sqrt(2), charged.rate
    weights = [(1 - q) ** 2, 2 * q * (1 - q), q**2]
    x = traces.seen
    mixture = sum(w * stats.norm.pdf(x, k, std) for k, w in enumerate(weights))
    assert scores(traces, charged) == pytest.approx(np.log(mixture / stats.norm.pdf(x, 0, std)).sum(0))


def test_the_surest_are_guessed_from_both_ends_and_how_many_follows_from_the_claim_alone():
    coins = np.array([True, True, False, False, True, False])
    assert right_guesses(np.array([5.0, 4.0, -4.0, -5.0, 0.0, 0.1]), coins, 4) == 4
    assert right_guesses(np.array([-5.0, 4.0, -4.0, 5.0, 0.0, 0.1]), coins, 4) == 2
    assert guess_counts(1000, 1.0, DELTA) != guess_counts(1000, 8.0, DELTA)
    assert all(10 <= count <= 1000 for count in guess_counts(1000, 4.0, DELTA))


def test_no_noise_costs_everything_and_endless_noise_nothing(charged):
    assert (charged.epsilon(0.0), charged.epsilon(math.inf)) == (math.inf, 0.0)
    assert charged.epsilon(2.0) < charged.epsilon() < charged.epsilon(0.5)


def test_an_event_that_no_audit_can_measure_is_refused():
    with pytest.raises(BadInput, match="Gaussian noise"):
        claim_of(RoundedGaussianDpEvent(1.0), 3, delta=DELTA)
