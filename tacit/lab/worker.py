"""Runs concurrently: a few worker processes, each with one thread, fed one run at a time; and what a person sees meanwhile.
A worker is a fresh interpreter (`python -m tacit.lab.worker`): a fork after torch has used threads hangs. Tasks come in as
lines, events go out as lines, and what a run prints is its log. It has a session of its own, so Ctrl-C reaches the comparison
alone, and ends when its input ends. One that dies takes only its own run."""

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO, cast

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.lab.compare.grid import Task
from tacit.simulation import run

Event = dict[str, Any]  # kind = "started" | "round" (rounds) | "done" | "failed" (sentence) | "waiting" (of no task)
Watch = Callable[[Task | None, Event], None]
PATIENCE = 10.0  # seconds that a worker has to end before it is killed
TICK = 0.5  # seconds between two looks at the clock
EVERY_SECONDS = 30.0  # a line at least so often where there is no terminal
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_all(tasks: Sequence[Task], *, jobs: int, logs: Path, watch: Watch) -> dict[Path, str]:
    """Does all tasks, `jobs` at once, and returns the sentence of each that failed, by folder.
    Raises KeyboardInterrupt after every worker has ended; what they did until then is on disk."""
    waiting, failed = list(tasks)[::-1], dict[Path, str]()
    workers, selector = list[_Worker](), selectors.DefaultSelector()
    logs.mkdir(exist_ok=True)

    def give(worker: "_Worker") -> None:
        worker.task = None
        if waiting:
            worker.give(waiting.pop())
            watch(worker.task, {"kind": "started"})

    def employ(log: Path) -> None:
        worker = _Worker(log)
        workers.append(worker)
        selector.register(worker.output, selectors.EVENT_READ, worker)
        give(worker)

    def heed(worker: "_Worker", event: Event) -> None:
        if worker.task:
            watch(worker.task, event)
            if event["kind"] == "failed":
                failed[worker.task.folder] = event["sentence"]
        if event.get("dead"):
            selector.unregister(worker.output)
            workers.remove(worker)
            worker.end()
            if waiting:
                employ(worker.log)
        elif event["kind"] in ("done", "failed"):
            give(worker)

    try:
        for number in range(min(jobs, len(tasks))):
            employ(logs / f"worker-{number + 1}.txt")
        while any(worker.task for worker in workers):
            for key, _ in selector.select(TICK):
                for event in key.data.events():
                    heed(key.data, event)
            watch(None, {"kind": "waiting"})
    finally:
        selector.close()
        for worker in workers:
            worker.end()
    return failed


