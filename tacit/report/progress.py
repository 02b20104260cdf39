"""What a person sees while a run goes on and when it ends."""

import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tacit import metrics
from tacit.build.parts import Parts
from tacit.compare.values import size
from tacit.engine.at_clients import in_words
from tacit.engine.describing import FILE as STATS_FILE
from tacit.engine.history import History
from tacit.engine.per_client import NAME as PER_CLIENT
from tacit.engine.run_files import read
from tacit.experiment import Experiment
from tacit.personal import everybody
from tacit.privacy.guarantee import seen_by_more, shown, shown_delta, with_others
from tacit.report.constant import not_better
from tacit.tasks import headline
from tacit.train.frozen import frozen
from tacit.types import Others

LINES = 10  # how many lines a run prints where there is no terminal
EVERY_SECONDS = 30.0  # ... and at least one in so much time


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
        experiment, population = parts.experiment, parts.population
        self._rounds, self._metric = experiment.train.rounds, headline(experiment)
        self._limits = (float(population.epsilons.min()), float(population.epsilons.max()))
        self._unit = population.unit
        promise = _promise(parts, self._limits)
        fixed = sum(parameter.numel() for _, parameter in frozen(parts.model))
        trained = f"{parts.params.numel():,} parameters{f' that train on {fixed:,} that are frozen' if fixed else ''}"
        sizes = f"{len(population):,} clients, {len(population.y):,} records, {trained}"
        self._console.print(f"[bold]{escape(experiment.name)}[/]: {sizes}, {escape(promise)}.", highlight=False)
        if parts.before.runs:
            self._console.print(Text(_shared(parts)))
        if parts.together:
            where = ", ".join(parts.experiment.run.devices)
            self._console.print(
                f"Clients are trained at once on {where}, at most {parts.together} together.", highlight=False
            )
        for note in parts.dataset.notes:
            self._console.print(Text(f"Note: {note}."))
        if len(past) >= self._rounds:
            self._console.print(f"This run is finished: its {len(past)} rounds are done, and nothing is left to train.")
        elif past:
            self._console.print(f"Resuming after round {len(past)}.", highlight=False)
        if self._console.is_terminal:
            self._task = self._bar.add_task("round", total=self._rounds, completed=len(past), speed="")
            self._live = Live(
                self._panel(past[-1] if past else {}), console=self._console, refresh_per_second=4, transient=True
            )
            self._live.start()

    def observe(self, record: dict[str, Any]) -> None:
        """Shows a finished round."""
        done = record["round"] + 1
        if self._live:
            self._bar.update(self._task, completed=done, speed=speed(record))
            self._live.update(self._panel(record))
        elif (
            done % max(1, self._rounds // LINES) == 0
            or done == self._rounds
            or time.monotonic() - self._printed > EVERY_SECONDS
        ):
            self._printed = time.monotonic()
            self._console.print(
                f"round {done}/{self._rounds}  " + "  ".join(f"{k} {v}" for k, v in self._facts(record).items()),
                highlight=False,
            )

    def _panel(self, record: dict[str, Any]) -> Panel:
        table = Table.grid(padding=(0, 2))
        for name, value in (self._facts(record) if record else {"": "first round ..."}).items():
            table.add_row(Text(name, style="dim"), value)
        return Panel(Group(self._bar, table), expand=False)

    def _facts(self, record: dict[str, Any]) -> dict[str, str]:
        facts = self._score(record)
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
            facts["refused"] = escape(f"{len(record['refused'])} messages, one from {name}: {why}")
        if record.get("diverged"):
            names = record["diverged"]
            facts["diverged"] = escape(f"{len(names)} clients, one of them {names[0]}: lower train.learning_rate")
        return facts

    def _score(self, record: dict[str, Any]) -> dict[str, str]:
        """What the model reached; where this round was not tested, the last one that was, with its number."""
        if self._metric in record:
            self._tested = record
        if not self._tested:
            return {}
        of = "" if self._tested is record else f" (round {self._tested['round'] + 1})"
        return {metrics.words(self._metric): f"{self._tested[self._metric]:.3f}{of}"}


def speed(record: dict[str, Any]) -> str:
    """How fast rounds go, by the last one: in the unit in which people say it.

    >>> speed({"seconds": 0.04}), speed({"seconds": 12.5}), speed({})
    ('25 rounds/s', '12.5 s/round', '')
    """
    seconds = record.get("seconds", 0.0)
    if not seconds:
        return ""
    return f"{1 / seconds:.3g} rounds/s" if seconds < 1 else f"{seconds:.3g} s/round"


def round_line(record: dict[str, Any], experiment: Experiment) -> str:
    """A round of a deployment in one line.

    >>> round_line({"round": 1, "accuracy": 0.5, "answered": 2, "cohort": 3}, Experiment(train={"rounds": 9}))
    'round 2/9  accuracy 0.500  2 of 3 sites'
    >>> round_line({"round": 1, "answered": 2, "cohort": 3}, Experiment(train={"rounds": 9}))  # no public test rows
    'round 2/9  2 of 3 sites'
    """
    rounds, spent = experiment.train.rounds, ""
    if "epsilon_tightest" in record:
        ends = f"{shown(record['epsilon_tightest'])} to {shown(record['epsilon_loosest'])}"
        spent = f"  epsilon per {experiment.privacy.unit_kept} {ends} ({counted(record)})"
    who = f"{record['answered']} of {record['cohort']} sites"
    metric = headline(experiment)
    found = f"  {metrics.words(metric)} {record[metric]:.3f}" if metric in record else ""
    return f"round {record['round'] + 1}/{rounds}{found}{spent}  {who}"


def counted(record: dict[str, Any]) -> str:
    """Which runs of the ledger the epsilon of a round's record counts; records of earlier versions do not say.

    >>> counted({"other_runs": 0}), counted({"other_runs": 2})
    ('this run', 'this run with 2 other runs')
    """
    others = record.get("other_runs")
    if others is None:
        return "all runs of its ledger"
    return "this run" if others == 0 else f"this run with {others} other run{'s' * (others != 1)}"


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


def _promise(parts: Parts, limits: tuple[float, float]) -> str:
    if not parts.plan.priced:
        return "no privacy promised"
    low, high = (f"{limit:.4g}" for limit in limits)
    unit = parts.experiment.privacy.unit_kept
    return f"{parts.plan.title(parts.experiment)}, epsilon {low if low == high else f'{low} to {high}'} per {unit}"


def _shared(parts: Parts) -> str:
    """What a shared ledger held when the run began."""
    privacy, before, names = parts.experiment.privacy, parts.before, parts.population.names
    most = max(before.epsilons(names, together=parts.plan.together))
    given = privacy.noise_multiplier is not None or privacy.noise_on_mean is not None
    return (
        f"The ledger {privacy.ledger} held {before.runs} other run{'s' * (before.runs != 1)} when this one began: up to epsilon"
        f" {shown(most)} per {privacy.unit_kept} was sealed and counts as spent;"
        f" {'rounds are paid from' if given else 'the noise is sized for'} what is left."
    )


def closing(history: History, console: Console) -> None:
    """The table, the guarantee in a few lines, and where the files are."""
    summary = history.summary
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in facts(summary).items():
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)
    show_promise(summary, console, history.out)
    kept = [
        "report.html",
        "experiment.toml",
        "rounds.jsonl",
        "rounds.csv",
        "model.safetensors",
        "encoder.json",
        "summary.json",
    ]
    if history.ledger and history.ledger.path.parent == history.out:
        kept.insert(4, "ledger.db")
    kept += ["personal.json"] * ("personal" in summary)
    if not history.rounds:
        console.print(
            "No round could be paid for, so the model is untrained: the budgets are used up, or what other runs of the ledger have"
            " left of epsilon or delta pays for none. `tacit plan` says which, before a run begins."
        )
    say_constant(summary, console)
    console.print(Text(f"Files: {history.out} ({', '.join(kept)})"))
    say_clients(history.out, console)
    say_stats(history.out, console)
    if history.ledger and history.ledger.path.parent != history.out:
        console.print(Text(f"Ledger: {history.ledger.path}"))


