"""Real federations on loopback: a SuperLink, SuperNodes, TLS and node authentication, as `tacit deploy up` starts them."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import Processes, free_port
from tacit.deploy.operate.serve import register, start_server, start_site, submit

EXPERIMENT = {
    "name": "faults",
    "data": {"examples_per_client": 450},
    # a round is long enough to be hit in the middle, and the budget lasts for several runs
    "train": {"rounds": 3, "local_steps": 100, "sampling_rate": 1.0},
    "privacy": {"kind": "local", "epsilon": 9.0, "noise_multiplier": 60.0, "delta_share": 0.1},
}
IMPATIENT = """
import sys
import tacit.deploy.operate.site_process as site
from tacit.cli import main
site.FORGET_SECONDS = 5.0
sys.argv = ["tacit", "deploy", "site", sys.argv[1]]
main()
"""
SUPERNODE = """
from flwr.supernode import fleet_http_connection
fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10  # the least that a SuperLink takes
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""
PATIENCE = 600.0  # nothing waits so long unless it hangs: a loaded machine must not look like a fault


def until(true, *, seconds=PATIENCE, what="it"):
    """Waits for something to become true."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


class Running:
    """A federation whose processes a test may kill."""

    def __init__(self, folder, *, sites=2, experiment=EXPERIMENT, **changes):
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in experiment.items()}
        for section, change in changes.items():
            values[section] = values.get(section, {}) | change
        experiment = tacit.Experiment(**values)
        self.federation = init(folder, sites=str(sites), experiment=experiment, host="127.0.0.1", port=free_port())
        self.processes = Processes(home=self.federation.home)
        self.names, self.epsilon = self.federation.sites, experiment.privacy.epsilon

    def start(self, *, supernodes=0):
        """Starts server and sites; the last so many of them as Flower's own SuperNode, with the app that the server sends."""
        start_server(self.federation, self.processes)
        register(self.federation, self.processes)
        for place, name in enumerate(self.names):
            (self.start_supernode if place >= len(self.names) - supernodes else self.start_site)(name)

    def start_site(self, name):
        return start_site(self.federation, name, self.processes)

    def start_impatient(self, name):
        """Starts a site that gives up after a few seconds, not after the minute and a half in which a dead node is forgotten."""
        folder = self.federation.site(name)
        command = [sys.executable, "-c", IMPATIENT, folder]
        return self.processes.start(f"site {name}", command, log=folder / "site.log", cwd=folder)

    def start_supernode(self, name):
        """Flower's own SuperNode, with a faster heart: once killed, it is taken for gone after 2 of its intervals."""
        folder = self.federation.site(name)
        command = [
            sys.executable,
            "-c",
            SUPERNODE,
            "--root-certificates",
            folder / "ca.crt",
            "--port",
            str(free_port()),
        ]
        command += ["--superlink", self.federation.address, "--auth-supernode-private-key", folder / "node.key"]
        command += ["--host", "127.0.0.1", "--node-config", f'tacit-site="{folder}"']
        return self.processes.start(f"SuperNode {name}", command, log=folder / "site.log", cwd=folder)

    def kill(self, name):
        os.killpg(self.processes.running[name].pid, signal.SIGKILL)
        self.processes.stop(name)

    def pid(self, name):
        """The process that answers for a site."""
        return self.processes.running[f"site {name}"].pid

    def submit(self, *, resume=False, seconds=120.0, join=300.0):
        """Starts a run, setting an earlier one aside unless it is resumed. Returns when it began."""
        began = time.time()
        submit(
            self.federation, self.processes, resume=resume, force=not resume,
            **{"round-seconds": seconds, "join-seconds": join},
        )  # fmt: skip
        until(lambda: self.status(began), what="the server to start")
        return began

    def status(self, began):
        path = self.federation.results / "status.json"
        status = json.loads(path.read_text()) if path.exists() else {}
        return status if status.get("began", 0) > began else {}

    def finish(self, began):
        """Waits for the end of a run and returns its status."""
        until(lambda: self.status(began).get("state") in ("finished", "failed"), what="the run to end")
        return self.status(began)

    def finished(self, began):
        """Waits for a run to end as it should."""
        status = self.finish(began)
        assert status["state"] == "finished", status["text"]

    def rounds(self):
        """The finished rounds; the last line may be half written."""
        path = self.federation.results / "rounds.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def after_round(self, began, round):
        """Waits for the end of a round."""

        def over():
            status = self.status(began)
            assert status["state"] != "failed", status["text"]
            return len(self.rounds()) > round

        until(over, what=f"the end of round {round}")

    def run(self):
        return json.loads((self.federation.results / "run.json").read_text())["run"]

    def charges(self, name, run=None):
        """The rounds that a site's ledger holds for a run."""
        try:
            with sqlite3.connect(
                f"file:{self.federation.site(name) / 'ledger.db'}?mode=ro", uri=True, timeout=30
            ) as book:
                query = "SELECT round FROM charges WHERE run = ? ORDER BY round"
                return [round for (round,) in book.execute(query, (run or self.run(),))]
        except sqlite3.OperationalError:
            return []

    def log(self, name):
        path = self.federation.site(name) / "log.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry.get("run") == self.run()]

    def said(self, name):
        """Everything that a site said."""
        file = self.federation.site(name) / "site.log"
        return file.read_text() if file.exists() else ""

    def trained(self, name):
        """The rounds that a site has trained and answered, or is about to."""
        return [entry["round"] for entry in self.log(name) if entry["text"].startswith("Trained")]

    def has_trained(self, name, round):
        """Waits until a site has trained in a round."""
        until(lambda: round in self.trained(name), what=f"{name} to train in round {round}")

    def charged(self, name, round):
        """Waits until a site has paid for a round, which is when it starts to train."""

        def paid():
            status = self.status(0)
            assert status["state"] != "failed", status["text"]
            self.processes.refuse_ended()
            return round in self.charges(name)

        until(paid, what=f"{name} to be charged for round {round}")

    def never_under_reported(self):
        """Every answer a site gave was charged before, on its own disk."""
        for name in self.names:
            trained = self.trained(name)
            assert len(trained) == len(set(trained)), "a round was released twice"
            assert set(trained) <= set(self.charges(name))


@pytest.fixture
def federation_of(tmp_path):
    """Starts a federation of an experiment with changes, and ends it with everything it started."""
    with contextlib.ExitStack() as stack:

        def start(*, sites=2, supernodes=0, prepare=lambda federation: None, **changes):
            up = Running(tmp_path / "federation", sites=sites, **changes)
            stack.callback(ended, up.federation.folder)
            stack.enter_context(up.processes)
            prepare(up.federation)
            up.start(supernodes=supernodes)
            return up

        yield start


@pytest.fixture
def running(federation_of):
    """A federation of two sites under local DP."""
    return federation_of()


def ended(folder):
    """Waits until nothing of a federation runs."""
    until(lambda: not left_over(folder), what=f"{left_over(folder)} to end")


def left_over(folder):
    """The command lines of processes that belong to a federation."""
    pids = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if belongs(pid, folder)]
    return [place.read_text()[:120] for place in (Path(f"/proc/{pid}/cmdline") for pid in pids) if place.exists()]


def belongs(pid, folder):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            home = f"FLWR_HOME={folder}".encode()
            return home in file.read() and os.getpid() != pid
    except OSError:
        return False