class _Worker:
    def __init__(self, log: Path):
        self.log, self.task = log, None
        self._said_before, self._rest = log.stat().st_size if log.exists() else 0, b""
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # models and rules of the caller's own
        with log.open("ab") as errors:
            self._process = _start(errors, os.environ | ONE_THREAD | {"PYTHONPATH": path})
        self._input, self.output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    task: Task | None

    def give(self, task: Task) -> None:
        """Hands it a run. A worker that is already dead is noticed when its output is read."""
        self.task = task
        # where rows lie is no part of a run's name: without another one, cells with other rows of one client would share
        # what the others draw, and runs are added here as if they shared nothing
        apart = sorted((key, str(value)) for key, value in task.cell.varied.items() if key.startswith("data."))
        asked = {"experiment": task.experiment.toml(), "folder": str(task.folder)}
        line = json.dumps(asked | {"trial_id": json.dumps(apart) if any("path" in key for key, _ in apart) else ""})
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
    command = [sys.executable, "-P", "-m", "tacit.lab.worker"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
    return subprocess.Popen[bytes](command, start_new_session=True, env=environment, **pipes)


class Display:
    """A bar of all runs and one of each that goes on, on a terminal; a line per run elsewhere. A context around `compare`."""

    def __init__(self, console: Console):
        self._console, self._live = console, console.is_terminal
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
        self._bars = Progress(*columns, console=console, transient=True, disable=not self._live)
        self._running: dict[Task, TaskID] = {}
        self._left: dict[Task, int] = {}
        self._rounds = self._done = self._total = 0
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bars.stop()

    def begin(self, tasks: list[Task], waiting: list[Task], *, jobs: int) -> None:
        cells, runs = len({task.cell.slug for task in tasks}), len(tasks)
        self._total, self._done = runs, runs - len(waiting)
        self._left = {task: task.experiment.train.rounds for task in waiting}
        self._began = self._printed = time.monotonic()
        kept = f", {self._done} of them done before" if self._done else ""
        counted = f"{cells} cell{'s' * (cells != 1)}, {runs} run{'s' * (runs != 1)}{kept}"
        self._say(f"{counted}, {min(jobs, len(waiting))} side by side.")
        self._runs = self._bars.add_task("runs", total=runs, completed=self._done)
        if waiting:
            self._bars.start()

    def watch(self, task: Task | None, event: Event) -> None:
        if task is not None:
            self._take(task, event)
        self._bars.update(self._runs, completed=self._done, description=f"runs, {self.time_left()}")
        if not self._live and time.monotonic() - self._printed > EVERY_SECONDS:
            at = ((one, one.experiment.train.rounds - self._left[one]) for one in self._running)
            running = ", ".join(f"{name(one)} at round {done}" for one, done in at)
            self._say(f"{self._done}/{self._total} runs, {self.time_left()}, running: {running}")

    def time_left(self) -> str:
        """An estimate from the rounds still to do and the pace so far."""
        if not self._rounds:
            return "time left unknown"
        seconds = (time.monotonic() - self._began) / self._rounds * sum(self._left.values())
        return f"{span(seconds)} left"

    def _take(self, task: Task, event: Event) -> None:
        if event["kind"] == "started":
            self._running[task] = self._bars.add_task(name(task), total=task.experiment.train.rounds)
        elif event["kind"] == "round":
            self._rounds += "trained" in event  # a resumed run first says how far it had come
            self._left[task] = task.experiment.train.rounds - event["rounds"]
            self._bars.update(self._running[task], completed=event["rounds"])
        else:
            self._bars.remove_task(self._running.pop(task))
            self._left[task] = 0
            self._done += 1
            how = f"failed: {event['sentence']}" if event["kind"] == "failed" else "done"
            if not self._live or event["kind"] == "failed":
                self._say(f"{self._done}/{self._total} runs, {self.time_left()}: {name(task)} {how}")

    def _say(self, words: str) -> None:
        self._printed = time.monotonic()
        self._console.print(Text(words), soft_wrap=True)


def name(task: Task) -> str:
    return f"{task.cell.label}, seed {task.experiment.run.seed}"


def span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


# The process that trains.


def attempt(task: dict[str, str], wire: TextIO) -> None:
    def say(kind: str, **facts: Any) -> None:
        wire.write(json.dumps({"kind": kind, **facts}) + "\n")
        wire.flush()

    folder = Path(task["folder"])
    try:
        run(
            Experiment(**tomllib.loads(task["experiment"])),
            out=folder,
            resume=(folder / "experiment.toml").exists(),
            ready=lambda _, past: say("round", rounds=len(past)),
            observe=lambda record: say("round", rounds=record["round"] + 1, trained=True),
            trial_id=task["trial_id"],
            page=False,  # the comparison has one of its own; `tacit report` makes that of a single run
        )
    except TacitError as error:
        say("failed", sentence=" ".join(str(error).split()))
    else:
        say("done")


def main() -> None:
    torch.set_num_threads(1)
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a model of the user's own may print
    tasks: queue.Queue[dict[str, str]] = queue.Queue()

    def listen() -> None:
        with os.fdopen(os.dup(0), "rb", buffering=0) as lines:  # not sys.stdin, whose lock a fork would inherit
            for line in lines:
                tasks.put(json.loads(line))
        os._exit(0)  # like a kill, which a run survives

    threading.Thread(target=listen, daemon=True).start()
    while True:
        attempt(tasks.get(), wire)


if __name__ == "__main__":
    main()
