"""A contender as the driver sees it: a process that does one round when told to, and is stopped with all it started."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_PROXY": "127.0.0.1,localhost",
}
LONGEST = 300.0  # seconds that a start or a round may take
GRACE = 20.0  # seconds that a contender has to end by itself; Ray needs some
IDLE = 0.85  # the share of all cores that must be idle before and after a round for it to count as calm
GLANCE = 0.1  # seconds over which that is measured


class Failed(Exception):
    """Why a contender has no time, in a few words."""


class Contender:
    """One program and its process."""

    def __init__(self, name: str, command: list[str]):
        self.name, self._command = name, command
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Starts the process and does a first round; returns the seconds both took."""
        began = time.perf_counter()
        environment = os.environ | OFFLINE | {"PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        try:
            self._process = subprocess.Popen(
                self._command, text=True, env=environment, start_new_session=True, cwd=tempfile.gettempdir(), **pipes
            )
        except OSError as error:
            raise Failed(str(error)) from error
        self._hear("ready")
        self.round()
        return time.perf_counter() - began

    def round(self) -> float:
        """One round; returns its seconds as the contender measured them."""
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failed(self._last_words()) from error
        return self._hear("seconds")

    def stop(self) -> None:
        """Lets the process end, then ends by their ids whichever processes of its session are left."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in session(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.stdout.close()

    def _hear(self, key: str) -> float:
        ready, _, _ = select.select([self._process.stdout], [], [], LONGEST)
        if not ready:
            raise Failed(f"no answer in {LONGEST:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(GRACE)
            raise Failed(self._last_words())
        return json.loads(line)[key]

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1][:100] if lines else "it ended without a word"


def session(leader: int) -> list[int]:
    """The living processes of a session, without its leader."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # state, parent, group, session, ...
        except OSError:
            continue  # it ended while we looked
        if int(fields[3]) == leader and int(stat.parent.name) != leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def quiet(patience: float) -> bool:
    """Waits until nobody else works on this machine, at most `patience` seconds; returns whether that is so."""
    end = time.monotonic() + patience
    while not (calm := idle_share() >= IDLE) and time.monotonic() < end:
        pass
    return calm


def idle_share() -> float:
    """The share of all cores that is idle during a glance; 1 where the system does not say."""
    before = _times()
    time.sleep(GLANCE)
    idle, total = (after - b for after, b in zip(_times(), before, strict=True))
    return idle / total if total else 1.0


def _times() -> tuple[int, int]:
    """(idle, all) clock ticks of all cores since the start; zeros where the system does not say."""
    try:
        ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[3] + ticks[4], sum(ticks)
