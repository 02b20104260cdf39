"""The same experiment on Flower's simulation engine. It starts Ray, so it is run by `make test-faults`."""

import json

import pytest
from trained import same_model

import tacit
from tacit.deploy.server import simulation
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.privacy.ledger.before import NOTHING, read


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


def test_the_workers_size_noise_for_what_other_runs_of_the_ledger_have_left(small, tmp_path):
    ledger = tmp_path / "shared.db"
    privacy = {"kind": "local", "epsilon": 4.0, "ledger": str(ledger), "delta_share": 0.3}
    first = small(privacy=privacy | {"noise_multiplier": 6.0}, train={"rounds": 1})
    tacit.run(first, out=tmp_path / "first")
    parts = build(small(privacy=privacy), before=read(ledger, unit="record"))
    assert parts.before.runs == 1
    text, before = parts.experiment.toml(), json.dumps(parts.before.record())
    simulation._trainer(text, parts.releases.digest, before)
    with pytest.raises(BadInput, match="other rows, code or budgets"):
        simulation._trainer(text, parts.releases.digest, json.dumps(NOTHING.record()))
