"""What a person sees when a run has ended: its table, its promise and where its files lie."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tacit.engine.history import PER_CLIENT, History
from tacit.engine.queries import FILE as STATS_FILE
from tacit.engine.queries import in_words
from tacit.engine.run_files import read
from tacit.lab.compare.grid import size
from tacit.parts import metrics
from tacit.privacy.guarantee import seen_by_more, shown, shown_delta, with_others
from tacit.table import facts_table
from tacit.types import Others

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
    if not (high >= baseline if known.get("better") == "lower" else low <= baseline):
        return ""
    needed = "more rounds, a larger ε or more rows" if summary.get("guarantee") else "more rounds or more rows"
    return (
        f"Not better than the majority-class baseline: the 95 % interval of {metrics.words(metric)} over test rows, {low:.4f} to"
        f" {high:.4f}, reaches the {baseline:.4f} of always answering the same; {needed} are needed."
    )


def closing(history: History, console: Console) -> None:
    """The table, the guarantee in a few lines, and where the files are."""
    summary, folder = history.summary, history.out
    console.print(facts_table(facts(summary).items()))
    show_promise(summary, console, folder)
    if not history.rounds:
        console.print(UNTRAINED)
    say_baseline(summary, console)
    own_ledger = history.ledger is not None and history.ledger.path.parent == folder
    names = ["report.html", "experiment.toml", "rounds.jsonl", "rounds.csv", *["ledger.db"] * own_ledger]
    names += ["model.safetensors", "encoder.json", "summary.json", *["personal.json"] * ("personal" in summary)]
    console.print(Text(f"Files: {folder} ({', '.join(names)})"))
    found = (read(folder).per_client or {}) if (folder / PER_CLIENT).is_file() else {}
    if spread := found.get("spread"):
        keys = ("mean", "std", "worst_tenth", "worst")
        numbers = ", ".join(f"{key.replace('_', ' ')} {spread[key]:.4f}" for key in keys)
        what = f"{metrics.words(found['metric'])} of {spread['clients']} clients, each counted once"
        console.print(Text(f"By client: {numbers} ({what}). {found['note']}"), soft_wrap=True)
    say_stats(folder, console)
    if history.ledger and not own_ledger:
        console.print(Text(f"Ledger: {history.ledger.path}"))


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
    lines = promise_lines(promise)
    if "whom" in promise:  # of some clients nothing is promised: that is no detail
        lines[0] = ("for", f"{promise['whom']}: {lines[0][1]}")
    console.print(Panel(facts_table(lines), title="guarantee", expand=False))
    console.print(Text("To sign: ", style="bold"), Text(summary["sentence"]), sep="", soft_wrap=True)
    console.print(Text(f'(This is "sentence" in {folder / "summary.json"}; the report has it too.)'), soft_wrap=True)


def promise_lines(promise: dict[str, Any]) -> list[tuple[str, str]]:
    """What is promised to whom, against whom, and on which conditions: nothing that qualifies an epsilon is left out."""
    spent, others = promise["epsilon"], promise.get("others")
    bound = f"epsilon at most {shown(spent['max'])}"
    if spent["min"] != spent["max"]:
        bound += f" (smallest {shown(spent['min'])}, median {shown(spent['median'])})"
    lines = [
        ("for every client", f"{bound} at delta = {shown_delta(promise['delta'])}, per {promise['unit']}"),
        ("spent in", "this run"),
    ]
    if others:
        endless = {"epsilon": math.inf if others["epsilon"] is None else others["epsilon"]}
        lines.append(("with other runs", with_others(Others(**others | endless), promise["unit"])))
    lines += [
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


def facts(summary: dict[str, Any]) -> dict[str, str]:
    """The closing table's rows."""
    why = {"rounds": "all planned rounds", "budget": "too few clients could pay for another round"}[summary["stopped"]]
    metric = summary.get("metric", "accuracy")
    name, tested, known = (
        metrics.words(metric),
        summary.get(f"test_{metric}"),
        summary.get("metrics", {}).get(metric, {}),
    )
    reached = "not known: there are no public test rows" if tested is None else f"{tested:.4f}"
    if tested is not None and (ends := known.get("interval")):
        reached += f" (95 % over test rows {ends[0]:.4f} to {ends[1]:.4f})"
    if tested is not None and known.get("baseline") is not None:
        reached += f"; majority-class baseline {known['baseline']:.4f}"
    rows = {f"test {name}, final model": reached, "rounds": f"{summary['rounds']} ({why})"}
    if "at_clients" in summary:
        rows[f"{name} at the clients, on held-out rows"] = in_words(summary["at_clients"])
    if attack := summary.get("attack"):
        rows[f"backdoor accuracy, {attack['kind']}"] = f"{attack['backdoor_accuracy']:.4f} ({attack['badge']})"
    if "personal" in summary:
        from tacit.personal import one  # code that a site's own process never loads

        rows |= dict(one.in_words(summary["personal"]))
    if summary.get("rule"):
        rows["rule"] = summary["rule"]
    if promise := summary["guarantee"]:
        spent, z = promise["epsilon"], summary["noise_multiplier"]
        of = f"(min / median / max of {summary['clients']} clients, this run)"
        rows["epsilon spent"] = f"{shown(spent['min'])} / {shown(spent['median'])} / {shown(spent['max'])} {of}"
        rows["unit, delta"] = f"{promise['unit']}, {shown_delta(promise['delta'])}"
        rows["noise multiplier z"] = f"{z['min']:.3f} / {z['median']:.3f} / {z['max']:.3f}"
    rows["traffic"] = f"{size(summary['uplink_bytes'])} up, {size(summary['downlink_bytes'])} down"
    rows["time"] = f"{summary['seconds']:.1f} s"
    return rows
