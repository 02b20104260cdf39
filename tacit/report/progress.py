"""What a person sees while a run goes on."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tacit.check import printable
from tacit.engine.assemble import Parts
from tacit.engine.loop import Observer
from tacit.experiment import Experiment
from tacit.parts import metrics
from tacit.parts.tasks import headline
from tacit.privacy.guarantee import shown
from tacit.table import facts_table
from tacit.training.flat import frozen

LINES = 10  # how many lines a run prints where there is no terminal
EVERY_SECONDS = 30.0  # ... and at least one in so much time
MOST_REASONS = 3  # sites of a round's line that are missing with their reasons; beyond, their names
AGAIN_SECONDS = 0.2  # between two states of a line that is written over


class Display:
    """A live panel on a terminal, a few plain lines elsewhere. Used as a context around `tacit.run`."""

    def __init__(self, console: Console):
        self._console = console
        fast = TextColumn("{task.fields[speed]}")
        columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), fast)
        self._bar = Progress(*columns, console=console)
        self._live: Live | None = None
        self._limits, self._unit = (0.0, 0.0), "record"
        self._rounds, self._metric, self._printed = 0, "accuracy", 0.0
        self._tested: dict[str, Any] = {}  # the last round with a score

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def ready(self, parts: Parts, past: list[dict[str, Any]]) -> None:
        """Says what is about to run."""
        experiment, population, before = parts.experiment, parts.population, parts.before
        self._rounds, self._metric, self._unit = experiment.train.rounds, headline(experiment), population.unit
        limits = np.delete(population.epsilons, [*parts.plan.opted_out])
        self._limits = (float(limits.min()), float(limits.max()))
        say = partial(self._console.print, highlight=False)
        fixed = sum(parameter.numel() for _, parameter in frozen(parts.model))
        trained = f"{parts.params.numel():,} parameters{f' that train on {fixed:,} that are frozen' if fixed else ''}"
        sizes = f"{len(population):,} clients, {len(population.y):,} records, {trained}"
        promise = "no privacy promised"
        if parts.plan.priced:
            ends = " to ".join(dict.fromkeys(f"{limit:.4g}" for limit in self._limits))
            promise = f"{parts.plan.title(experiment)}, epsilon {ends} per {experiment.privacy.unit_kept}"
        say(f"[bold]{escape(experiment.name)}[/]: {sizes}, {escape(promise)}.")
        if before.runs:
            most = shown(max(before.epsilons(population.names, together=parts.plan.sampler.charges_alike)))
            noise = "rounds are paid from" if experiment.privacy.noise_said else "the noise is sized for"
            held = f"{before.runs} other run{'s' * (before.runs != 1)} when this one began: up to epsilon {most}"
            per = f"per {experiment.privacy.unit_kept} was sealed and counts as spent; {noise} what is left."
            say(Text(f"The ledger {experiment.privacy.ledger} held {held} {per}"))
        if parts.together:
            where = ", ".join(experiment.run.devices)
            say(f"Clients are trained at once on {where}, at most {parts.together} at a time.")
        for note in parts.dataset.notes:
            say(Text(f"Note: {note}."))
        if len(past) >= self._rounds:
            say(f"This run is finished: its {len(past)} rounds are done, and nothing is left to train.")
        elif past:
            say(f"Resuming after round {len(past)}.")
        if self._console.is_terminal:
            self._task = self._bar.add_task("round", total=self._rounds, completed=len(past), speed="")
            panel = self._panel(past[-1] if past else {})
            self._live = Live(panel, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def observe(self, record: dict[str, Any]) -> None:
        """Shows a finished round."""
        done = record["round"] + 1
        if self._live:
            self._bar.update(self._task, completed=done, speed=speed(record))
            self._live.update(self._panel(record))
            return
        due = done % max(1, self._rounds // LINES) == 0 or done == self._rounds
        if due or time.monotonic() - self._printed > EVERY_SECONDS:
            self._printed = time.monotonic()
            facts = "  ".join(f"{name} {value}" for name, value in self._facts(record).items())
            self._console.print(f"round {done}/{self._rounds}  {facts}", highlight=False, markup=False)

    def _panel(self, record: dict[str, Any]) -> Panel:
        facts = self._facts(record) if record else {"": "first round ..."}
        return Panel(Group(self._bar, facts_table(facts.items())), expand=False)

    def _facts(self, record: dict[str, Any]) -> dict[str, str]:
        facts = {}
        if self._metric in record:
            self._tested = record
        if self._tested:  # where this round was not tested, the last one that was, with its number
            of = "" if self._tested is record else f" (round {self._tested['round'] + 1})"
            facts[metrics.words(self._metric)] = f"{self._tested[self._metric]:.3f}{of}"
        if "backdoor_accuracy" in record:
            facts["backdoor"] = f"{record['backdoor_accuracy']:.3f}"
        if "epsilon_tightest" in record:
            low, high = self._limits
            facts[f"epsilon per {self._unit}, tightest client"] = spent_of(record["epsilon_tightest"], low)
            if high != low:
                facts["loosest client"] = spent_of(record["epsilon_loosest"], high)
            facts["counting"] = counted(record)
            if record["round"] + 1 < self._rounds:  # at the planned end every spread budget is used up
                facts["out of budget"] = f"{record['out_of_budget']} clients"
        if record.get("refused"):
            name, why = next(iter(record["refused"].items()))
            facts["refused"] = f"{len(record['refused'])} messages, one from {name}: {why}"
        if names := record.get("diverged"):
            facts["diverged"] = f"{len(names)} clients, one of them {names[0]}: lower train.learning_rate"
        return facts


def seen_by_people() -> bool:
    """Whether somebody watches: standard error is a terminal, or the cell of a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def line(experiment: Experiment, observe: Observer | None) -> Iterator[Observer]:
    """One line on standard error that says after each round how the run stands; `observe` is called first."""
    shown, metric, wide = 0.0, headline(experiment), 0

    def told(record: dict[str, Any]) -> None:
        nonlocal shown, wide
        if observe:
            observe(record)
        done = record["round"] + 1
        if done == experiment.train.rounds or time.monotonic() - shown > AGAIN_SECONDS:
            shown = time.monotonic()
            score = f"  {metrics.words(metric)} {record[metric]:.3f}" if metric in record else ""
            text = f"round {done}/{experiment.train.rounds}{score}  {speed(record)}"
            print(f"\r{text:{wide}}", end="", file=sys.stderr, flush=True)
            wide = len(text)

    try:
        yield told
    finally:
        if wide:
            print(file=sys.stderr)


