"""Tacit's mod before somebody else's Flower app, under Flower's own FedAvg: what leaves the site, and what is refused."""

import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from statistical import has_std

from tacit.deploy.flower_mod import update_mod
from tacit.deploy.server.client import LocalGrid

BUDGET = 'epsilon = 8.0\ndelta = 1e-5\nunit = "client"\n[updates]\nclip = 0.5\nnoise_multiplier = 2.0\nrounds = 2\n'
SIZE = 20_000


def foreign(train, *mods):
    """An app of somebody's that knows nothing of privacy: it sends its arrays, its size and its loss."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def answer(message, context):
        arrays = [train(array.numpy()) for array in message.content["arrays"].values()]
        records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 60, "loss": 0.7})}
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def judge(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 60, "loss": 0.7})}), reply_to=message)

    return app


@pytest.fixture
def sites(tmp_path):
    folders = [tmp_path / name for name in ("0", "1")]
    for folder in folders:
        folder.mkdir()
        (folder / "site.toml").write_text(f'name = "site-{folder.name}"\n')
        (folder / "budget.toml").write_text(BUDGET)
    return folders


def federated(grid, *, rounds, **options):
    arrays = ArrayRecord([np.zeros(SIZE, np.float32)])
    strategy = FedAvg(min_train_nodes=2, min_available_nodes=2, **{"fraction_evaluate": 0.0} | options)
    return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)


def charges(folder):
    with sqlite3.connect(folder / "ledger.db") as book:
        return [round for (round,) in book.execute("SELECT round FROM charges ORDER BY round")]


def ask(app, folder, content, *, kind="train"):
    grid = LocalGrid(app, [folder])
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    return reply


def question(round=1, value=0.0):
    arrays = ArrayRecord([np.full(SIZE, value, np.float32)])
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": round, "lr": 0.1})})


def test_fedavg_averages_clipped_and_noised_updates_and_every_site_pays_its_own_ledger(sites):
    result = federated(LocalGrid(foreign(lambda a: a + 1e6, update_mod), sites), rounds=2)
    (sent,) = result.arrays.to_numpy_ndarrays()
    assert has_std(sent, 2.0 * 0.5)  # of two rounds the mean of two sites: sqrt(2 / 2) of one site's noise
    assert not has_std(sent, 2.0 * 0.5 * 2 / 3)
    assert abs(sent.mean()) < 0.05
    assert [charges(folder) for folder in sites] == [[0, 1], [0, 1]]


def test_a_round_beyond_the_budget_is_refused_in_words_and_nothing_is_trained(sites):
    trained = []
    app = foreign(lambda a: trained.append(1) or a, update_mod)
    federated(LocalGrid(app, sites), rounds=2)
    reply = ask(app, sites[0], question(3))
    assert "does not pay for round 3" in reply.error.reason
    assert (len(trained), charges(sites[0])) == (4, [0, 1])


def test_no_metric_and_no_size_leaves_a_site(sites):
    reply = ask(foreign(lambda a: a, update_mod), sites[0], question())
    assert {name: dict(record) for name, record in reply.content.metric_records.items()} == {
        "metrics": {"num-examples": 1}
    }
    assert set(reply.content) == {"arrays", "metrics"}


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other"])
def test_anything_but_train_is_refused_before_the_app_hears_of_it(sites, kind):
    app, heard = foreign(lambda a: a, update_mod), []
    for add in (app.query(), app.train("other")):
        add(lambda message, context: heard.append(message))
    reply = ask(app, sites[0], question(), kind=kind)
    assert "answers to train alone" in reply.error.reason
    assert heard == []
    assert not (sites[0] / "ledger.db").exists()


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"config": ConfigRecord({"server-round": 1})}),
        RecordDict({"arrays": ArrayRecord([np.zeros(3)])}),
        RecordDict({"arrays": ArrayRecord([np.zeros(3)]), "config": ConfigRecord({"server-round": "1"})}),
        RecordDict({n: ArrayRecord([np.zeros(3)]) for n in "ab"} | {"config": ConfigRecord({"server-round": 1})}),
    ],
)
def test_a_question_that_is_no_round_is_refused_and_charges_nothing(sites, content):
    reply = ask(foreign(lambda a: a, update_mod), sites[0], content)
    assert "This site answers to one record of arrays" in reply.error.reason
    assert not (sites[0] / "ledger.db").exists()


def fails(array):
    raise RuntimeError("a patient is called Ida")


@pytest.mark.parametrize(
    "train", [fails, lambda a: a * np.float32(np.nan), lambda a: a[:3]], ids=["fails", "nan", "cut"]
)
def test_an_app_that_fails_sends_what_one_that_trains_sends(sites, train):
    reply = ask(foreign(train, update_mod), sites[0], question())
    assert not reply.has_error()
    (sent,) = reply.content["arrays"].to_numpy_ndarrays()
    assert has_std(sent, 2.0 * 0.5)
    assert charges(sites[0]) == [0]


def test_what_an_app_writes_into_its_question_is_not_in_the_answer(sites):
    """Flower gives the mod and the app one and the same message."""

    def writes(message, context):
        message.content["a patient is called Ida"] = message.content.pop("arrays")
        message.content["second"] = ArrayRecord([np.ones(3)])
        raise RuntimeError

    reply = ask(lambda message, context: update_mod(message, context, writes), sites[0], question())
    assert not reply.has_error()
    assert set(reply.content) == {"arrays", "metrics"}
    assert charges(sites[0]) == [0]


def test_a_question_that_is_asked_again_gets_the_same_bytes_for_the_one_charge(sites):
    app = foreign(lambda a: a + 1, update_mod)
    first, again = (ask(app, sites[0], question()).content["arrays"].to_numpy_ndarrays()[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert charges(sites[0]) == [0]
    reply = ask(app, sites[0], question(value=1.0))
    assert "was answered already" in reply.error.reason


def test_an_app_that_names_the_mod_behind_a_sites_own_sends_one_vector(sites):
    app = foreign(lambda a: a, update_mod)
    reply = ask(lambda message, context: update_mod(message, context, app), sites[0], question())
    assert has_std(reply.content["arrays"].to_numpy_ndarrays()[0], 2.0 * 0.5)
    assert len(charges(sites[0])) == 2  # never less than was released


def test_a_node_without_a_folder_is_refused(sites):
    app = ClientApp(mods=[partial(update_mod, site=None)])
    grid = LocalGrid(app, sites[:1])
    app.train()(lambda message, context: None)
    grid._contexts[1].node_config.clear()
    (reply,) = grid.send_and_receive([Message(question(), 1, "train")])
    assert "no limits and no ledger" in reply.error.reason


SIMULATION = """
import sys
from functools import partial
import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from tacit.deploy.flower_mod import update_mod
sys.path.insert(0, sys.argv[1])
from test_update_mod import federated, foreign
server = ServerApp()

@server.main()
def main(grid, context):
    np.save(sys.argv[2] + "/sent.npy", federated(grid, rounds=1).arrays.to_numpy_ndarrays()[0])

mod = partial(update_mod, site=sys.argv[2] + "/{partition-id}")
run_simulation(server, foreign(lambda a: a + 1e6, mod), num_supernodes=2)
"""


def test_in_flowers_own_simulation_every_node_has_its_folder_and_pays(sites, tmp_path):
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    paths = [str(Path(__file__).parent), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION, *paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert has_std(np.load(tmp_path / "sent.npy"), 2.0 * 0.5 / np.sqrt(2))
    assert [charges(folder) for folder in sites] == [[0], [0]]
