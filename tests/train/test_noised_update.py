"""Client-level local DP: the whole update is clipped and noised at the client."""

import math

import dp_accounting
import pytest
import torch
from statistical import has_std, is_normal

import tacit
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training.sgd import NoisedUpdate, Trained, workspace
from tacit.types import Budget, Client, Raw

MECHANISM = SampledGaussian(noise_multiplier=1.5, clip=0.2, sampling_rate=1.0)
CLIENT = Client(0, "a", Budget(3.0, 1e-5, "client"), torch.zeros(1), torch.zeros(1))


def local(**changes):
    values = {
        "data": {"clients": 6, "examples_per_client": 40},
        "train": {"rounds": 4, "local_steps": {"epochs": 1}, "batch_size": 10, "learning_rate": 0.1},
        "privacy": {"kind": "local", "unit": "client", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "clip": 0.5},
        "run": {"workers": 1},
    }
    for section, change in changes.items():
        values[section] = values.get(section, {}) | change
    return tacit.Experiment(**values)


def noised(update, mechanism=MECHANISM, seed=0):
    def sgd(work, theta, client, stream):
        return Trained(Raw(update))

    return NoisedUpdate(sgd)(None, torch.zeros_like(update), CLIENT, mechanism, stream=seeded(seed)("train")).update


def test_noise_has_the_stated_std_and_not_two_thirds_or_three_halves():
    found = noised(torch.zeros(100_000))
    assert has_std(found.vector, 1.5 * 0.2)
    assert is_normal(found.vector, 1.5 * 0.2)
    assert not has_std(found.vector, 1.5 * 0.2 * 2 / 3)
    assert not has_std(found.vector, 1.5 * 0.2 * 3 / 2)
    assert found.noise_std == pytest.approx(1.5 * 0.2)


@pytest.mark.parametrize("norm", [0.1, 0.2, 3.0, 1e30])
def test_the_whole_update_is_clipped_before_it_is_noised(norm):
    update = torch.zeros(1000)
    update[7] = norm
    signal = noised(update).vector - noised(torch.zeros(1000)).vector
    assert float(signal.norm()) == pytest.approx(min(norm, 0.2), rel=1e-3)


def test_a_mechanism_that_prices_sampling_is_refused():
    with pytest.raises(BadInput, match="no sampling to be priced"):
        noised(torch.zeros(3), SampledGaussian(1.0, 1.0, 0.5))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_zero_and_noised_like_any_other(value):
    assert torch.equal(noised(torch.full((9,), value)).vector, noised(torch.zeros(9)).vector)


def test_a_round_costs_one_unamplified_gaussian(tmp_path):
    chosen = local(train={"clients_per_round": 3}, privacy={"noise_multiplier": 2.0, "epsilon": math.inf})
    parts = build(chosen)
    event = parts.algorithm.cost(parts.population[0])
    assert price.compose([(event, 1)])[0][0].sampling_probability == 1.0
    plain = price.epsilon(((dp_accounting.GaussianDpEvent(2.0), 3),), delta=1e-5)
    assert price.epsilon(price.compose([(event, 3)]), delta=1e-5) == pytest.approx(plain, rel=1e-3)


def test_every_client_spends_its_own_budget_in_clients(tmp_path):
    history = tacit.run(local(aggregate={"rule": "inverse-variance"}), out=tmp_path)
    found = history.summary["guarantee"]
    assert found["unit"] == "client"
    assert "the server, the other clients" in found["adversary"]
    assert "empty one client" in found["relation"]
    assert 0.95 < found["epsilon"]["min"] <= 1.0
    assert 5.7 < found["epsilon"]["max"] <= 6.0
    assert {entry["unit"] for entry in history.ledger.entries()} == {"client"}


def test_the_noise_the_server_expects_is_the_noise_a_client_states():
    parts = build(local())
    expected = parts.plan.update_noise(parts.population.sizes, learning_rate=0.1)
    work = workspace(parts.model, clip=None, physical_batch=64)
    for index in range(6):
        client = parts.population[index]
        received = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [client], round=0)
        trained = parts.algorithm.train(work, received, client, lambda purpose: seeded(0)(purpose))
        sent = parts.algorithm.release(trained, client, received)
        assert sent.facts["noise_std"] == pytest.approx(expected[index]) == parts.plan.multipliers[index] / 2


def test_every_rule_works_with_it(tmp_path):
    for rule in tacit.algorithms.rules.names():
        history = tacit.run(local(train={"rounds": 1}, aggregate={"rule": rule}), out=tmp_path / rule, page=False)
        assert history.summary["rounds"] == 1