def say_clients(folder: Path, console: Console) -> None:
    """How the model serves clients apart, where a simulation was asked for it; nothing where it was not."""
    found = (read(folder).per_client or {}) if (folder / PER_CLIENT).is_file() else {}
    told = found.get("spread")
    if told:
        numbers = ", ".join(
            f"{key.replace('_', ' ')} {told[key]:.4f}" for key in ("mean", "std", "worst_tenth", "worst")
        )
        what = f"{metrics.words(found['metric'])} of {told['clients']} clients, each counted once"
        console.print(Text(f"By client: {numbers} ({what}). {found['note']}"), soft_wrap=True)


def say_stats(folder: Path, console: Console) -> None:
    """Where the statistics lie that were asked for with a run, and how they are read; nothing where none were."""
    if (folder / STATS_FILE).is_file():
        console.print(Text(f"Statistics: {folder / STATS_FILE} (tacit stats {folder})"))


def say_constant(summary: dict[str, Any], console: Console) -> None:
    """A line where the final model is no better than one answer for everybody."""
    if told := not_better(summary):
        console.print(Text(told, style="yellow"), soft_wrap=True)


def show_promise(summary: dict[str, Any], console: Console, folder: Path) -> None:
    """The guarantee as a panel of short lines, then as the sentence that is signed, and where that stands."""
    promise = summary["guarantee"]
    if promise is None:
        console.print(Panel(Text(summary["sentence"]), title="no guarantee", expand=False))
        return
    table = Table.grid(padding=(0, 2))
    for name, words in promise_lines(promise, other_runs=summary.get("other_runs")):
        table.add_row(Text(name, style="dim"), Text(words))
    console.print(Panel(table, title="guarantee", expand=False))
    console.print(Text("To sign: ", style="bold"), Text(summary["sentence"]), sep="", soft_wrap=True)
    console.print(Text(f'(This is "sentence" in {folder / "summary.json"}; the report has it too.)'), soft_wrap=True)


