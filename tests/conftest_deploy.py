"""Real federations on loopback: a SuperLink, SuperNodes, TLS and node authentication, as `tacit deploy up` starts them."""

import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

import tacit
from tacit.deploy.init import init
from tacit.deploy.processes import Processes, free_port
from tacit.deploy.up import register, start_site, start_superlink, submit

EXPERIMENT = {
    "name": "faults",
    "data": {"clients": 2, "examples_per_client": 700},
    # a round is long enough to be hit in the middle, and the budget lasts for the runs of all faults
    "train": {"rounds": 3, "local_steps": 100, "sampling_rate": 1.0},
    "privacy": {"kind": "local", "epsilon": 9.0, "noise_multiplier": 60.0, "accountant": "rdp"},
}
PATIENCE = 240.0


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

    def __init__(self, folder, **changes):
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in EXPERIMENT.items()}
        for section, change in changes.items():
            values[section] = values.get(section, {}) | change
        experiment = tacit.Experiment(**values)
        self.federation = init(folder, sites="2", experiment=experiment, host="127.0.0.1", port=free_port())
        self.processes = Processes(home=self.federation.home)
        self.names = self.federation.sites

    def start(self, *, sites=None):
        start_superlink(self.federation, self.processes)
        register(self.federation, self.processes)
        for name in self.names if sites is None else sites:
            self.start_site(name)

    def start_site(self, name):
        return start_site(self.federation, name, self.processes)

    def kill(self, name):
        self.processes.signal(name, signal.SIGKILL)
        self.processes.stop(name)

    def submit(self, *, resume=False, seconds=60.0, join=120.0):
        """Starts a run, setting an earlier one aside unless it is resumed. Returns when it began."""
        began = time.time()
        self.runs = len(self.runs_at(self.names[0]))
        submit(
            self.federation, self.processes, resume=resume, force=not resume,
            **{"round-seconds": seconds, "join-seconds": join},
        )  # fmt: skip
        until(lambda: self.status(began), what="the server to start")
        return began

    def status(self, began):
        path = self.federation.results / "status.json"
        status = json.loads(path.read_text()) if path.exists() else {}
        return status if status.get("time", 0) > began else {}

    def finish(self, began, *, seconds=PATIENCE):
        """Waits for the end of a run and returns its status."""
        until(lambda: self.status(began).get("state") in ("finished", "failed"), seconds=seconds, what="the run to end")
        return self.status(began)

    def rounds(self):
        return [json.loads(line) for line in (self.federation.results / "rounds.jsonl").read_text().splitlines()]

    def runs_at(self, name):
        place = self.federation.site(name) / "runs"
        return list(place.iterdir()) if place.exists() else []

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
        run = self.run()
        lines = (self.federation.site(name) / "log.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry.get("run") == run]

    def said(self, name):
        """Everything that a site's programs said."""
        files = [self.federation.site(name) / file for file in ("site.log", "supernode.log")]
        return "".join(file.read_text() for file in files if file.exists())

    def charged(self, name, round):
        """Waits until a site has paid for a round, which is when it starts to train."""

        def paid():
            status = json.loads((self.federation.results / "status.json").read_text())
            assert status["state"] != "failed", status["text"]
            return round in self.charges(name)

        until(paid, what=f"{name} to be charged for round {round}")

    def never_under_reported(self):
        """Every answer a site gave was charged before, on its own disk."""
        for name in self.names:
            trained = [entry["round"] for entry in self.log(name) if entry["text"].startswith("Trained")]
            assert len(trained) == len(set(trained)), "a round was released twice"
            assert set(trained) <= set(self.charges(name))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One federation for the faults of a module: each test starts a run of its own."""
    up = Running(tmp_path_factory.mktemp("faults") / "federation")
    with up.processes:
        up.start()
        yield up
    until(lambda: not left_over(up.federation.folder), seconds=20, what=f"{left_over(up.federation.folder)} to end")


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
