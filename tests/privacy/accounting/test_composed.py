"""Discretised losses held against the exact curve, and their composition against exact integers."""

import itertools
import math
from dataclasses import replace

import gmpy2
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from tacit.privacy.accounting import pld as composed
from tacit.privacy.accounting import pld as discretised
from tacit.privacy.accounting import pld as gdp
from tacit.privacy.accounting.pld import LONG, sampled_gaussian


def curve(losses, interval, epsilon):
    """The slow twin: delta(epsilon) of masses on a grid."""
    at = (losses.first + np.arange(len(losses.masses))) * LONG(interval)
    return losses.infinite + float((losses.masses * np.maximum(-np.expm1(epsilon - at), 0)).sum())


def removing(epsilon, rate, z):
    """delta of removing one unit, straight from the two densities: sup over events, at the likelihood ratio's threshold."""
    with gmpy2.context(precision=300):
        growth = gmpy2.exp(gmpy2.mpfr(float(epsilon))) - 1 + gmpy2.mpfr(float(rate))
        if growth <= 0:
            return 1 - gmpy2.exp(gmpy2.mpfr(float(epsilon)))
        s, mu = gmpy2.log(growth / gmpy2.mpfr(float(rate))), 1 / gmpy2.mpfr(float(z))
        with_one, without = (gmpy2.erfc(t / gmpy2.sqrt(gmpy2.mpfr(2))) / 2 for t in (s / mu - mu / 2, s / mu + mu / 2))
        return gmpy2.mpfr(float(rate)) * with_one - growth * without


@pytest.mark.parametrize(
    ("rate", "z"), [(0.05, 1.0), (1e-3, 0.5), (0.9, 3.0), (1.0, 5.0), (1e-9, 1.0), (0.5, 1e4), (0.99, 0.3)]
)
def test_one_step_is_nowhere_below_the_exact_curve_and_close_to_it(rate, z):
    interval = composed._interval(rate, z)
    remove, add = sampled_gaussian(rate, z, interval)
    for epsilon in np.linspace(-3 / z, 6 / z, 61) * rate:
        truth = removing(epsilon, rate, z)
        found = curve(remove, interval, epsilon)
        assert float(truth) <= found + 1e-15 * found
        turned = float(1 - gmpy2.exp(-gmpy2.mpfr(float(epsilon))) + gmpy2.exp(-gmpy2.mpfr(float(epsilon))) * truth)
        assert turned <= curve(add, interval, -epsilon) + 1e-15
        assert found <= float(truth) + 0.4 * rate
    for losses in (remove, add):
        assert float(losses.masses.sum()) + losses.infinite == pytest.approx(1, abs=1e-9)


def test_the_masses_are_those_of_dp_accounting():
    remove, add = sampled_gaussian(0.05, 1.0, 3e-3)
    theirs = pld.from_gaussian_mechanism(1.0, sampling_prob=0.05, value_discretization_interval=3e-3)
    for ours, other in ((remove, theirs._pmf_remove), (add, theirs._pmf_add)):
        other = other.to_dense_pmf()
        start = other._lower_loss - ours.first
        np.testing.assert_allclose(ours.masses[start : start + other.size].astype(float), other._probs, atol=1e-12)


def whole(number):
    """A long double, exactly."""
    high = float(number)
    return gmpy2.mpfr(high) + gmpy2.mpfr(float(number - LONG(high)))


