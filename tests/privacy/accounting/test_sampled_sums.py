"""The price of one record in a sum of integers, against exact hockey-sticks in one dimension and brute force in two."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.privacy.accounting import pld, price, rdp
from tacit.privacy.accounting.events import (
    NARROWEST_SAMPLED,
    SUMS,
    SampledGaussianSumDpEvent,
    SampledSumDpEvent,
    W,
    kind_of,
    skellam_curve,
    tau,
)
from tacit.privacy.accounting.rdp import shares_apart

DELTA = 1e-5


def masses(variance, *, law, shift=0, reach=None):
    """log P(X = k) of one share around a shift, k from -reach to reach, to the floats' precision."""
    k = np.arange(-reach, reach + 1)
    if law == "discrete-gaussian":
        logs = -((k - shift) ** 2) / (2 * variance)
        far = np.arange(-60 * math.ceil(math.sqrt(variance)), 60 * math.ceil(math.sqrt(variance)) + 1)
        return logs - np.logaddexp.reduce(-(far**2) / (2 * variance))
    from scipy.special import ive

    return np.log(np.maximum(ive(np.abs(k - shift), variance), 1e-320))


def mixtures(variance, shift, rate, *, law):
    """(with the record, without it), as log masses."""
    reach = math.ceil(14 * math.sqrt(variance)) + 2 * shift
    without, moved = (masses(variance, law=law, shift=by, reach=reach) for by in (0, shift))
    return (np.logaddexp(math.log1p(-rate) + without, math.log(rate) + moved) if rate < 1 else moved), without


def exact(variance, shift, rate, rounds, *, law="discrete-gaussian", pessimistic):
    """The epsilon of the composition by dp-accounting's distributions of the exact masses, rounded up or down."""
    mixed, without = mixtures(variance, shift, rate, law=law)
    found = []
    for upper, lower in ((mixed, without), (without, mixed)):
        one = privacy_loss_distribution.from_two_probability_mass_functions(
            dict(enumerate(lower)),
            dict(enumerate(upper)),
            value_discretization_interval=1e-4,
            pessimistic_estimate=pessimistic,
        )
        found.append(one.self_compose(rounds).get_epsilon_for_delta(DELTA))
    return max(found)


def ours(law, variance, shift, rate, rounds, *, shares=1):
    event = SUMS[law](variance / shares, shares, shift**2, 1, rate, 0.0)
    return price.epsilon(((event, rounds),), delta=DELTA)


@pytest.mark.parametrize(
    ("variance", "shift", "rate", "rounds"),
    [(900.0, 30, 0.3, 20), (900.0, 30, 0.05, 100), (40.0, 4, 0.2, 30), (2500.0, 10, 0.5, 50), (1600.0, 20, 1.0, 5)],
)
def test_the_discrete_price_is_never_below_the_exact_one_and_close_where_the_grid_is_fine(
    variance, shift, rate, rounds
):
    least = exact(variance, shift, rate, rounds, pessimistic=False)
    found = ours("discrete-gaussian", variance, shift, rate, rounds)
    assert found >= least * (1 - 1e-4)
    loss = (variance / (variance - W)) ** 0.5  # what W takes of the multiplier; the rest is the accountant's grid
    assert found <= exact(variance, shift, rate, rounds, pessimistic=True) * loss**3 * 1.005


def test_the_figures_of_the_derivation():
    assert ours("discrete-gaussian", 900.0, 30, 0.3, 20) == pytest.approx(9.55, abs=0.01)
    assert exact(900.0, 30, 0.3, 20, pessimistic=False) == pytest.approx(9.52, abs=0.01)
    assert ours("skellam", 900.0, 30, 0.3, 20) == pytest.approx(10.91, abs=0.05)


