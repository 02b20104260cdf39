import dataclasses

import numpy as np
import pytest
import torch
from trained import Stop, same_model, stop_after

import tacit
from tacit.algorithms import PopulationStatistics, Server, finished
from tacit.algorithms.rules.mean import mean
from tacit.training.optimizer import Adam, Momentum, Sgd
from tacit.types import Message

X = torch.tensor([1.0, -2.0, 0.5])
UPDATES = [torch.tensor([0.3, -0.1, 0.0]), torch.tensor([-0.2, 0.4, 1.0]), torch.tensor([0.1, 0.1, 0.1])]


def steps(optimizer):
    params, memory = X, optimizer.init(X)
    for update in UPDATES:
        params, memory = optimizer.step(params, memory, update)
        yield params


def test_sgd_adds_the_update():
    assert torch.allclose(list(steps(Sgd(0.5)))[-1], X + 0.5 * sum(UPDATES))


def test_momentum_is_fedavgm():
    x, v = X, torch.zeros(3)
    for update, found in zip(UPDATES, steps(Momentum(0.5, momentum=0.8)), strict=True):
        v = 0.8 * v + update
        x = x + 0.5 * v
        assert torch.allclose(found, x)


def test_adam_is_fedadam_without_bias_correction():
    x, m, v = X, torch.zeros(3), torch.full((3,), 1e-4)
    for update, found in zip(UPDATES, steps(Adam(0.1, momentum=0.8, adaptivity=1e-2)), strict=True):
        m = 0.8 * m + 0.2 * update
        v = 0.99 * v + 0.01 * update**2
        x = x + 0.1 * m / (v.sqrt() + 1e-2)
        assert torch.allclose(found, x)


def test_momentum_zero_is_sgd():
    assert all(torch.equal(a, b) for a, b in zip(steps(Momentum(0.3, 0.0)), steps(Sgd(0.3)), strict=True))


@dataclasses.dataclass(frozen=True)
class counting(mean):
    """A rule that remembers under the names that the optimisers use."""

    def init(self, layout, statistics):
        return {"v": torch.zeros(()), "optimizer.v": torch.zeros(())}

    def apply(self, memory, gathered):
        applied = super().apply(memory, gathered)
        return dataclasses.replace(applied, memory={name: tensor + 1 for name, tensor in memory.items()})


def test_what_is_remembered_is_kept_apart_from_what_a_rule_remembers():
    server = Server(counting(), ((0, 3),), PopulationStatistics(np.ones(1), np.ones(1)), Momentum(0.5, momentum=0.8))
    state, found = server.init(X), list(steps(Momentum(0.5, momentum=0.8)))
    for update, params in zip(UPDATES, found, strict=True):
        state, _ = finished(server.collect(state), [Message("a", {"update": update}, {"examples": 3})], None)
        assert torch.allclose(state.params, params)
    assert {name: float(tensor) for name, tensor in state.memory.items()} == {"v": 3.0, "optimizer.v": 3.0}
    assert set(state.optimizer) == {"v"}


def experiment(privacy, **train):
    rule = {"rule": "pfa-plus"} if privacy.get("kind") == "local" else {}
    return tacit.Experiment(
        data={"clients": 8, "examples_per_client": 30},
        train={"rounds": 4, "local_steps": 2, "batch_size": 10, "server_learning_rate": 0.3} | train,
        privacy=privacy,
        aggregate=rule,
        run={"workers": 1},
    )


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(
    "privacy", [{"kind": "none"}, {"kind": "local", "epsilon": "uniform"}, {"kind": "central", "epsilon": 8.0}]
)
def test_every_kind_takes_every_optimizer_and_resumes_bit_for_bit(tmp_path, privacy, optimizer):
    chosen = experiment(privacy, server_optimizer=optimizer)
    tacit.run(chosen, out=tmp_path / "whole")
    with pytest.raises(Stop):
        tacit.run(chosen, out=tmp_path / "parts", observe=stop_after(1))
    tacit.run(chosen, out=tmp_path / "parts", resume=True)
    assert same_model(tmp_path / "whole", tmp_path / "parts")
    tacit.run(experiment(privacy), out=tmp_path / "sgd")
    assert not same_model(tmp_path / "whole", tmp_path / "sgd")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"server_optimizer": {"kind": "momentum", "momentum": 1.0}}, r"of at least 0 and below 1"),
        (
            {"server_optimizer": {"kind": "momentum", "adaptivity": 1.0}},
            "Unknown key 'train.server_optimizer.adaptivity'",
        ),
        ({"server_optimizer": {"kind": "adam", "adaptivity": 0.0}}, "adaptivity to be a number above 0"),
        ({"server_optimizer": "adagrad"}, "'sgd', 'momentum' or 'adam'"),
    ],
)
def test_settings_that_an_optimizer_does_not_have_are_refused(train, message):
    with pytest.raises(tacit.errors.BadInput, match=message):
        tacit.Experiment(train=train)
