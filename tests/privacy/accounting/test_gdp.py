"""The closed form, held against 2,000 bits."""

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from tacit.privacy.accounting import pld


def exact(epsilon, mu):
    with gmpy2.context(precision=2000):
        epsilon, mu = gmpy2.mpfr(float(epsilon)), gmpy2.mpfr(float(mu))
        upper, lower = (
            gmpy2.erfc(t / gmpy2.sqrt(gmpy2.mpfr(2))) / 2 for t in (epsilon / mu - mu / 2, epsilon / mu + mu / 2)
        )
        return upper - gmpy2.exp(epsilon) * lower


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 7.0, 40.0, 1e3])
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-15, 1e-10, 1e-5, 0.01, 0.4])
def test_epsilon_keeps_delta_and_a_little_less_does_not(mu, delta):
    found = pld.epsilon(mu, delta)
    assert exact(found, mu) <= delta
    assert found == 0 or exact(found * (1 - 1e-7), mu) > delta


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(-6, 3).map(lambda p: 10**p), x=st.floats(-30, 37))
def test_delta_is_never_below_the_truth_and_close_to_it(mu, x):
    epsilon = max(0.0, mu * (x + mu / 2))
    truth = exact(epsilon, mu)
    with gmpy2.context(precision=2000):
        ratio = float(gmpy2.exp(gmpy2.mpfr(float(pld.log_delta(np.array([epsilon]), mu)[0]))) / truth)
    assert 1 - 1e-12 <= ratio <= 1 + 1e-5  # the float's own logarithm may be off by its last place


def test_the_special_functions_are_ten_times_better_than_assumed():
    points = np.concatenate([np.linspace(0, 25, 300), np.geomspace(25, 150, 40)])
    with gmpy2.context(precision=200):
        for point in points[::3]:
            t = gmpy2.mpfr(float(point))
            truth = gmpy2.exp(t * t) * gmpy2.erfc(t)
            assert abs(float(special.erfcx(point) / truth - 1)) < pld.SPECIAL / 10
            assert (
                abs(float(special.ndtr(point) / (1 - gmpy2.erfc(t / gmpy2.sqrt(gmpy2.mpfr(2))) / 2) - 1))
                < pld.SPECIAL / 10
            )


def test_releases_compose_by_their_squares():
    assert pld.mu_of([(3.0, 9), (4.0, 16 * 3)]) == pytest.approx(2.0, rel=1e-13)
    assert pld.mu_of([(1e200, 1)]) > 0
    assert pld.epsilon(pld.mu_of([(1e-200, 1)]), 1e-5) == float("inf")
