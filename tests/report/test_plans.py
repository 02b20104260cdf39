"""What `tacit plan` says before anything runs."""

import numpy as np
import pytest

import tacit
from tacit.errors import BadInput
from tacit.report import plan


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
    (row,) = plan.of_experiment(many())
    assert row["epsilon_spent"] == pytest.approx(1.35, abs=0.02)
    assert (row["clients"], row["sampling_rate"][0], row["affordable_rounds"][0]) == (2400, 30 / 2400, 300)
    assert row["guarantee"].startswith("client level, add or remove one client")


def test_an_epsilon_becomes_the_smallest_noise_that_keeps_it(many):
    (row,) = plan.of_experiment(many(epsilon=1.35, noise_multiplier=None))
    assert row["noise_multiplier"][0] == pytest.approx(1.0, abs=0.01)
    assert row["epsilon_spent"] <= 1.35
    assert row["affordable_rounds"] == [300, 300]


def test_a_given_noise_says_how_many_rounds_it_affords(many):
    (row,) = plan.of_experiment(many(epsilon=1.0))
    assert 0 < row["affordable_rounds"][0] < 300
    assert row["epsilon_spent"] <= 1.0
    assert plan.table([row]).row_count == 1


def test_client_level_local_dp_is_planned_per_client(many):
    local = {"kind": "local", "unit": "client", "epsilon": 3.0, "noise_multiplier": None}
    (row,) = plan.of_experiment(many(**local, train={"rounds": 10}))
    assert row["guarantee"].startswith("client level, empty one client")
    assert row["sampling_rate"] == [1.0, 1.0]


def test_an_experiment_without_a_promise_has_no_plan(many):
    with pytest.raises(BadInput, match="promises nothing"):
        plan.of_experiment(many(kind="none", noise_multiplier=None))


def test_clients_that_take_turns_are_planned_in_turns_and_not_in_rounds(many):
    (row,) = plan.of_experiment(many(train={"rounds": 160}, sampler="cyclic", noise_multiplier=4.0))
    assert (row["planned_turns"], row["affordable_turns"]) == (2, [2, 2])  # 2,400 clients, 30 at a time: a cycle of 80
    assert not {"planned_rounds", "affordable_rounds"} & set(row)
    heads = [str(column.header) for column in plan.table([row]).columns]
    assert any("turns" in head for head in heads)
    assert not any("rounds" in head for head in heads)


def test_the_clients_of_a_group_are_named_and_of_many_the_first_ones():
    experiment = tacit.Experiment.load("digits", ("data.clients=8", "privacy.epsilon=[1, 2, 2, 2, 2, 2, 2, 1]"))
    rows = plan.of_experiment(experiment)
    assert rows[0]["names"] == ["client-0", "client-7"]
    (who,) = [column for column in plan.table(rows).columns if str(column.header) == "who"]
    assert list(map(str, who.cells)) == ["client-0, client-7", "client-1, client-2, client-3 and 3 more"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"aggregate": {"rule": "trimmed-mean", "beta": "x"}}, "Unknown key 'aggregate.beta'"),
        ({"aggregate": {"rule": "trimmed-mean", "share": "x"}}, "aggregate.share"),
        (
            {"aggregate": {"rule": "mean", "rank": 2}},
            "aggregate.rank is an option of pfa, pfa-plus, random-projection; the rule here is mean, which takes no options:",
        ),
        ({"aggregate": {"rule": "nowhere"}}, "aggregate.rule"),
        ({"model": {"name": "logr", "hidden": 3}}, "Unknown key 'model.hidden'"),
        ({"task": {"loss": "nowhere"}}, "task.loss"),
        ({"run": {"writers": ["nowhere"]}}, "run.writers"),
        ({"attack": {"kind": "nowhere"}}, "attack.kind"),
    ],
)
def test_a_plan_refuses_the_parts_and_options_that_a_run_refuses_in_the_same_words(tmp_path, changed, sentence):
    wrong = tacit.Experiment(
        **{"data": {"name": "digits", "clients": 3}, "privacy": {"kind": "local", "epsilon": 1.0}} | changed
    )
    with pytest.raises(BadInput) as planned_:
        plan.of_experiment(wrong)
    with pytest.raises(BadInput) as run:
        tacit.run(wrong, out=tmp_path / "run")
    assert sentence in str(planned_.value)
    assert str(planned_.value) == str(run.value)


def test_a_plan_of_encrypted_sums_checks_the_rule_and_makes_no_keys(monkeypatch):
    monkeypatch.setattr("tacit.privacy.distributed.kind.generate", lambda *_, **__: 1 / 0)
    settings = ("train.rounds=2",)
    assert plan.of_experiment(tacit.Experiment.load("digits-encrypted", settings))
    with pytest.raises(BadInput, match=r"Unknown key 'aggregate\.beta'"):
        plan.of_experiment(tacit.Experiment.load("digits-encrypted", (*settings, "aggregate.beta=1")))
