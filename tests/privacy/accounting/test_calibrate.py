import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.accounting.price import GRID, affordable, noise_multiplier, noise_multipliers


def cost(z, *, rate, steps):
    one = dp_accounting.GaussianDpEvent(z)
    one = one if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, one)
    return price.epsilon(((one, steps),), delta=1e-5)


@settings(max_examples=15, deadline=None)
@given(epsilon=st.floats(0.1, 20), rate=st.sampled_from([0.01, 0.05, 0.3, 1.0]), steps=st.sampled_from([1, 30, 700]))
def test_the_noise_keeps_the_budget_and_a_little_less_noise_does_not(epsilon, rate, steps):
    z = noise_multiplier(epsilon=epsilon, delta=1e-5, sampling_rate=rate, steps=steps)
    assert cost(z, rate=rate, steps=steps) <= epsilon
    assert cost(z * 0.99, rate=rate, steps=steps) > epsilon


def test_each_of_many_budgets_is_kept_and_none_wastes_more_than_the_grid():
    epsilons = np.exp(np.random.default_rng(0).uniform(math.log(0.5), math.log(5), size=300))
    z = noise_multipliers(epsilons, delta=1e-5, sampling_rate=0.05, steps=200)
    for index in range(0, 300, 29):
        assert cost(float(z[index]), rate=0.05, steps=200) <= epsilons[index]
        assert cost(float(z[index]) * math.exp(-GRID * 1.001), rate=0.05, steps=200) > epsilons[index]


def test_few_budgets_are_solved_one_by_one():
    z = noise_multipliers(np.array([3.0, 1.0, 3.0]), delta=1e-5, sampling_rate=0.05, steps=150)
    assert z[0] == z[2] == noise_multiplier(epsilon=3.0, delta=1e-5, sampling_rate=0.05, steps=150)
    assert z[1] > z[0]


def test_affordable_is_the_last_count_that_fits():
    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    for hint in (1, 149, 150, 151, 5000):
        most = affordable(step, epsilon=4.18, delta=1e-5, hint=hint)
        assert cost(1.0, rate=0.05, steps=most) <= 4.18 < cost(1.0, rate=0.05, steps=most + 1)


def test_affordable_counts_what_was_spent_and_stops_at_the_most_asked_for():
    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    whole = affordable(step, epsilon=4.0, delta=1e-5)
    assert affordable(step, epsilon=4.0, delta=1e-5, spent=((step, 40),)) == whole - 40
    assert affordable(step, epsilon=4.0, delta=1e-5, most=7) == 7
    assert affordable(step, epsilon=0.01, delta=1e-5) == 0
    assert affordable(step, epsilon=math.inf, delta=1e-5, most=9) == 9


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 1.0}, {"sampling_rate": 0.0}, {"steps": 0}]
)
def test_impossible_requests_are_refused(change):
    with pytest.raises(BadInput):
        noise_multiplier(**{"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10} | change)
