import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.privacy.accounting import price


def poisson(rate, z):
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))


@pytest.mark.parametrize(("steps", "by_losses", "by_curves"), [(150, 4.18, 4.75), (1500, 13.9, 15.1)])
def test_golden_values(steps, by_losses, by_curves):
    composition = ((poisson(0.05, 1.0), steps),)
    assert price.epsilon(composition, delta=1e-5) == pytest.approx(by_losses, abs=0.05 if steps > 150 else 0.005)
    assert price._rdp(composition, 1e-5)[0] == pytest.approx(by_curves, abs=0.05 if steps > 150 else 0.005)


@pytest.mark.parametrize(
    ("rate", "z", "steps"), [(0.05, 1.0, 150), (0.01, 0.7, 3000), (0.2, 8.0, 500), (1.0, 20.0, 100), (0.05, 25.0, 1000)]
)
def test_the_coarse_grid_is_an_upper_bound_within_half_a_percent_of_the_library_default(rate, z, steps):
    fine = PLDAccountant(value_discretization_interval=1e-5 if z > 5 else 1e-4)
    event = dp_accounting.GaussianDpEvent(z) if rate == 1 else poisson(rate, z)
    reference = fine.compose(event, steps).get_epsilon(1e-5)
    ours = price.epsilon(((event, steps),), delta=1e-5)
    assert reference * (1 - 1e-4) <= ours <= reference * 1.005


def test_different_releases_compose_to_more_than_each_and_less_than_their_sum():
    one, other = ((poisson(0.05, 1.0), 100),), ((poisson(0.1, 2.0), 50),)
    both = price.epsilon(price.compose([*one, *other]), delta=1e-5)
    alone = [price.epsilon(part, delta=1e-5) for part in (one, other)]
    assert max(alone) < both < sum(alone)


def test_compose_counts_equal_events_wherever_they_stand():
    step = poisson(0.05, 1.0)
    nested = dp_accounting.SelfComposedDpEvent(dp_accounting.SelfComposedDpEvent(step, 3), 2)
    assert price.compose([(nested, 2), (step, 1)]) == ((step, 13),)
    assert price.compose([(step, 0)]) == ()
    assert price.compose([(step, np.int64(3))]) == ((step, 3),)


def test_nothing_released_costs_nothing():
    assert price.epsilon((), delta=1e-5) == 0.0


def test_one_release_with_almost_no_noise_is_priced_and_huge():
    assert price.epsilon(((dp_accounting.GaussianDpEvent(1e-3), 1),), delta=1e-5) == pytest.approx(5e5, rel=0.02)


def test_an_event_without_a_price_is_refused():
    with pytest.raises(BadInput, match="LaplaceDpEvent"):
        price.epsilon(((dp_accounting.LaplaceDpEvent(1.0), 1),), delta=1e-5)
    with pytest.raises(BadInput, match="'telepathy'"):
        price.from_text('{"event": "telepathy"}')


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_a_delta_outside_its_range_is_refused(delta):
    with pytest.raises(BadInput, match="delta"):
        price.epsilon(((poisson(0.1, 1.0), 1),), delta=delta)


GRID_TOLERANCE = 2e-3  # two neighbouring grids may place the same loss differently: the documented 0.1 %, twice

releases = st.tuples(
    st.floats(-6, -1e-3).map(lambda power: 10**power),
    st.floats(-1.5, 4).map(lambda power: 10**power),
    st.integers(1, 10**4),
)
deltas = st.floats(-14, -1).map(lambda power: 10**power)


@settings(max_examples=25, deadline=None)
@given(release=releases, delta=deltas, more=st.floats(1.0001, 2.0))
def test_more_noise_more_delta_or_fewer_steps_never_cost_more(release, delta, more):
    rate, z, steps = release

    def cost(z=z, steps=steps, delta=delta):
        return price.epsilon(((poisson(rate, z), steps),), delta=delta)

    now = cost()
    assert 0 <= now < math.inf
    assert cost(z=z * more) <= now * (1 + GRID_TOLERANCE)
    assert cost(steps=math.ceil(steps * more)) >= now * (1 - 1e-6)
    assert cost(delta=delta / more) >= now * (1 - 1e-6)


@settings(max_examples=25, deadline=None)
@given(release=releases, delta=deltas)
def test_every_price_is_between_its_neighbours_in_kind(release, delta):
    rate, z, steps = release
    unsampled = price.epsilon(((dp_accounting.GaussianDpEvent(z), steps),), delta=delta)
    sampled = price.epsilon(((poisson(rate, z), steps),), delta=delta)
    assert sampled <= unsampled
    assert price._rdp(((poisson(rate, z), steps),), delta)[0] >= sampled * (1 - GRID_TOLERANCE)


def test_the_price_names_what_priced_it():
    def name(event, steps, delta=1e-5):
        return price.method(((event, steps),), delta=delta)

    assert name(dp_accounting.GaussianDpEvent(1.0), 3) == "GDP (closed form)"
    assert name(poisson(0.05, 1.0), 150) == "PLD (connect the dots, numerical error bounded)"
    assert name(poisson(0.3, 0.3), 20_000) == "RDP (rounded up)"
    assert price.method((), delta=1e-5) == "nothing released"


def test_gaussians_among_sampled_releases_are_one_gaussian():
    sampled = (poisson(0.05, 1.0), 100)
    many = [(dp_accounting.GaussianDpEvent(20.0), 50), (dp_accounting.GaussianDpEvent(40.0), 200)]
    one = (dp_accounting.GaussianDpEvent(2.0), 1)  # 50/400 + 200/1600 = 1/4
    found = price.epsilon(price.compose([sampled, *many]), delta=1e-5)
    assert found == pytest.approx(price.epsilon(price.compose([sampled, one]), delta=1e-5), rel=1e-9)
    parts = [price.epsilon((part,), delta=1e-5) for part in (sampled, one)]
    assert max(parts) < found < sum(parts)
