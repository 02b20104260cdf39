"""What `tacit plan` says before anything runs."""

import numpy as np
import pytest

import tacit
from tacit.errors import BadInput
from tacit.report import planned, plans


@pytest.fixture
def many(tmp_path):
    """2,400 clients with one record each."""
    rng = np.random.default_rng(0)
    place = tmp_path / "many.npz"
    np.savez(
        place,
        x=rng.normal(size=(2400, 2)),
        y=rng.integers(0, 2, 2400),
        client=np.arange(2400),
        x_test=rng.normal(size=(10, 2)),
        y_test=rng.integers(0, 2, 10),
    )

    def build(**privacy):
        train = {"rounds": 300, "clients_per_round": 30} | privacy.pop("train", {})
        return tacit.Experiment(
            data={"name": "npz", "path": str(place), "partition": "natural", "classes": 2},
            train=train,
            privacy={"kind": "central", "epsilon": float("inf"), "noise_multiplier": 1.0} | privacy,
        )

    return build


def test_2400_clients_30_a_round_300_rounds_at_z_1_cost_epsilon_1_35(many):
    (row,) = planned.of_experiment(many())
    assert row["epsilon_spent"] == pytest.approx(1.35, abs=0.02)
    assert (row["clients"], row["sampling_rate"][0], row["affordable_rounds"][0]) == (2400, 30 / 2400, 300)
    assert row["guarantee"].startswith("client level, add or remove one client")


def test_the_same_with_rdp_and_with_cohorts_of_a_fixed_size(many):
    assert planned.of_experiment(many(accountant="rdp"))[0]["epsilon_spent"] == pytest.approx(1.71, abs=0.02)
    fixed = planned.of_experiment(many(accountant="rdp", train={"sampler": "fixed"}))[0]
    assert fixed["epsilon_spent"] == pytest.approx(2.52, abs=0.02)
    assert fixed["guarantee"].startswith("client level, replace one client")


def test_an_epsilon_becomes_the_smallest_noise_that_keeps_it(many):
    (row,) = planned.of_experiment(many(epsilon=1.35, noise_multiplier=None))
    assert row["noise_multiplier"][0] == pytest.approx(1.0, abs=0.01)
    assert row["epsilon_spent"] <= 1.35
    assert row["affordable_rounds"] == [300, 300]


def test_a_given_noise_says_how_many_rounds_it_affords(many):
    (row,) = planned.of_experiment(many(epsilon=1.0))
    assert 0 < row["affordable_rounds"][0] < 300
    assert row["epsilon_spent"] <= 1.0
    assert plans.table([row]).row_count == 1


def test_client_level_local_dp_is_planned_per_client(many):
    local = {"kind": "local", "unit": "client", "epsilon": 3.0, "noise_multiplier": None}
    (row,) = planned.of_experiment(many(**local, train={"rounds": 10}))
    assert row["guarantee"].startswith("client level, one client's data against none")
    assert row["sampling_rate"] == [1.0, 1.0]


def test_an_experiment_without_a_promise_has_no_plan(many):
    with pytest.raises(BadInput, match="promises nothing"):
        planned.of_experiment(many(kind="none", noise_multiplier=None))
