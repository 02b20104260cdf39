"""An app that a real server sends, without Tacit's mod, to SuperNodes whose own `flwr-clientapp` has every app behind it."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest_deploy import until
from statistical import has_std

from tacit.deploy.operate.processes import free_port

pytestmark = pytest.mark.faults

BUDGET = 'epsilon = 8.0\ndelta = 1e-5\nunit = "client"\n[updates]\nclip = 0.5\nnoise_multiplier = 2.0\nrounds = 2\n'
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "foreign"
version = "1.0.0"
description = "somebody's app"
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.apps:server"
clientapp = "foreign.apps:client"
[tool.flwr.app.config]
"""
APPS = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    if context.node_config["tacit-site"].endswith("1"):
        raise RuntimeError("a patient is called Ida")
    arrays = [array.numpy() + 1e6 for array in message.content["arrays"].values()]
    metrics = MetricRecord({"num-examples": 60, "loss": 0.7})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    strategy = FedAvg(min_train_nodes=2, min_available_nodes=2, fraction_evaluate=0.0)
    arrays = ArrayRecord([np.zeros(20000, np.float32)])
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
    np.save(PLACE + "/sent.npy", result.arrays.to_numpy_ndarrays()[0])
"""
PAGE = Path(__file__).parents[3] / "docs" / "how-to-beside-other-frameworks.md"
(LAUNCHER,) = re.findall(r"^```python\n(#!.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def place(tmp_path):
    """A Flower app that names no mod, a site's own `flwr-clientapp`, and two sites' folders."""
    files = {
        "app/pyproject.toml": PROJECT,
        "app/foreign/__init__.py": "",
        "app/foreign/apps.py": f"PLACE = {str(tmp_path)!r}\n{APPS}",
        "bin/flwr-clientapp": LAUNCHER.replace("/srv/tacit/.venv/bin/python", sys.executable),
    }
    for name in "01":
        files |= {f"sites/{name}/site.toml": f'name = "site-{name}"\n', f"sites/{name}/budget.toml": BUDGET}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin" / "flwr-clientapp").chmod(0o755)
    return tmp_path


@pytest.fixture
def start(place):
    """Starts one of Flower's own programs, and ends it with the test."""
    own = str(Path(sys.executable).parent)
    path = f"{place / 'bin'}:{own}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "FLWR_HOME": str(place / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    started = []

    def start(name, program, *words):
        with (place / f"{name}.log").open("w") as log:
            command = [f"{own}/{program}", *words]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=place, env=environment))
        return started[-1]

    yield start
    for process in started[::-1]:
        process.terminate()
        process.wait(60)


def test_an_app_that_names_no_mod_and_fails_at_one_site_is_answered_for_by_the_sites_own_launcher(place, start):
    port = free_port()
    (place / "home").mkdir()
    (place / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    start("superlink", "flower-superlink", "--insecure", "--port", str(port))
    until(lambda: "Uvicorn running" in (place / "superlink.log").read_text(), what="the SuperLink")
    for name in "01":
        node = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
        start(f"node-{name}", "flower-supernode", *node, "--node-config", f'tacit-site="{place}/sites/{name}"')
    run = start("run", "flwr", "run", str(place / "app"), "here")
    assert run.wait(120) == 0, (place / "run.log").read_text()
    until(lambda: (place / "sent.npy").exists(), seconds=240, what="the run to end")
    assert has_std(np.load(place / "sent.npy"), 2.0 * 0.5 / np.sqrt(2))
    for name in "01":
        with sqlite3.connect(place / "sites" / name / "ledger.db") as book:
            assert book.execute("SELECT client, unit, round FROM charges").fetchall() == [(f"site-{name}", "client", 0)]
    verdicts = [
        [json.loads(line)["verdict"] for line in (place / "sites" / name / "log.jsonl").read_text().splitlines()]
        for name in "01"
    ]
    assert verdicts == [["answered"], ["failed", "answered"]]
    assert "Ida" not in "".join(path.read_text() for path in place.glob("*.log"))
