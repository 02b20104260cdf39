"""Own models of a real federation on loopback, over TLS: every site ends with its own, and nothing of it was sent."""

import json
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest_deploy import until
from federation.site.test_own_models import CSV, table
from safetensors.numpy import load_file
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate.layout import open_federation
from tacit.deploy.operate.processes import free_port

pytestmark = pytest.mark.faults
ROOT = Path(__file__).resolve().parents[3]
ASKS = 'held_out = 0.3\n[personal]\nkind = "mean-regularised"\n'
MODELS = ("common", "own", "alone")
HEARD = """
import json, sys
import httpx
from tacit.cli import main
from tacit.deploy.operate import site_process as quiet
folder, file, quiet.QUIET_SECONDS = sys.argv[1], open(sys.argv[2], "a"), float(sys.argv[3])
send = httpx.Client.send
def heard(self, request, **options):  # what goes into the TLS line, before it is encrypted
    print(json.dumps([request.url.path, request.read().hex()]), file=file, flush=True)
    return send(self, request, **options)
httpx.Client.send = heard
sys.argv = ["tacit", "deploy", "site", folder]
main()
"""


@pytest.fixture
def listening(monkeypatch, tmp_path):
    """Has every site's process write down all that it sends; returns the calls of one of them: path and body."""

    def start(federation, name, processes):
        folder, file = federation.site(name), tmp_path / f"{name}.wire"
        command = [sys.executable, "-c", HEARD, folder, file, "1"]
        return processes.start(f"site {name}", command, log=folder / "site.log", cwd=folder)

    def said(name):
        lines = (tmp_path / f"{name}.wire").read_text().splitlines()
        return [(path, bytes.fromhex(body)) for path, body in map(json.loads, lines)]

    monkeypatch.setattr("conftest_deploy.start_site", start)
    return said


def swapped(found):
    return {"yes": "no", "no": "yes"}[found[0]]


def prepared(federation):
    """Two wards that differ as much as they can: at one a large `a` is ill, at the other it is well."""
    for name, sign in (("north", 1), ("south", -1)):
        rows = table(federation.site(name) / "records.csv", seed=len(name) + sign)
        if sign < 0:
            rows.write_text(re.sub(r"(yes|no)$", swapped, rows.read_text(), flags=re.MULTILINE))
        with (federation.site(name) / "site.toml").open("a") as file:
            file.write(ASKS)


def ends_with_own_models(site):
    """What every site ends with; returns its run's folder and the comparison."""
    (run,) = (site / "runs").iterdir()
    told = json.loads((run / "comparison.json").read_text())
    assert sorted(path.name for path in run.glob("model-*")) == sorted(f"model-{which}" for which in MODELS)
    assert set(MODELS) < set(told["metrics"]["auroc"])
    assert told["rows"] + told["trained_on"] == 120
    return run, told


def numbers(model):
    """All parameters of a model in a folder, as its file holds them."""
    return np.concatenate([part.ravel() for part in load_file(model / "model.safetensors").values()])


def test_every_site_makes_its_own_models_in_the_quiet_and_nothing_of_them_is_sent(federation_of, listening):
    running = federation_of(sites="north,south", experiment=CSV, prepare=prepared)
    running.finished(running.submit())
    common = numbers(running.federation.results)
    for name in running.names:
        site = running.federation.site(name)
        until(lambda site=site: list(site.glob("runs/*/comparison.json")), what=f"the own models of {name}")
        made = len(listening(name))
        until(lambda name=name, made=made: len(listening(name)) > made + 1, what=f"{name} to go on asking")
        run, _ = ends_with_own_models(site)
        assert np.array_equal(numbers(run / "model-common"), common)
        paths, bodies = zip(*listening(name), strict=True)
        sent, (answer,) = b"".join(bodies), run.glob("round-*.answer")
        assert answer.read_bytes()[-4 * len(common) :] in sent, "its noised update was heard, so this would be too"
        for value in np.concatenate([numbers(run / "model-own"), numbers(run / "model-alone")]):
            assert not [form for form in written(value) if form in sent]
        last = max(index for index, path in enumerate(paths) if path.endswith("push-object"))
        assert {path.rpartition("/")[2] for path in paths[last + 1 :]} <= {"pull-messages", "send-node-heartbeat"}
        assert len({len(body) for path, body in zip(paths, bodies, strict=True) if "pull-messages" in path}) == 1


def written(value):
    """A number as bytes may hold it: two sizes, two orders, and words."""
    return [struct.pack(form, value) for form in ("<f", ">f", "<d", ">d")] + [f"{value:.6g}".encode()]


def test_from_init_to_up_to_the_better_model_of_each_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards.toml").write_text(tacit.Experiment(**CSV).toml())

    def call(*words):
        done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    made = ("--sites", "north,south", "--experiment", "wards.toml", "--address", f"127.0.0.1:{free_port()}")
    call("deploy", "init", "place", *made)
    federation = open_federation(tmp_path / "place")
    prepared(federation)
    assert "north, for itself: Personalised models are made. The" in " ".join(
        call("deploy", "up", "place").output.split()
    )
    gains = []
    for name in federation.sites:
        site, new = federation.site(name), table(tmp_path / "new.csv", rows=40, seed=7)
        _, told = ends_with_own_models(site)
        by = told["metrics"]["auroc"]
        assert f"With the site's {told['use']} model" in call("predict", site, new).stderr
        assert told["because"] in call("predict", site, new).stderr
        gains.append(by["own_less_common"]["value"])
        call("deploy", "site", site, "--evaluate", new)
    assert max(gains) > 0.3, "one common model cannot serve two opposite wards"
    words = call("deploy", "site", federation.site("north"), "--adapt").stdout
    assert "do not publish them" in " ".join(words.split())