def speed(record: dict[str, Any]) -> str:
    """How fast rounds go, by the last one: in the unit in which people say it.

    >>> speed({"seconds": 0.04}), speed({"seconds": 12.5}), speed({})
    ('25 rounds/s', '12.5 s/round', '')
    """
    seconds = record.get("seconds", 0.0)
    return "" if not seconds else f"{1 / seconds:.3g} rounds/s" if seconds < 1 else f"{seconds:.3g} s/round"


def round_line(record: dict[str, Any], experiment: Experiment) -> str:
    """A round of a deployment in one line.

    >>> round_line({"round": 1, "accuracy": 0.5, "answered": 2, "cohort": 3}, Experiment(train={"rounds": 9}))
    'round 2/9  accuracy 0.500  2 of 3 sites'
    >>> round_line({"round": 1, "answered": 2, "cohort": 3}, Experiment(train={"rounds": 9}))  # no public test rows
    'round 2/9  2 of 3 sites'
    >>> record = {"round": 1, "answered": 2, "cohort": 2, "absent": {"north": "is not connected"}}
    >>> round_line(record, Experiment(train={"rounds": 9}))  # a site that is not there is not asked
    'round 2/9  2 of 2 sites (north missing: is not connected)'
    """
    parts, metric = [f"round {record['round'] + 1}/{experiment.train.rounds}"], headline(experiment)
    if metric in record:
        parts.append(f"{metrics.words(metric)} {record[metric]:.3f}")
    if "epsilon_tightest" in record:
        spent = sorted(record[f"epsilon_{end}"] for end in ("tightest", "loosest"))
        ends = " to ".join(dict.fromkeys(map(shown, spent)))
        parts.append(f"epsilon per {experiment.privacy.unit_kept} {ends} ({counted(record)})")
    absent = record.get("absent") or {}
    names = [f"{name} missing: {printable(why).rstrip('.')}" for name, why in absent.items()]
    if len(names) > MOST_REASONS:
        names = [f"{', '.join(absent)} missing"]
    missing = f" ({'; '.join(names)})" if names else ""
    return "  ".join([*parts, f"{record['answered']} of {record['cohort']} sites{missing}"])


def counted(record: dict[str, Any]) -> str:
    """Which runs of the ledger the epsilon of a round's record counts.

    >>> counted({"other_runs": 0}), counted({"other_runs": 2})
    ('this run', 'this run with 2 other runs')
    """
    others = record["other_runs"]
    return f"this run with {others} other run{'s' * (others != 1)}" if others else "this run"


def spent_of(spent: float, limit: float) -> str:
    """What was spent, rounded up, beside its limit with the same digits: what keeps to a limit must look so.

    >>> spent_of(0.87213, 0.8722), spent_of(1.0, float("inf"))
    ('0.8722 of 0.8722', '1.000 of inf')
    >>> spent_of(0.0000999, 0.0001), spent_of(0.00012344, 0.00012345)
    ('9.99e-05 of 0.0001', '0.0001235 of 0.0001235')
    """
    text = shown(spent)
    if float(text) <= limit:
        return f"{text} of {limit:.4g}" if float(text) <= float(f"{limit:.4g}") else f"{text} of {limit:.3f}"
    return f"{shown(spent, digits=4)} of {shown(limit, digits=4)}"