@pytest.mark.parametrize(("rate", "z", "interval"), [(0.3, 1.5, 0.1), (0.01, 1.0, 0.05), (1.0, 2.0, 0.02)])
def test_no_mass_of_a_step_is_below_what_its_curve_gives_in_exact_arithmetic(rate, z, interval):
    """Rounded to the nearest, half of them would be: their sum, and so the price, could lie below the truth."""
    remove, add = sampled_gaussian(rate, z, interval)
    losses = np.arange(remove.first, remove.first + len(remove.masses)) * interval
    excess = discretised._excess(losses, rate=rate, mu=gdp.mu_of([(z, 1)]))
    with gmpy2.context(precision=300):
        curve = [gmpy2.mpfr(float(value)) for value in excess]
        steps = [b - a for a, b in itertools.pairwise(curve)]
        growth = gmpy2.expm1(gmpy2.mpfr(interval))
        for k, mass in enumerate(remove.masses):
            after = steps[k] if k < len(steps) else 0
            before = steps[k - 1] if k else 0
            exact = (after - (growth + 1) * before) / growth - (curve[0] if k == 0 else 0) + (k == -remove.first)
            assert whole(mass) >= exact
            turned = whole(mass) * gmpy2.exp(-gmpy2.mpfr(interval) * (k + remove.first))
            assert whole(add.masses[len(remove.masses) - 1 - k]) >= turned


@pytest.mark.parametrize("tilt", [0.1, 1.5, 4.0])
def test_no_tilted_mass_is_below_its_exact_one(tilt):
    losses, _ = sampled_gaussian(0.3, 1.5, 0.1)
    way = composed._tilted([(losses, 1)], tilt)
    with gmpy2.context(precision=300):
        scale = sum(
            whole(mass) * gmpy2.exp(gmpy2.mpfr(tilt) * (losses.first + k)) for k, mass in enumerate(losses.masses)
        )
        for k, (mass, tilted) in enumerate(zip(losses.masses, way.steps[0][0].masses, strict=True)):
            assert whole(tilted) >= whole(mass) * gmpy2.exp(gmpy2.mpfr(tilt) * (losses.first + k)) / scale


@pytest.mark.parametrize("tail", [2.0, 4.0])
def test_what_lies_beyond_a_short_grid_is_an_infinite_loss_in_both_directions(tail):
    z, interval = 2.0, 0.02
    for losses in sampled_gaussian(1.0, z, interval, tail):
        last = (losses.first + len(losses.masses) - 1) * interval
        assert losses.infinite >= float(np.exp(gdp.log_delta(np.array([last]), 1 / z))[0]) * (1 - 1e-9) > 1e-7


def test_what_is_lost_beyond_the_grid_is_paid_out_of_delta():
    losses, _ = sampled_gaussian(0.3, 1.5, 0.1)

    def priced(infinite):
        way = composed._tilted([(replace(losses, infinite=infinite), 1)], 0.5)
        return composed._one_way(way, composed._window(way.steps), 0.1, 1e-3)[0]

    assert math.isinf(priced(1.1e-3))
    assert priced(0.0) < priced(9e-4) * 0.9 < math.inf


def exact_power(masses, count):
    """Coefficients of a polynomial's power in exact integers, by one big product (Kronecker substitution)."""
    bits = 240
    whole = [int(gmpy2.mpz(gmpy2.rint(gmpy2.mpfr(float(mass), 260) * 2**bits))) for mass in masses]
    width = (bits + 16) * count
    packed = gmpy2.mpz(0)
    for value in reversed(whole):
        packed = (packed << width) + value
    power = packed**count
    mask = (gmpy2.mpz(1) << width) - 1
    size = (len(whole) - 1) * count + 1
    return [float(gmpy2.mpfr((power >> (width * i)) & mask) / gmpy2.mpfr(2) ** (bits * count)) for i in range(size)]


@pytest.mark.parametrize("count", [1, 2, 7, 32])
def test_every_composed_mass_is_at_least_the_exact_one_and_at_most_a_bound_above(count):
    losses, _ = sampled_gaussian(0.3, 1.5, 0.1)
    rounded = type(losses)(losses.first, losses.masses.astype(float).astype(LONG), losses.infinite)
    centre, low, high = composed._window([(rounded, count)])
    found, _ = composed._convolved([(rounded, count)], low, high)
    exact = exact_power(rounded.masses, count)
    first = centre + low - rounded.first * count
    window = np.array(exact)[first : first + len(found)]
    assert (found.astype(float) >= window * (1 - 1e-15)).all()
    assert float((found - window).max()) < count * 1e-15
    assert math.fsum(exact) - math.fsum(window) <= 2.1 * composed.TAIL_COMPOSED + 1e-18


