"""Whether the final model says more than one answer for everybody would: on the public test rows, by the run's own metric."""

from collections.abc import Mapping
from typing import Any

from tacit import metrics


def not_better(summary: Mapping[str, Any]) -> str:
    """One line where the 95 % interval over test rows reaches what a constant answer has; else, or without test rows, nothing.

    >>> told = {"value": 0.52, "interval": [0.4, 0.6], "better": "higher", "baseline": 0.5}
    >>> not_better({"rounds": 3, "metric": "accuracy", "metrics": {"accuracy": told}, "guarantee": None}).partition(":")[0]
    'Not better than a constant answer'
    """
    metric = str(summary.get("metric", "accuracy"))
    known = (summary.get("metrics") or {}).get(metric) or {}
    interval, baseline = known.get("interval"), known.get("baseline")
    if not interval or baseline is None or not summary["rounds"]:
        return ""
    low, high = interval
    reached = high >= baseline if known.get("better") == "lower" else low <= baseline
    if not reached:
        return ""
    needed = "more rounds, a larger ε or more rows" if summary.get("guarantee") else "more rounds or more rows"
    return (
        f"Not better than a constant answer: the 95 % interval of {metrics.words(metric)} over test rows, {low:.4f} to {high:.4f},"
        f" reaches the {baseline:.4f} of always answering the same; {needed} are needed."
    )
