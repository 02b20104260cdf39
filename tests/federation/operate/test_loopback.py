"""The whole of it once, as a new user would: init, up, report; TLS, node authentication, real processes."""

import json
import os

import pytest
from conftest_deploy import belongs
from trained import same_model
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate.processes import free_port
from tacit.privacy.ledger import reader as books

SETTINGS = (
    "data.clients=2",
    "data.held_out=0.25",
    "train.rounds=2",
    "train.local_steps=3",
    "privacy.epsilon=[2.0, 6.0]",
)


@pytest.mark.faults
def test_from_an_empty_folder_to_the_report_and_to_the_simulators_model(tmp_path):
    place, call = tmp_path / "federation", CliRunner().invoke
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    made = call(
        app,
        ["deploy", "init", str(place), "--sites", "2", "--trial", "--address", f"127.0.0.1:{free_port()}", *settings],
    )
    assert made.exit_code == 0, made.output
    place = place.rename(tmp_path / "moved")  # nothing in it names a place
    done = call(app, ["deploy", "up", str(place)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "round 2/2" in done.output
    assert "ledger of client-1" in done.output
    assert (place / "results" / "report.html").is_file()
    asked = tacit.Experiment.load(place / "app" / "tacit_app" / "experiment.toml")  # which names every site's epsilon
    simulated = tacit.run(asked, out=tmp_path / "simulated", page=False)
    assert same_model(tmp_path / "simulated", place / "results")
    summary = json.loads((place / "results" / "summary.json").read_text())
    assert summary["guarantee"] == simulated.summary["guarantee"]
    assert summary["at_clients"].pop("missing") == {}
    assert summary["at_clients"] == simulated.summary["at_clients"]
    assert "held-out" in done.output
    for name, limit in (("client-0", 2.0), ("client-1", 6.0)):
        (spent,) = books.spent(books.entries(place / "sites" / name / "ledger.db"), delta=1e-5).values()
        assert 0.97 * limit < spent <= limit
    assert not [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if belongs(pid, place)]
