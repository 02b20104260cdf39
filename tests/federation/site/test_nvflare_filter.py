"""Tacit's filter in NVIDIA FLARE: what the site's own privacy.json does to a job's tasks and results, and that no job undoes it."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from statistical import has_std

pytest.importorskip("nvflare", reason="the filter needs NVIDIA FLARE: pip install 'tacit[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReturnCode, make_reply
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyService

from tacit.deploy.operate.processes import free_port
from tacit.errors import Refused

BUDGET = 'epsilon = 8.0\ndelta = 1e-5\nunit = "client"\n[updates]\nclip = 0.5\nnoise_multiplier = 2.0\nrounds = 2\n'
MODEL = {"w": np.zeros((200, 100), np.float32), "n": np.array([7])}
FILTER = "tacit.deploy.nvflare_filter.UpdateFilter"


def privacy(site, *, scopes=("tacit",), without=None, **options):
    """The text of a site's privacy.json; the scope that is named lacks the filter of results."""
    filters = {
        key: [{"path": FILTER, "direction": way, "args": {"site": str(site)} | options}]
        for key, way in (("task_data_filters", "in"), ("task_result_filters", "out"))
    }
    made = [{"name": name, "properties": {}} | (filters if name != without else {}) for name in scopes]
    return json.dumps({"scopes": made, "default_scope": scopes[0]})


def make_site(folder, name):
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text(f'name = "{name}"\n')
    (folder / "budget.toml").write_text(BUDGET)
    return folder


@pytest.fixture
def client(tmp_path):
    """A FLARE client, as far as it filters: `client(...)` reads its privacy.json, `.do` passes a task as its runner does."""

    class Client:
        site = make_site(tmp_path / "site-1", "site-1")

        def __call__(self, *, text=None, **options):
            place = tmp_path / "flare" / "local"
            place.mkdir(parents=True, exist_ok=True)
            (place / "privacy.json").write_text(text or privacy(f"{tmp_path}/{{name}}", **options))
            (place.parent / "startup").mkdir(exist_ok=True)
            manager = create_privacy_manager(Workspace(str(place.parent), "site-1"), names_only=False)
            PrivacyService.initialize(manager)
            return self

        def do(self, execute, *, round=0, name="train", scope="", model=MODEL, job=None):
            context = FLContext()
            named = {FLContextKey.SCOPE_OBJECT: PrivacyService.get_scope(scope), FLContextKey.TASK_NAME: name}
            named |= {ReservedKey.IDENTITY_NAME: "site-1", FLContextKey.CURRENT_JOB_ID: "job"}
            for key, value in named.items():
                context.set_prop(key, value, private=True, sticky=False)
            ask = DXO(DataKind.WEIGHTS, data={key: array.copy() for key, array in model.items()}).to_shareable()
            ask.set_header("current_round", round)
            ask = apply_filters("task_data_filters", ask, context, {}, name, "in")
            reply = execute(from_shareable(ask).data)
            return apply_filters("task_result_filters", reply, context, job or {}, name, "out")

        def charges(self):
            if not (self.site / "ledger.db").exists():
                return 0
            with sqlite3.connect(self.site / "ledger.db") as book:
                return book.execute("SELECT COUNT(*) FROM charges").fetchone()[0]

    yield Client()
    PrivacyService.initialize(None)


def trained(data, by=1e6, **meta):
    return DXO(DataKind.WEIGHTS, data={"w": data["w"] + np.float32(by), "n": data["n"]}, meta=meta).to_shareable()


def failed(data):
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply["why"] = "a patient is called Ida"
    return reply


def test_a_result_leaves_clipped_and_noised_with_a_public_weight_and_nothing_else(client):
    def train(data):
        reply = trained(data, NUM_STEPS_CURRENT_ROUND=17, initial_metrics={"loss": 0.3})
        reply.set_header("patients", 12)
        return reply

    reply = client().do(train)
    dxo = from_shareable(reply)
    assert has_std(dxo.data["w"], 2.0 * 0.5)
    assert not has_std(dxo.data["w"], 2.0 * 0.5 * 2 / 3)
    assert (dxo.data_kind, dxo.meta, dxo.data["n"]) == (DataKind.WEIGHTS, {"NUM_STEPS_CURRENT_ROUND": 1}, 7)
    assert reply.get_header("patients") is None
    assert client.charges() == 1


def test_the_privacy_file_of_the_page_is_one_that_works(client, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "how-to-beside-other-frameworks.md").read_text("utf-8")
    (text,) = re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)
    sent = from_shareable(client(text=text.replace("/srv/tacit", str(tmp_path))).do(trained)).data["w"]
    assert has_std(sent, 2.0 * 0.5)


