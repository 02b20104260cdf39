"""What a person sees while a comparison goes on: runs done, time left, what is running; plain lines where there is no
terminal.
"""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tacit.compare.comparison_folder import Task
from tacit.compare.pool import Event

EVERY_SECONDS = 30.0  # a line at least so often where there is no terminal


class Display:
    """A live panel on a terminal, a line per run elsewhere. Used as a context around `compare`."""

    def __init__(self, console: Console):
        self._console, self._live = console, None
        self._bar = Progress(
            MofNCompleteColumn(), TextColumn("runs"), BarColumn(), TextColumn("{task.description}"), console=console
        )
        self._left: dict[Task, int] = {}
        self._running: dict[Task, int] = {}
        self._rounds = self._done = self._total = 0
        self._began = self._printed = time.monotonic()

    _live: Live | None

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begin(self, tasks: list[Task], waiting: list[Task], *, jobs: int) -> None:
        """Says what is about to run."""
        cells = len({task.cell.slug for task in tasks})
        self._total, self._done = len(tasks), len(tasks) - len(waiting)
        self._left = {task: task.experiment.train.rounds for task in waiting}
        self._began = self._printed = time.monotonic()
        kept = f", {self._done} of them done before" if self._done else ""
        self._say(
            f"{_count(cells, 'cell')}, {_count(len(tasks), 'run')}{kept}, {min(jobs, len(waiting))} side by side."
        )
        if self._console.is_terminal and waiting:
            self._task = self._bar.add_task("", total=self._total, completed=self._done)
            self._live = Live(self._panel(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def watch(self, task: Task | None, event: Event) -> None:
        """Takes in what a worker said, or that time has passed."""
        if task is not None:
            self._take(task, event)
        if self._live:
            self._bar.update(self._task, completed=self._done, description=self.time_left())
            self._live.update(self._panel())
        elif time.monotonic() - self._printed > EVERY_SECONDS:
            running = ", ".join(f"{name(task)} at round {done}" for task, done in self._running.items())
            self._say(f"{self._done}/{self._total} runs, {self.time_left()}, running: {running}")

    def time_left(self) -> str:
        """An estimate from the rounds still to do and the pace so far."""
        if not self._rounds:
            return "time left unknown"
        seconds = (time.monotonic() - self._began) / self._rounds * sum(self._left.values())
        return f"{span(seconds)} left"

    def _take(self, task: Task, event: Event) -> None:
        planned = task.experiment.train.rounds
        if event["kind"] == "started":
            self._running[task] = 0
        elif event["kind"] == "round":
            self._rounds += "trained" in event  # a resumed run first says how far it had come
            self._left[task], self._running[task] = planned - event["rounds"], event["rounds"]
        else:
            self._running.pop(task, None)
            self._left[task] = 0
            self._done += 1
            how = f"failed: {event['sentence']}" if event["kind"] == "failed" else "done"
            if not self._live or event["kind"] == "failed":
                self._say(f"{self._done}/{self._total} runs, {self.time_left()}: {name(task)} {how}")

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        for task, done in self._running.items():
            table.add_row(Text(name(task)), Text(f"round {done}/{task.experiment.train.rounds}", style="dim"))
        return Panel(Group(self._bar, table), expand=False)

    def _say(self, words: str) -> None:
        self._printed = time.monotonic()
        self._console.print(Text(words), soft_wrap=True)


def name(task: Task) -> str:
    """A run in words."""
    return f"{task.cell.label}, seed {task.experiment.run.seed}"


def span(seconds: float) -> str:
    """A time as a person says it.

    >>> span(7), span(100), span(8000)
    ('7 s', '2 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