def test_the_continuous_price_at_the_same_variance_is_no_bound_on_a_coarse_grid():
    true = exact(0.25, 1, 0.05, 10, pessimistic=False)
    continuous = pld.epsilon_composed(((0.05, 0.5, 10),), DELTA)
    assert true > 8.8 > 8.6 > continuous
    with pytest.raises(BadInput):
        SampledGaussianSumDpEvent(0.25, 1, 1, 1, 0.05, 0.0)


@pytest.mark.parametrize("law", sorted(SUMS))
@pytest.mark.parametrize(
    ("variance", "shift", "rate"), [(60.0, 3, 0.1), (200.0, 20, 0.5), (40.0, 1, 0.9), (100.0, 10, 1.0)]
)
def test_one_release_is_below_no_exact_hockey_stick_in_either_direction(law, variance, shift, rate):
    mixed, without = mixtures(variance, shift, rate, law=law)
    event = SUMS[law](variance, 1, shift**2, 1, rate, 0.0)
    for delta in (1e-3, 1e-6, 1e-9):
        epsilon = price.epsilon(((event, 1),), delta=delta)
        for upper, lower in ((mixed, without), (without, mixed)):
            assert np.maximum(np.exp(upper) - math.exp(epsilon) * np.exp(lower), 0).sum() <= delta * (1 + 1e-6) + 1e-15


def test_brute_force_in_two_dimensions_is_below_the_price_for_every_direction_of_the_same_length():
    variance, rate, rounds = 80.0, 0.3, 4
    event = SampledGaussianSumDpEvent(variance, 1, 25, 2, rate, 0.0)
    epsilon = price.epsilon(((event, rounds),), delta=1e-4)
    for shift in ((5, 0), (3, 4), (0, -5)):
        reach = 14 * math.ceil(math.sqrt(variance))
        flat = [masses(variance, law="discrete-gaussian", shift=by, reach=reach) for by in (0, *shift)]
        without = (flat[0][:, None] + flat[0][None, :]).ravel()
        moved = (flat[1][:, None] + flat[2][None, :]).ravel()
        mixed = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + moved)
        for upper, lower in ((mixed, without), (without, mixed)):
            losses, weights = upper - lower, np.exp(upper)
            grid = 2e-3
            low = math.floor(losses.min() / grid)
            pmf = np.bincount(
                np.floor(losses / grid).astype(int) - low, weights=weights
            )  # rounded down: not above the truth
            total = pmf
            for _ in range(rounds - 1):
                total = np.convolve(total, pmf)
            at = (np.arange(len(total)) + rounds * low) * grid
            assert (total * np.maximum(0, 1 - np.exp(epsilon - at))).sum() <= 1e-4


@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
@pytest.mark.parametrize(("variance", "shift"), [(10.0, 1), (100.0, 8), (900.0, 30)])
def test_skellam_curves_are_above_exact_moments_at_whole_orders_in_both_directions(variance, shift, rate):
    mixed, without = mixtures(variance, shift, rate, law="skellam")
    event = SampledSumDpEvent(variance, 1, shift**2, 1, rate, 0.0)
    known = dict(zip(rdp.ORDERS, skellam_curve(event), strict=True))
    for order in (2, 3, 5, 8):
        for upper, lower in ((mixed, without), (without, mixed)):
            true = np.logaddexp.reduce(order * upper - (order - 1) * lower) / (order - 1)
            assert true <= known[order] * (1 + 1e-9) + 1e-12


@given(st.floats(1.0, 60.0), st.floats(1e-4, 1.0), st.lists(st.floats(0.01, 50.0), min_size=1, max_size=6))
def test_the_mixture_in_the_denominator_is_never_dearer(order, rate, ratios):
    """Pointwise: h(r)^a - h(r)^(1-a) + r (h(1/r)^a - h(1/r)^(1-a)) >= 0, which Theorem 5 of arXiv:1908.10530 integrates."""
    for r in ratios:
        u, v = 1 - rate + rate * r, 1 - rate + rate / r
        terms = (u**order, -(u ** (1 - order)), r * v**order, -r * v ** (1 - order))
        assert math.fsum(terms) >= -1e-12 * max(map(abs, terms))


