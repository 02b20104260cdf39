"""Rényi curves held against 200 bits and more."""

import itertools
import math

import gmpy2
import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon

from tacit.privacy.accounting import rdp
from tacit.privacy.accounting.rdp import ORDERS, WHOLE


def exact(rate, z, order):
    """(order - 1) D by the binomial sum as it stands in the paper, cancellation and all."""
    with gmpy2.context(precision=400):
        q, s = gmpy2.mpfr(rate), gmpy2.mpfr(z)
        terms = [
            math.comb(order, k) * q**k * (1 - q) ** (order - k) * gmpy2.exp(gmpy2.mpfr(k * (k - 1)) / (2 * s * s))
            for k in range(order + 1)
        ]
        return float(gmpy2.log(gmpy2.fsum(terms)))


@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.01, 0.3, 1 - 1e-9])
@pytest.mark.parametrize("z", [0.05, 0.7, 20.0, 1e3, 1e6])
def test_the_curve_at_whole_orders_is_the_exact_one_rounded_up(rate, z):
    for orders, found in ((WHOLE, rdp.poisson_whole(rate, z)), (ORDERS, rdp.poisson(rate, z))):
        for order in (2, 11, 63, 256):
            (index,) = np.flatnonzero(orders == order)
            truth = exact(rate, z, order) / (order - 1)
            assert truth <= found[index] <= truth * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "z"), [(0.05, 1.0), (0.01, 0.7), (0.3, 3.0), (1e-3, 20.0)])
def test_between_whole_orders_the_curve_is_above_the_integral(rate, z):
    x = np.linspace(-14 * z, 14 * z + 11, 400_001)
    for order in (1.5, 2.5, 5.7, 10.9):
        ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * z * z)))
        lifted = np.expm1(order * ratio) - order * np.expm1(ratio)  # the mean of the ratio is 1, taken out exactly
        density = np.exp(-x * x / (2 * z * z)) / (z * math.sqrt(2 * math.pi))
        truth = math.log1p(float((lifted * density).sum() * (x[1] - x[0]))) / (order - 1)
        index = int(np.argmin(np.abs(ORDERS - order)))
        assert truth * (1 - 1e-10) <= rdp.poisson(rate, z)[index] <= truth * 1.4  # a chord, where the series fails


def test_more_noise_never_has_a_higher_curve_across_the_edges_of_the_series():
    for rate in (1e-10, 0.05, 1 - 1e-10):
        curves = [rdp.poisson(rate, z) for z in (0.29, 0.2999, 0.3, 0.31, 9.9e3, 1.01e4, 2e4)]
        for less, more in itertools.pairwise(curves):
            assert (more <= less * (1 + 1e-9) + rdp.SERIES).all()


def test_the_conversion_is_that_of_dp_accounting():
    curve = 150 * rdp.poisson(0.05, 1.0)
    for delta in (1e-3, 1e-5, 1e-12):
        theirs = compute_epsilon(ORDERS.tolist(), curve.tolist(), delta)[0]
        assert theirs <= rdp.epsilon(ORDERS, curve, delta) <= theirs * (1 + 1e-9)
    assert rdp.epsilon(ORDERS, curve * 1e-20, 1e-5) == 0
