"""Somebody else's client in a Tacit run, and Tacit's client under somebody else's server."""

import sqlite3

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import tacit
from tacit.deploy.server.client import LocalGrid, greet, tacit_mod
from tacit.deploy.site.site import Site
from tacit.engine.assemble import build
from tacit.errors import TacitError
from tacit.privacy.ledger import reader as books
from tacit.wire import unpack

CENTRAL = {"privacy": {"kind": "central", "epsilon": 30.0, "clip": 0.5}}


def foreign(train):
    """A plain Flower app behind Tacit's mod."""
    app = greet(ClientApp(mods=[tacit_mod]))

    @app.train()
    def answer(message, context):
        arrays = train([array.numpy() for array in message.content["arrays"].values()])
        records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 60})}
        return Message(RecordDict(records), reply_to=message)

    return app


def declare_rows(deployed):
    for index in range(3):
        deployed.edit(index, "name =", "examples = 60\nname =", file="site.toml")


def run_with(deployed, app):
    declare_rows(deployed)
    return deployed.run(LocalGrid(app, [deployed.site(index) for index in range(3)]))


def charges(site):
    with sqlite3.connect(site / "ledger.db") as book:
        return [round for (round,) in book.execute("SELECT round FROM charges ORDER BY round")]


def test_a_plain_client_takes_part_and_pays_on_its_own_disk(federation):
    deployed = federation(**CENTRAL)
    seen = []
    history = run_with(
        deployed, foreign(lambda arrays: (seen.append([a.shape for a in arrays]), [a + 0.1 for a in arrays])[1])
    )
    assert seen == [[(10, 64), (10,)]] * 9
    assert [record["answered"] for record in history.rounds] == [3, 3, 3]
    assert history.guarantee.unit == "client"
    for index in range(3):
        assert charges(deployed.site(index)) == [0, 1, 2]


def test_whatever_a_plain_client_returns_is_bounded_before_it_leaves(federation, monkeypatch):
    deployed = federation(**CENTRAL)
    norms = []
    real = Site.answer

    def watched(self, ask, body):
        facts, raw = real(self, ask, body)
        if ask["kind"] == "train":
            norms.append(float(unpack(raw).tensors["update"].norm()))
        return facts, raw

    monkeypatch.setattr(Site, "answer", watched)
    run_with(deployed, foreign(lambda arrays: [a + 1e6 for a in arrays]))
    assert norms == [pytest.approx(0.5, rel=1e-5)] * 9


def test_a_plain_client_that_fails_or_returns_other_shapes_counts_as_a_zero_update(federation, caplog):
    deployed = federation(**CENTRAL)
    history = run_with(deployed, foreign(lambda arrays: [np.zeros(3)]))
    assert [record["answered"] for record in history.rounds] == [3, 3, 3]
    assert charges(deployed.site(0)) == [0, 1, 2]
    assert "a zero update takes its place" in caplog.text


def test_a_plain_client_is_refused_where_the_promise_is_made_in_the_training(federation):
    deployed = federation()
    with pytest.raises(TacitError, match="made in Tacit's own training"):
        run_with(deployed, foreign(lambda arrays: arrays))


def test_rows_that_are_only_declared_are_not_trained_by_tacit(federation):
    deployed = federation(**CENTRAL)
    declare_rows(deployed)
    with pytest.raises(TacitError, match="must come through tacit_mod"):
        deployed.run()


def arrays_of(experiment):
    parameters = build(experiment).model.named_parameters()
    return ArrayRecord({name: Array(tensor.detach().numpy().copy()) for name, tensor in parameters})


def own_experiments(deployed):
    for index in range(3):
        (deployed.site(index) / "experiment.toml").write_text(deployed.experiment.toml())


def test_under_flowers_own_fedavg_a_site_keeps_its_budget_and_its_ledger(federation):
    deployed = federation(run={"randomness": "os"})
    own_experiments(deployed)
    first = arrays_of(deployed.experiment)
    result = FedAvg(fraction_evaluate=0.0).start(grid=deployed.grid(), initial_arrays=first, num_rounds=3)
    for index, limit in enumerate((1.0, 2.0, 8.0)):
        site = deployed.site(index)
        assert charges(site) == [0, 1, 2]
        (spent,) = books.spent(books.entries(site / "ledger.db"), delta=1e-5).values()
        assert 0.97 * limit < spent <= limit
        (promise,) = site.glob("runs/*/promise.txt")
        assert f"at most {limit:.3f}" in promise.read_text()
    assert any(not np.array_equal(result.arrays[name].numpy(), first[name].numpy()) for name in first)


def ask_plain(deployed, round):
    grid = deployed.grid()
    records = {"arrays": arrays_of(deployed.experiment), "config": ConfigRecord({"server-round": round})}
    (reply,) = grid.send_and_receive([Message(RecordDict(records), 1, "train")])
    return reply


def test_under_flowers_own_fedavg_more_rounds_than_agreed_are_refused(federation):
    deployed = federation()
    own_experiments(deployed)
    assert ask_plain(deployed, 1).has_content()
    assert "asks for round 4; 3 rounds were agreed" in ask_plain(deployed, 4).error.reason
    assert charges(deployed.site(0)) == [0]


def test_a_site_without_its_own_experiment_refuses_a_server_that_does_not_speak_tacit(federation):
    reply = ask_plain(federation(), 1)
    assert "no experiment.toml of its own" in reply.error.reason


def test_a_site_refuses_central_dp_where_the_server_adds_no_noise(federation):
    deployed = federation(**CENTRAL)
    own_experiments(deployed)
    assert "only local DP protects the site" in ask_plain(deployed, 1).error.reason


def test_the_new_arrays_are_the_old_ones_and_the_simulators_update(federation, tmp_path):
    deployed = federation(data={"clients": 1}, privacy={"epsilon": 3.0}, train={"rounds": 1})
    (deployed.site(0) / "experiment.toml").write_text(deployed.experiment.toml())
    history = tacit.run(deployed.experiment, out=tmp_path / "simulated")
    reply = ask_plain(deployed, 1)
    found = [torch.from_numpy(array.numpy().copy()) for array in reply.content["arrays"].values()]
    assert reply.content["metrics"]["num-examples"] == 60
    assert all(
        torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in zip(history.model.parameters(), found, strict=True)
    )