@pytest.mark.parametrize("variance", [4.0, 9.0, 30.0])
@pytest.mark.parametrize("w", [0.5, 1.0, 2.0])
def test_a_discrete_gaussian_is_a_continuous_one_and_a_step_that_knows_no_shift(variance, w):
    """X drawn around Y ~ N(0, s2 - w), integrated numerically, is within exp(+-tau(w)) of the law of parameter s2."""
    k, y = np.arange(-60, 61), np.linspace(-60, 60, 48_001)
    around = np.exp(-((k[:, None] - y) ** 2) / (2 * w))
    law = np.exp(masses(variance, law="discrete-gaussian", reach=60))

    def apart(wide):
        density = np.exp(-(y**2) / (2 * wide))
        made = (around / around.sum(0)) @ (density / density.sum())
        return np.abs(np.log(made[45:76] / law[45:76])).max()

    assert apart(variance - w) <= tau(w) + 1e-9
    assert apart(variance) > 0.01, "all of the variance around it is another law"


def test_what_a_sum_of_shares_misses_of_one_draw_is_within_theorem_1():
    variance, shares = 0.6, 3
    one = np.exp(masses(variance, law="discrete-gaussian", reach=40))
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    law = np.exp(masses(shares * variance, law="discrete-gaussian", reach=40 * shares))
    middle = slice(40 * shares - 12, 40 * shares + 13)
    assert np.abs(np.log(total[middle] / law[middle])).max() <= shares_apart(variance, shares)


def test_the_slack_that_is_paid_holds_what_every_coordinate_and_every_share_misses():
    """At the narrowest share: 4 exp(-2 pi^2 w) from continuous to discrete, and Theorem 1's first term, 10 exp(-pi^2 v)."""
    dimension, variance = 10**7, NARROWEST_SAMPLED
    one, two = (SUMS["discrete-gaussian"](variance, shares, 900, dimension, 0.2, 0.0) for shares in (1, 2))
    slack = kind_of(one).slack
    step, missed = 4 * math.exp(-2 * math.pi**2 * W), 10 * math.exp(-(math.pi**2) * variance)
    assert slack(one) >= dimension * step
    assert slack(two) >= dimension * (step + missed)
    both = SUMS["discrete-gaussian"](variance, 2, 900, dimension, 0.2, 1e-20)
    assert slack(both) >= 1e-20 + slack(two)


@pytest.mark.parametrize("law", sorted(SUMS))
def test_less_noise_a_higher_rate_more_rounds_and_more_slack_cost_more(law):
    base = SUMS[law](100.0, 5, 900, 50, 0.2, 1e-40)

    def cost(rounds=10, **change):
        fields = {name: getattr(base, name) for name in base.__dataclass_fields__} | change
        return price.epsilon(((SUMS[law](**fields), rounds),), delta=DELTA)

    for dearer in (
        {"share_variance": 100 * (2 / 3) ** 2},
        {"sampling_rate": 0.3},
        {"rounds": 15},
        {"shares": 4},
        {"l2_squared": 1200},
    ):
        assert cost(**dearer) > cost() * 1.02
    assert cost(slack=1e-6) == math.inf
    alone = base.alone()
    assert type(alone) is SUMS[law]
    assert alone.shares == 1


def test_order_of_composition_and_kinds_beside_each_other():
    """Sums compose with sampled Gaussians by privacy losses, and with Skellam sums by Rényi curves."""
    gaussian, skellam = (SUMS[law](100.0, 5, 900, 50, 0.2, 0.0) for law in ("discrete-gaussian", "skellam"))
    for pair in itertools.permutations([(gaussian, 3), (skellam, 2)]):
        together = price.epsilon(tuple(pair), delta=DELTA)
        assert together > max(price.epsilon((one,), delta=DELTA) for one in pair)