def test_two_kinds_of_steps_convolve_to_the_exact_masses():
    one, other = sampled_gaussian(0.3, 1.5, 0.1)[0], sampled_gaussian(0.1, 1.0, 0.1)[0]
    centre, low, high = composed._window([(one, 2), (other, 1)])
    found, _ = composed._convolved([(one, 2), (other, 1)], low, high)
    exact = np.convolve(np.convolve(one.masses, one.masses), other.masses)
    first = centre + low - (2 * one.first + other.first)
    np.testing.assert_allclose(found.astype(float), exact[first : first + len(found)].astype(float), atol=1e-15)
    assert (found >= exact[first : first + len(found)] * (1 - LONG(1e-15))).all()


@pytest.mark.parametrize(
    ("z", "steps", "delta"),
    [
        (5.0, 10, 1e-15),
        (20.0, 100, 1e-12),
        (100.0, 10**4, 1e-9),
        (300.0, 10**5, 1e-6),
        (1e4, 10**6, 1e-13),
        (5.0, 10, 1e-30),
    ],
)
def test_gaussians_sent_through_the_transform_cost_a_little_more_than_their_closed_form(z, steps, delta):
    exact = gdp.epsilon(gdp.mu_of([(z, steps)]), delta)
    assert exact <= composed.epsilon_composed(((1.0, z, steps),), delta) <= exact * 1.01


def test_where_losses_are_too_large_for_a_grid_nothing_is_said():
    assert composed.epsilon_composed(((0.5, 1e-3, 1),), 1e-5) == math.inf


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-14, 1e-25])
@pytest.mark.parametrize("count", [1, 40])
def test_tilted_masses_multiplied_back_are_at_least_the_exact_ones_and_close_where_delta_lies(count, delta):
    losses, _ = sampled_gaussian(0.3, 1.5, 0.1)
    rounded = type(losses)(losses.first, losses.masses.astype(float).astype(LONG), losses.infinite)
    way = composed._tilted([(rounded, count)], composed._reach(composed._centred([(rounded, count)]), delta)[1])
    centre, low, high = composed._window(way.steps)
    at = np.arange(centre + low, centre + high + 1).astype(LONG)
    back = np.exp(way.log_scale - LONG(way.tilt) * at) * (1 + 2 * way.off)
    found = composed._convolved(way.steps, low, high)[0] * back
    exact = np.zeros(len(found))
    known = np.array(exact_power(rounded.masses, count))
    first = centre + low - rounded.first * count
    kept = slice(max(first, 0), first + len(found))
    exact[max(-first, 0) : max(-first, 0) + len(known[kept])] = known[kept]
    assert (found.astype(float) >= exact * (1 - 1e-15)).all()
    near = np.cumsum(exact[::-1])[::-1] <= 100 * delta
    assert float((found - exact)[near].sum()) <= 1e-6 * delta
    assert math.fsum(known[first + len(found) :]) <= composed.TAIL_COMPOSED * float(back[-1]) * 1.01


def test_one_release_is_priced_as_its_own_curve_at_any_delta():
    for delta in (1e-3, 1e-5, 1e-14, 1e-25):
        found = composed.epsilon_composed(((0.01, 1.0, 1),), delta)
        assert float(removing(found, 0.01, 1.0)) <= delta
        assert float(removing(found * 0.998, 0.01, 1.0)) > delta


def test_the_slow_inversion_agrees():
    losses = np.array([0.5, 1.0, 1.5], dtype=LONG)
    masses = np.array([0.1, 0.01, 0.001], dtype=LONG)
    for delta in (0.04, 5e-3, 3e-4):
        found = composed._invert(losses, masses, 1e-5, delta)
        curve_at = 1e-5 + float((masses * np.maximum(-np.expm1(found - losses), 0)).sum())
        assert curve_at == pytest.approx(delta, rel=1e-9)
        assert curve_at <= delta
    assert composed._invert(losses, masses, 1e-5, 0.5) == 0