def test_a_site_may_send_differences(client):
    dxo = from_shareable(client(difference=True).do(trained, model=MODEL | {"w": MODEL["w"] + 100}))
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    assert has_std(dxo.data["w"], 2.0 * 0.5)


@pytest.mark.parametrize(
    "train",
    [
        failed,
        lambda data: make_reply(ReturnCode.OK),
        lambda data: trained(data, by=np.nan),
        lambda data: DXO(DataKind.METRICS, data={"loss": 0.3}).to_shareable(),
        lambda data: DXO(DataKind.WEIGHT_DIFF, data={"w": np.zeros(3)}).to_shareable(),
    ],
    ids=["failed", "empty", "nan", "metrics", "shapes"],
)
def test_whatever_the_executor_returns_the_same_kind_of_answer_leaves(client, train):
    reply = client().do(train)
    assert reply.get_return_code() == ReturnCode.OK
    assert has_std(from_shareable(reply).data["w"], 2.0 * 0.5)
    assert "Ida" not in str(reply)
    assert client.charges() == 1


def test_the_charge_is_on_disk_before_the_executor_runs_and_a_spent_budget_keeps_it_from_running(client):
    seen = []
    client()
    for round in range(2):
        client.do(lambda data: seen.append(client.charges()) or trained(data), round=round)
    assert seen == [1, 2]
    with pytest.raises(Exception, match="does not pay for round 3"):
        client.do(lambda data: seen.append("trained") or trained(data), round=2)
    assert seen == [1, 2]


def test_a_task_that_is_repeated_gets_the_kept_answer(client):
    client()
    first, again = (from_shareable(client.do(trained)).data["w"] for _ in range(2))
    assert np.array_equal(first, again)
    assert client.charges() == 1


@pytest.mark.parametrize("name", ["validate", "submit_model", "swarm_learn"])
def test_any_other_task_is_refused_before_the_executor_hears_of_it(client, name):
    heard = []
    with pytest.raises(Refused, match="answers to train alone"):
        client().do(heard.append, name=name)
    assert (heard, client.charges()) == ([], 0)


def test_a_scope_that_lets_results_out_is_refused_also_where_the_job_chose_another(client):
    client(scopes=("tacit", "open"), without="open")
    with pytest.raises(Refused, match="may choose the scope open"):
        client.do(trained)
    assert client.charges() == 0


def test_a_result_that_nothing_was_charged_for_does_not_leave(client):
    client()
    scope = PrivacyService.get_scope("")
    scope.task_data_filters["in"].clear()
    with pytest.raises(Refused, match="Nothing was charged"):
        client.do(trained)


class Raw(Filter):
    """A filter of the job's: it would send what the executor returned."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def process(self, shareable, fl_ctx):
        self.seen.append(from_shareable(shareable).data["w"])
        return shareable


def test_a_filter_that_a_job_brings_sees_what_the_sites_own_has_protected(client):
    seen = []
    client().do(trained, job={f"train{FilterKey.DELIMITER}out": [Raw(seen)]})
    (found,) = seen
    assert has_std(found, 2.0 * 0.5)


# For real. The simulator does not read privacy.json, so there the job itself names the filter; a provisioned federation reads it.

SERVER = """
import json
import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.model_controller import ModelController

class Rounds(ModelController):
    def run(self):
        seen, model = [], {"w": np.zeros((200, 100), np.float32), "n": np.array([7])}
        for round in range(2):
            ask = FLModel(params=model, params_type=ParamsType.FULL, current_round=round, total_rounds=2)
            for found in self.send_model_and_wait(task_name="train", data=ask, timeout=120):
                seen.append({"w": np.asarray(found.params["w"]).ravel().tolist(), "n": np.asarray(found.params["n"]).tolist(),
                             "steps": found.meta.get("NUM_STEPS_CURRENT_ROUND"), "secret": found.meta.get("secret"),
                             "metrics": found.metrics})
        open("PLACE/seen.json", "w").write(json.dumps(seen))
"""
TRAINER = """
import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor

