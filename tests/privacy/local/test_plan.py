from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit.engine.assemble import build
from tacit.privacy.local import sampling_rates
from tacit.privacy.samplers import Participation
from tacit.random import seeded
from tacit.training.sgd import workspace


def parts(**privacy):
    train = privacy.pop("train", {})
    return build(
        tacit.Experiment(
            data={"clients": 4, "examples_per_client": 100},
            train={"rounds": 10, "local_steps": 3, "sampling_rate": 0.1} | train,
            privacy={"kind": "local", "epsilon": [1.0, 2.0, 4.0, 8.0], "delta": 1e-5} | privacy,
        )
    )


def test_spread_gives_tighter_clients_more_noise():
    z = parts().plan.multipliers
    assert (np.diff(z) < 0).all()


def test_same_noise_lets_the_largest_budget_last():
    plan = parts(strategy="same-noise").plan
    assert len(set(plan.multipliers)) == 1
    assert plan.multipliers[0] == parts().plan.multipliers[3]


def test_minimum_and_maximum_give_everybody_one_budget():
    assert parts(level="minimum").population.epsilons.tolist() == [1.0] * 4
    assert parts(level="maximum").population.epsilons.tolist() == [8.0] * 4


def test_the_rule_of_thumb_of_the_pfa_code_is_run_but_never_promised_or_charged(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "experiments")
    built = parts(kind="pfa_paper:formula", unit="record")
    assert built.plan.multipliers[1] == pytest.approx(10 * 0.1 * np.sqrt(8000 * 5) / 2.0)
    history = tacit.run(built.experiment, out=tmp_path)
    assert history.guarantee is None
    assert history.ledger is None
    assert history.summary["guarantee"] is None
    assert "No privacy is promised" in history.sentence


def test_a_mixed_population_is_allowed_where_the_noise_is_given():
    built = parts(epsilon=[1.0, float("inf"), 2.0, 3.0], noise_multiplier=2.0)
    assert built.plan.multipliers.tolist() == [2.0] * 4


def test_rates_make_the_batch_the_expected_one_and_never_exceed_one():
    rates = sampling_rates(np.array([1000, 64, 10]), batch_size=32, sampling_rate=None)
    assert rates.tolist() == [0.032, 0.5, 1.0]
    assert sampling_rates(np.array([5, 7]), batch_size=32, sampling_rate=0.3).tolist() == [0.3, 0.3]


def test_a_budget_is_made_to_last_as_often_as_a_client_will_be_drawn():
    assert Participation(10, 10).planned(50) == 50
    assert Participation(10, 5).planned(100) == 60
    assert Participation(10, 9).planned(3) == 3


def test_local_epochs_count_expected_passes():
    built = parts(train={"local_steps": {"epochs": 2}})
    assert built.plan.steps.tolist() == [20] * 4
    assert isinstance(built.params, torch.Tensor)


def test_the_noise_the_server_expects_is_the_noise_a_client_states():
    built = parts()
    expected = built.plan.update_noise(built.population.sizes, learning_rate=built.experiment.train.learning_rate)
    work = workspace(built.model, clip=1.0, physical_batch=64)
    for index in range(4):
        client = built.population[index]
        received = built.algorithm.broadcast(built.algorithm.init(built.params), [client], round=0)
        trained = built.algorithm.train(work, received, client, lambda purpose: seeded(0)(purpose))
        assert trained.update.noise_std == pytest.approx(expected[index])