def promise_lines(promise: dict[str, Any], *, other_runs: int | None) -> list[tuple[str, str]]:
    """What is promised to whom, against whom, and on which conditions: nothing that qualifies an epsilon is left out.

    `other_runs` is how many share the ledger, None where that was not written down: earlier versions then added them in.
    """
    spent, others = promise["epsilon"], promise.get("others")
    bound = f"epsilon at most {shown(spent['max'])} (smallest {shown(spent['min'])}, median {shown(spent['median'])})"
    lines = [
        ("for every client", f"{bound} at delta = {shown_delta(promise['delta'])}, per {promise['unit']}"),
        ("spent in", _spent_in(promise, other_runs)),
        *([("with other runs", with_others(_others(others), promise["unit"]))] if others else []),
        ("the change", promise["relation"]),
        ("against", promise["adversary"].rstrip(",")),
        ("by", f"{promise['accountant']}, for {promise['sampler']}"),
        ("noise from", promise["randomness"]),
        ("provided that", "; ".join(promise["assumes"])),
    ]
    more = [
        (
            f"against {other['adversary']}",
            seen_by_more(other["epsilon"]["max"], other["delta"], other["unit"], other["relation"], other["sampler"]),
        )
        for other in promise.get("also", [])
    ]
    return [*lines, *more]


def _spent_in(promise: dict[str, Any], other_runs: int | None) -> str:
    return "this run" if promise.get("others") or other_runs == 0 else "all runs in its ledger together"


def _others(record: dict[str, Any]) -> Others:
    values = dict(record)
    values["epsilon"] = math.inf if record["epsilon"] is None else record["epsilon"]
    return Others(**values)


def _value(summary: dict[str, Any], metric: str) -> str:
    """A metric with its interval over test rows, and what always answering the same would reach."""
    known = summary.get("metrics", {}).get(metric, {})
    if summary.get(f"test_{metric}") is None:
        return "not known: there are no public test rows"
    ends, baseline = known.get("interval"), known.get("baseline")
    more = f" (95 % over test rows {ends[0]:.4f} to {ends[1]:.4f})" if ends else ""
    return f"{summary[f'test_{metric}']:.4f}{more}" + (
        f"; a constant answer has {baseline:.4f}" if baseline is not None else ""
    )


def facts(summary: dict[str, Any]) -> dict[str, str]:
    """The closing table's rows."""
    why = {"rounds": "all planned rounds", "budget": "too few clients could pay for another round"}[summary["stopped"]]
    metric = summary.get("metric", "accuracy")
    rows = {
        f"test {metrics.words(metric)}, final model": _value(summary, metric),
        "rounds": f"{summary['rounds']} ({why})",
    }
    if "at_clients" in summary:
        rows[f"{metrics.words(metric)} at the clients, on held-out rows"] = in_words(summary["at_clients"])
    if "attack" in summary:
        reached = f"{summary['attack']['backdoor_accuracy']:.4f} ({summary['attack']['badge']})"
        rows[f"backdoor accuracy, {summary['attack']['kind']}"] = reached
    rows |= dict(everybody.in_words(summary["personal"])) if "personal" in summary else {}
    if summary.get("rule"):
        rows["rule"] = summary["rule"]
    if summary["guarantee"]:
        spent, z = summary["guarantee"]["epsilon"], summary["noise_multiplier"]
        of = f"(min / median / max of {summary['clients']} clients, {_spent_in(summary['guarantee'], summary.get('other_runs'))})"
        rows["epsilon spent"] = f"{shown(spent['min'])} / {shown(spent['median'])} / {shown(spent['max'])} {of}"
        rows["unit, delta"] = f"{summary['guarantee']['unit']}, {shown_delta(summary['guarantee']['delta'])}"
        rows["noise multiplier z"] = f"{z['min']:.3f} / {z['median']:.3f} / {z['max']:.3f}"
    rows["traffic"] = f"{size(summary['uplink_bytes'])} up, {size(summary['downlink_bytes'])} down"
    rows["time"] = f"{summary['seconds']:.1f} s"
    return rows
