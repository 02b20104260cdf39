import dp_accounting
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from tacit.errors import BadInput
from tacit.privacy import price


def poisson(rate, z):
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))


@pytest.mark.parametrize(
    ("steps", "accountant", "expected"),
    [(150, "pld", 4.18), (150, "rdp", 4.75), (1500, "pld", 13.9), (1500, "rdp", 15.1)],
)
def test_golden_values(steps, accountant, expected):
    found = price.epsilon(((poisson(0.05, 1.0), steps),), delta=1e-5, accountant=accountant)
    assert found == pytest.approx(expected, abs=0.05 if steps > 150 else 0.005)


def test_the_golden_value_for_central_sampling():
    found = price.epsilon(((poisson(30 / 2400, 1.0), 300),), delta=1e-5)
    assert found == pytest.approx(1.35, abs=0.02)


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


def test_nothing_released_costs_nothing():
    assert price.epsilon((), delta=1e-5) == 0.0


def test_one_release_with_almost_no_noise_is_priced_and_huge():
    assert price.epsilon(((dp_accounting.GaussianDpEvent(1e-3), 1),), delta=1e-5) == pytest.approx(5e5, rel=0.02)


def test_events_read_back_from_text_exactly():
    for event in (
        dp_accounting.SelfComposedDpEvent(poisson(1 / 3, 0.1 + 0.2), 7),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 1),
    ):
        assert price.from_text(price.to_text(event)) == event


def test_an_event_without_a_price_is_refused():
    with pytest.raises(BadInput, match="LaplaceDpEvent"):
        price.epsilon(((dp_accounting.LaplaceDpEvent(1.0), 1),), delta=1e-5)
    with pytest.raises(BadInput, match="'telepathy'"):
        price.from_text('{"event": "telepathy"}')


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_a_delta_outside_its_range_is_refused(delta):
    with pytest.raises(BadInput, match="delta"):
        price.epsilon(((poisson(0.1, 1.0), 1),), delta=delta)
