"""What is printed is never smaller than what was computed, and names what computed it."""

import math

import numpy as np
import pytest
from redteam.careless_researcher import Researcher, natural_rows

from tacit.privacy.accounting import price
from tacit.privacy.guarantee import shown, shown_delta
from tacit.report.price import lines, of_numbers


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


@pytest.mark.parametrize("epsilon", [1e-13, 2.0000000000004, 0.3849999999, 5.0000000000001, 0.1 + 0.2, 1e9 + 1e-6])
def test_no_epsilon_is_printed_smaller_than_it_is(epsilon):
    assert float(shown(epsilon)) >= epsilon
    assert float(shown(epsilon)) <= epsilon + 0.001


@pytest.mark.parametrize("delta", [1e-5 / 3, 1.2345674e-5, 9.999991e-7])
def test_no_delta_is_printed_smaller_than_it_is(delta):
    assert float(shown_delta(delta)) >= delta
    assert float(shown_delta(delta)) <= delta * (1 + 1e-5)


@pytest.mark.parametrize("z", np.linspace(0.7, 3.0, 8).tolist())
def test_a_plan_prints_no_epsilon_below_its_price_and_no_noise_that_costs_more_than_asked(z):
    def printed(**given):
        said = lines(of_numbers(delta=1e-5, sampling_rate=0.05, steps=120, **given))
        return {name: float(text.split()[0]) for name, text in said if text[0].isdigit()}

    found = printed(epsilon=None, noise_multiplier=z)
    event = price.from_text(
        f'{{"event": "sampled-gaussian", "noise_multiplier": {z!r}, "sampling_rate": 0.05, "steps": 120}}'
    )
    exact = price.epsilon(price.compose([(event, 1)]), delta=1e-5)
    assert exact <= found["epsilon"] <= exact * (1 + 1e-4)
    again = printed(epsilon=exact, noise_multiplier=None)["noise multiplier"]
    event = price.from_text(
        f'{{"event": "sampled-gaussian", "noise_multiplier": {again!r}, "sampling_rate": 0.05, "steps": 120}}'
    )
    assert price.epsilon(price.compose([(event, 1)]), delta=1e-5) <= exact


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_accountant_that_is_named_is_the_one_whose_bound_is_printed(researcher, rate):
    """Every sentence said PLD (dp-accounting), whatever had priced it."""
    found = researcher.run(train={"sampling_rate": rate})
    (composition,) = set(found.ledger.compositions("record").values())
    named = price.method(composition, delta=1e-5)
    assert found.guarantee.accountant == named
    assert f"computed by {named}" in found.sentence
    assert "dp-accounting" not in found.sentence
    assert ("closed form" in named) == (rate == 1.0)


def test_a_client_that_has_left_the_data_still_counts_in_what_all_runs_come_to(researcher):
    arrays = natural_rows(researcher.place / "rows.npz", rows=120)
    data = {"name": "npz", "path": str(researcher.place / "rows.npz"), "partition": "natural", "classes": 2}
    np.savez(researcher.place / "test.npz", x=arrays["x"][:9] + 9, y=arrays["y"][:9])
    data |= {"clients": 20, "examples_per_client": None, "test_path": str(researcher.place / "test.npz")}
    settings = {"data": data, "model": {"name": "mlp"}}
    budgets = {"0": 49.0, "1": 1.0, "2": 1.0}
    loud = {"epsilon": budgets, "noise_multiplier": None}
    first = researcher.run("one", **settings, privacy=researcher.shared() | loud)
    kept = arrays["client"] != 0
    np.savez(researcher.place / "rows.npz", **{name: part[kept] for name, part in arrays.items()})
    second = researcher.run("two", **settings, privacy=researcher.shared() | {"noise_multiplier": 50.0})
    assert first.guarantee.epsilon_max > 20
    assert second.guarantee.others.epsilon >= first.guarantee.epsilon_max
    assert math.isfinite(second.guarantee.others.epsilon)
