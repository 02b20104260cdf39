"""What a person sees when a run has ended: its table, its promise and where its files lie."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tacit.engine.history import NAME as PER_CLIENT
from tacit.engine.history import History
from tacit.engine.queries import FILE as STATS_FILE
from tacit.engine.queries import in_words
from tacit.engine.run_files import read
from tacit.lab.compare.grid import size
from tacit.parts import metrics
from tacit.privacy.guarantee import seen_by_more, shown, shown_delta, with_others
from tacit.types import Others

FILES = (
    "report.html",
    "experiment.toml",
    "rounds.jsonl",
    "rounds.csv",
    "model.safetensors",
    "encoder.json",
    "summary.json",
)
UNTRAINED = (
    "No round could be paid for, so the model is untrained: the budgets are used up, or what other runs of the ledger have"
    " left of epsilon or delta pays for none. `tacit plan` says which, before a run begins."
)


def not_better(summary: Mapping[str, Any]) -> str:
    """One line where the 95 % interval over test rows reaches the majority-class baseline; else, or without test rows, nothing.

    >>> known = {"value": 0.52, "interval": [0.4, 0.6], "better": "higher", "baseline": 0.5}
    >>> not_better({"rounds": 3, "metric": "accuracy", "metrics": {"accuracy": known}, "guarantee": None}).partition(":")[0]
    'Not better than the majority-class baseline'
    """
    metric = str(summary.get("metric", "accuracy"))
    known = (summary.get("metrics") or {}).get(metric) or {}
    interval, baseline = known.get("interval"), known.get("baseline")
    if not interval or baseline is None or not summary["rounds"]:
        return ""
    low, high = interval
    reached = high >= baseline if known.get("better") == "lower" else low <= baseline
    needed = "more rounds, a larger ε or more rows" if summary.get("guarantee") else "more rounds or more rows"
    said = (
        f"Not better than the majority-class baseline: the 95 % interval of {metrics.words(metric)} over test rows, {low:.4f} to"
        f" {high:.4f}, reaches the {baseline:.4f} of always answering the same; {needed} are needed."
    )
    return said if reached else ""


def closing(history: History, console: Console) -> None:
    """The table, the guarantee in a few lines, and where the files are."""
    summary = history.summary
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in facts(summary).items():
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)
    show_promise(summary, console, history.out)
    if not history.rounds:
        console.print(UNTRAINED)
    say_baseline(summary, console)
    mine = history.ledger is not None and history.ledger.path.parent == history.out
    kept = [*FILES[:4], *["ledger.db"] * mine, *FILES[4:], *["personal.json"] * ("personal" in summary)]
    console.print(Text(f"Files: {history.out} ({', '.join(kept)})"))
    _say_clients(history.out, console)
    say_stats(history.out, console)
    if history.ledger and not mine:
        console.print(Text(f"Ledger: {history.ledger.path}"))


def _say_clients(folder: Path, console: Console) -> None:
    """How the model serves clients, each counted once, where a simulation was asked for it."""
    found = (read(folder).per_client or {}) if (folder / PER_CLIENT).is_file() else {}
    spread = found.get("spread")
    if spread:
        keys = ("mean", "std", "worst_tenth", "worst")
        numbers = ", ".join(f"{key.replace('_', ' ')} {spread[key]:.4f}" for key in keys)
        what = f"{metrics.words(found['metric'])} of {spread['clients']} clients, each counted once"
        console.print(Text(f"By client: {numbers} ({what}). {found['note']}"), soft_wrap=True)


def say_stats(folder: Path, console: Console) -> None:
    """Where the statistics lie that were asked for with a run, and how they are read; nothing where none were."""
    if (folder / STATS_FILE).is_file():
        console.print(Text(f"Statistics: {folder / STATS_FILE} (tacit stats {folder})"))


def say_baseline(summary: dict[str, Any], console: Console) -> None:
    """A line where the final model is no better than one answer for everybody."""
    if words := not_better(summary):
        console.print(Text(words, style="yellow"), soft_wrap=True)


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
    shared = (
        Others(**others | {"epsilon": math.inf if others["epsilon"] is None else others["epsilon"]}) if others else None
    )
    bound = f"epsilon at most {shown(spent['max'])} (smallest {shown(spent['min'])}, median {shown(spent['median'])})"
    lines = [
        ("for every client", f"{bound} at delta = {shown_delta(promise['delta'])}, per {promise['unit']}"),
        ("spent in", _spent_in(promise, other_runs)),
        *([("with other runs", with_others(shared, promise["unit"]))] if shared else []),
        ("the change", promise["relation"]),
        ("against", promise["adversary"].rstrip(",")),
        ("by", f"{promise['accountant']}, for {promise['sampler']}"),
        ("noise from", promise["randomness"]),
        ("provided that", "; ".join(promise["assumes"])),
    ]
    for other in promise.get("also", []):
        bound = (other["epsilon"]["max"], other["delta"], other["unit"], other["relation"], other["sampler"])
        lines.append((f"against {other['adversary']}", seen_by_more(*bound)))
    return lines


def _spent_in(promise: dict[str, Any], other_runs: int | None) -> str:
    return "this run" if promise.get("others") or other_runs == 0 else "all runs in its ledger together"


def _value(summary: dict[str, Any], metric: str) -> str:
    """A metric with its interval over test rows, and what always answering the same would reach."""
    known = summary.get("metrics", {}).get(metric, {})
    if summary.get(f"test_{metric}") is None:
        return "not known: there are no public test rows"
    ends, baseline = known.get("interval"), known.get("baseline")
    more = f" (95 % over test rows {ends[0]:.4f} to {ends[1]:.4f})" if ends else ""
    return f"{summary[f'test_{metric}']:.4f}{more}" + (
        f"; majority-class baseline {baseline:.4f}" if baseline is not None else ""
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
    if "personal" in summary:
        from tacit.personal import one  # code that a site's own process never loads

        rows |= dict(one.in_words(summary["personal"]))
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