class Trainer(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        data = {name: array + array.dtype.type(5) for name, array in from_shareable(shareable).data.items()}
        meta = {"secret": "a patient is called Ida", "NUM_STEPS_CURRENT_ROUND": 17}
        return DXO(DataKind.WEIGHTS, data=data, meta=meta).to_shareable()
"""


def make_job(place, name, *, scope=None, site=None):
    """A job with code of its own; with `site` it names the filter itself, else it has none."""
    job, config = place / name, place / name / "app" / "config"
    config.mkdir(parents=True)
    (job / "app" / "custom").mkdir()
    meta = {"name": name, "resource_spec": {}, "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta | ({"scope": scope} if scope else {})))
    own = [{"tasks": ["train"], "filters": [{"path": FILTER, "args": {"site": site}}]}] if site else []
    client = {"executors": [{"tasks": ["*"], "executor": {"path": "trainer.Trainer", "args": {}}}], "components": []}
    client |= {"task_data_filters": own, "task_result_filters": own}
    server = {"workflows": [{"id": "rounds", "path": "rounds.Rounds", "args": {}}], "components": []}
    for who, what in (("client", client), ("server", server)):
        (config / f"config_fed_{who}.json").write_text(json.dumps({"format_version": 2} | what))
    (job / "app" / "custom" / "rounds.py").write_text(SERVER.replace("PLACE", str(place)))
    (job / "app" / "custom" / "trainer.py").write_text(TRAINER)
    return job


def protected(place, sites):
    seen = json.loads((place / "seen.json").read_text())
    assert len(seen) == 4
    for found in seen:
        assert has_std(found["w"], 2.0 * 0.5)
        assert (found["n"], found["steps"], found["secret"], found["metrics"]) == ([7], 1, None, None)
    for site in sites:
        with sqlite3.connect(site / "ledger.db") as book:
            assert book.execute("SELECT client, unit, round FROM charges ORDER BY round").fetchall() == [
                (site.name, "client", 0),
                (site.name, "client", 1),
            ]


@pytest.mark.faults
def test_in_flares_own_simulator_two_sites_train_two_rounds_behind_the_filter(tmp_path):
    sites = [make_site(tmp_path / "sites" / name, name) for name in ("site-1", "site-2")]
    job = make_job(tmp_path, "job", site=f"{tmp_path}/sites/{{name}}")
    command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", job, "-w", tmp_path / "work"]
    done = subprocess.run(
        [*map(str, command), "-n", "2", "-t", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    protected(tmp_path, sites)


SUBMIT = """
import os, sys, time
from nvflare.fuel.flare_api.flare_api import new_secure_session

admin, *jobs = sys.argv[1:]
session = None
while session is None or len(session.get_system_info().client_info) < 2:
    try:
        session = session or new_secure_session("admin@nvidia.com", admin)
    except Exception as error:
        print("waiting:", error)
    time.sleep(0.5)
for job in jobs:
    name = session.submit_job(job)
    while not (meta := session.get_job_meta(name))["status"].startswith("FINISHED"):
        time.sleep(0.5)
    print("ended:", meta["status"], meta["job_deploy_detail"], flush=True)
session.close()
os._exit(0)  # the session leaves threads behind
"""


@pytest.mark.faults
def test_a_job_of_a_real_federation_that_names_no_filter_is_filtered_and_one_that_names_another_scope_does_not_run(
    tmp_path,
):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(tmp_path), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"), "OMP_NUM_THREADS": "1"}
    options = {"cwd": tmp_path, "env": os.environ | own, "text": True}
    prepare = [sys.executable, "-m", "nvflare.cli", "poc", "prepare", "-n", "2"]
    subprocess.run(prepare, capture_output=True, timeout=120, check=True, **options)
    (kits,) = (tmp_path / "poc").glob("*/prod_00")
    port = str(free_port())
    for file in kits.glob("*/startup/fed_*.json"):
        file.write_text(file.read_text().replace("8002", port))
    sites = [make_site(kits / name / "tacit" / name, name) for name in ("site-1", "site-2")]
    for site in sites:
        (kits / site.name / "local" / "privacy.json").write_text(privacy(site))
    with ExitStack() as stack:
        for name, side in (("server", "server"), ("site-1", "client"), ("site-2", "client")):
            program = f"nvflare.private.fed.app.{side}.{side}_train"
            command = [sys.executable, "-u", "-m", program, "-m", str(kits / name), "-s", f"fed_{side}.json"]
            command += ["--set", "secure_train=true", "org=nvidia", "config_folder=config"]
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            more = [f"uid={name}"] if side == "client" else []
            process = subprocess.Popen([*command, *more], stdout=log, stderr=log, start_new_session=True, **options)
            stack.callback(process.wait, 60)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        jobs = [make_job(tmp_path, "elsewhere", scope="open"), make_job(tmp_path, "bare")]
        command = [sys.executable, "-c", SUBMIT, str(kits / "admin@nvidia.com"), *map(str, jobs)]
        done = subprocess.run(command, capture_output=True, timeout=400, check=False, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    first, second = [line for line in done.stdout.splitlines() if line.startswith("ended:")]
    assert "FAILED_TO_RUN" in first
    assert first.count("privacy scope 'open' is not allowed") == 2
    assert "COMPLETED" in second, second
    protected(tmp_path, sites)
