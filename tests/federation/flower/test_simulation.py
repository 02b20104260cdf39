"""The same experiment on Flower's simulation engine. It starts Ray, so it is run by `make test-faults`."""

import pytest
from trained import same_model

import tacit
from tacit.errors import BadInput


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore")
def test_flowers_simulation_engine_reaches_the_same_model_bit_for_bit(small, tmp_path):
    pytest.importorskip("ray")
    changes = {"train": {"rounds": 2, "clients_per_round": 5}}
    tacit.run(small(**changes), out=tmp_path / "ours")
    history = tacit.run(small(**changes, run={"engine": "flower-simulation", "workers": 2}), out=tmp_path / "ray")
    assert same_model(tmp_path / "ours", tmp_path / "ray")
    assert history.rounds[0]["train_loss"] is not None
    assert history.guarantee.epsilon_max <= 6.0


def test_ray_that_is_not_installed_is_said_with_the_command(small, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r'needs Ray: pip install "flwr\[simulation\]'):
        tacit.run(small(run={"engine": "flower-simulation"}), out=tmp_path / "run")


def test_encrypted_sums_are_refused_where_no_key_would_be_common(small):
    sealed = {"privacy": {"kind": "distributed", "epsilon": 8.0}, "protect": {"kind": "paillier", "key_bits": 2048}}
    with pytest.raises(BadInput, match="which have no key in common"):
        small(**sealed, run={"engine": "flower-simulation"})


def test_the_engine_is_for_cpus(small):
    with pytest.raises(BadInput, match="trains on CPUs"):
        small(run={"engine": "flower-simulation", "device": "cuda"})
