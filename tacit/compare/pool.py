"""Runs side by side: a few worker processes, each with one thread, fed one run at a time.

Workers are fresh interpreters (`python -m tacit.simulation.worker`), not forks: a fork after torch has used threads hangs.
A worker that dies takes only its own run with it. Workers have their own session, so Ctrl-C reaches the comparison
alone.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tacit.compare.comparison_folder import Task

Event = dict[str, Any]  # kind = "started" | "round" (rounds) | "done" | "failed" (sentence) | "waiting" (of no task)
Watch = Callable[[Task | None, Event], None]
PATIENCE = 10.0  # seconds that a worker has to end before it is killed
TICK = 0.5  # seconds between two looks at the clock
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_all(tasks: Sequence[Task], *, jobs: int, logs: Path, watch: Watch) -> dict[Path, str]:
    """Does all tasks, `jobs` at once, and returns the sentence of each that failed, by folder.

    Raises KeyboardInterrupt after every worker has ended; what they did until then is on disk.
    """
    crew = _Crew(list(tasks), logs, watch)
    try:
        for number in range(min(jobs, len(tasks))):
            crew.employ(logs / f"worker-{number + 1}.txt")
        while any(worker.task for worker in crew.workers):
            crew.hear()
            watch(None, {"kind": "waiting"})
    finally:
        crew.dismiss()
    return crew.failed


class _Crew:
    """The workers, the tasks that wait for them, and what has failed."""

    def __init__(self, tasks: list[Task], logs: Path, watch: Watch):
        self.workers: list[_Worker] = []
        self.failed: dict[Path, str] = {}
        self._waiting, self._watch, self._selector = tasks[::-1], watch, selectors.DefaultSelector()
        logs.mkdir(exist_ok=True)

    def employ(self, log: Path) -> None:
        """Starts one more worker."""
        worker = _Worker(log)
        self.workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        self._give(worker)

    def hear(self) -> None:
        """Waits a moment for what the workers say."""
        for key, _ in self._selector.select(TICK):
            for event in key.data.events():
                self._heed(key.data, event)

    def dismiss(self) -> None:
        """Ends every worker; one that is still at a run stops there."""
        self._selector.close()
        for worker in self.workers:
            worker.end()

    def _heed(self, worker: "_Worker", event: Event) -> None:
        if worker.task:
            self._watch(worker.task, event)
            if event["kind"] == "failed":
                self.failed[worker.task.folder] = event["sentence"]
        if event.get("dead"):
            self._selector.unregister(worker.output)
            self.workers.remove(worker)
            worker.end()
            if self._waiting:
                self.employ(worker.log)
        elif event["kind"] in ("done", "failed"):
            self._give(worker)

    def _give(self, worker: "_Worker") -> None:
        worker.task = None
        if self._waiting:
            worker.give(self._waiting.pop())
            self._watch(worker.task, {"kind": "started"})


class _Worker:
    """One process and the run it is at."""

    def __init__(self, log: Path):
        self.log, self.task = log, None
        self._said_before, self._rest = log.stat().st_size if log.exists() else 0, b""
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # models and rules of the caller's own
        with log.open("ab") as errors:
            self._process = _start(errors, os.environ | ONE_THREAD | {"PYTHONPATH": path})
        self._input, self.output = _pipe(self._process.stdin), _pipe(self._process.stdout)

    task: Task | None

    def give(self, task: Task) -> None:
        """Hands it a run. A worker that is already dead is noticed when its output is read."""
        self.task = task
        line = json.dumps({"experiment": task.experiment.toml(), "folder": str(task.folder)})
        with suppress(BrokenPipeError):
            self._input.write(f"{line}\n".encode())
            self._input.flush()

    def events(self) -> list[Event]:
        """What it has said since; its death is the failure of its run."""
        piece = os.read(self.output.fileno(), 1 << 16)
        if not piece:
            return [{"kind": "failed", "sentence": self._epitaph(), "dead": True}]
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Stops it; a run survives that at any moment."""
        self._process.terminate()
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()
        if self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()

    def _epitaph(self) -> str:
        code = self._process.wait()
        how = f"by signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"with exit code {code}"
        with self.log.open("rb") as file:
            file.seek(self._said_before)
            said = file.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        return f"The process of this run ended {how} ({last}): see {self.log}."


def _start(errors: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, with pipes for tasks and events."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tacit.simulation.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env=environment,
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("Expected a worker with pipes.")
    return stream
