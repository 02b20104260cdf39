"""Attacks on the number itself: compositions chosen where floating point, not mathematics, decides the printed epsilon."""

import math

import dp_accounting
import gmpy2
import numpy as np
import pytest

from tacit.errors import BadInput
from tacit.privacy.accounting import price


def gaussian(z):
    return dp_accounting.GaussianDpEvent(z)


def poisson(rate, z):
    return dp_accounting.PoissonSampledDpEvent(rate, gaussian(z))


def true_delta(epsilon, mu):
    """delta of a mu-GDP mechanism (arXiv:1805.06530, Theorem 8) in 600 bits: an independent reference."""
    with gmpy2.context(precision=600):
        epsilon, mu = gmpy2.mpfr(epsilon), gmpy2.mpfr(mu)

        def phi(t):
            return gmpy2.erfc(-t / gmpy2.sqrt(gmpy2.mpfr(2))) / 2

        return phi(mu / 2 - epsilon / mu) - gmpy2.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("z", "delta", "exact"),
    [
        (10_000.0, 1e-12, 0.6470081),
        (1_000.0, 1e-12, 7.2384944),
        (10_000.0, 1e-10, 0.5746403),
        (3_000.0, 1e-10, 2.0181070),
    ],
)
def test_a_million_steps_at_a_tiny_delta_print_the_truth_not_the_rounding_of_a_transform(z, delta, exact):
    found = price.epsilon(((gaussian(z), 10**6),), delta=delta)
    mu = math.sqrt(10**6) / z
    assert true_delta(found, mu) <= delta < true_delta(found * (1 - 1e-9), mu)
    assert found == pytest.approx(exact, rel=1e-6)


def test_more_noise_is_not_made_to_look_dearer_by_rounding():
    prices = [price.epsilon(((gaussian(z), 10**6),), delta=1e-12) for z in (300.0, 316.0, 1_000.0, 3_160.0, 10_000.0)]
    assert prices == sorted(prices, reverse=True)


@pytest.mark.parametrize(("z", "delta"), [(10_000.0, 1e-12), (10_000.0, 1e-10), (1_000.0, 1e-12), (30_000.0, 1e-11)])
def test_drawing_all_but_a_billionth_does_not_hide_a_million_steps_from_the_price(z, delta):
    """P_q^T >= q^T P^T as measures, so delta(epsilon) >= q^T delta_0(epsilon - T log q): a lower bound without any transform."""
    rate, steps = 1 - 1e-9, 10**6
    found = price.epsilon(((poisson(rate, z), steps),), delta=delta)
    drawn = rate**steps
    mu = math.sqrt(steps) / z
    assert float(true_delta(found - math.log(drawn), mu)) * drawn <= delta
    assert found < price.epsilon(((gaussian(z * 0.999), steps),), delta=delta)


@pytest.mark.parametrize(
    ("rate", "z", "steps", "delta"), [(1e-4, 1e6, 10**9, 1e-13), (1e-3, 1e6, 10**9, 1e-11), (1e-9, 1e3, 10**15, 1e-11)]
)
def test_a_divergence_that_rounds_below_zero_is_not_free(rate, z, steps, delta):
    """TV >= 1 - BC^T with 1 - BC >= E w^2 / 8 - E w^3 / 16 for the likelihood ratio 1 + w: above delta, so epsilon > 0."""
    second = rate**2 * math.expm1(1 / z**2)
    third = rate**3 * 4 / z**4  # E (e^s - 1)^3 = e^(3 mu^2) - 3 e^(mu^2) + 2 <= 4 mu^4 for mu <= 0.1
    assert -math.expm1(steps * math.log1p(-(second / 8 - third / 16))) > delta
    assert price.epsilon(((poisson(rate, z), steps),), delta=delta) > 0


@pytest.mark.parametrize("steps", [-5, 0, 2.5, True, math.inf, 2**60, "3", None])
def test_an_event_whose_steps_pay_charges_back_is_refused(steps):
    text = price.to_text(dp_accounting.SelfComposedDpEvent(poisson(0.05, 1.0), 7))
    with pytest.raises(BadInput):
        price.from_text(text.replace('"steps": 7', f'"steps": {"Infinity" if steps == math.inf else _json(steps)}'))


def _json(value):
    return {True: "true", None: "null"}.get(value, repr(value).replace("'", '"'))


@pytest.mark.parametrize("count", [-1, 1.5, 2**54, math.nan])
def test_releases_cannot_be_taken_back_by_counting_them_backwards(count):
    step = poisson(0.05, 1.0)
    with pytest.raises(BadInput, match="whole number of releases"):
        price.compose([(step, 5), (step, count)])
    with pytest.raises(BadInput, match="whole number of releases"):
        price.epsilon(((dp_accounting.SelfComposedDpEvent(step, count), 1),), delta=1e-5)


@pytest.mark.parametrize("z", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_no_noise_is_refused_and_not_priced(z):
    for event in (gaussian(z), poisson(0.1, z)):
        with pytest.raises(BadInput, match="noise_multiplier"):
            price.epsilon(((event, 1),), delta=1e-5)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_a_sample_larger_than_everybody_is_refused_and_not_priced(rate):
    with pytest.raises(BadInput, match="sampling_rate"):
        price.epsilon(((poisson(rate, 1.0), 1),), delta=1e-5)


@pytest.mark.parametrize("text", ["[]", "{", "3", '{"event": "sampled-gaussian"}', "[" * 100_000, '{"event": []}'])
def test_text_that_is_no_event_is_refused_in_one_sentence(text):
    with pytest.raises(BadInput, match="This ledger holds"):
        price.from_text(text)


def test_a_budget_that_is_not_a_number_among_many_is_refused():
    for bad in (math.nan, math.inf):
        with pytest.raises(BadInput, match="epsilon"):
            price.noise_multipliers(np.append(np.linspace(1, 2, 60), bad), delta=1e-5, sampling_rate=0.05, steps=10)


def test_a_loud_release_beside_a_quiet_one_is_priced_without_filling_the_memory():
    loud, quiet = (poisson(0.01, 0.02), 1), (poisson(1e-3, 1e4), 10)
    both = price.epsilon(price.compose([loud, quiet]), delta=1e-5)
    assert both == pytest.approx(price.epsilon((loud,), delta=1e-5), rel=1e-3)
