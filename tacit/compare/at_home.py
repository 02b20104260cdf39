"""What clients have at home, cell by cell: alone, by the common model and by their own, on rows that each kept (`[personal]`).

Every number is a mean over clients by their kept rows, from raw rows: no epsilon covers it. A difference is paired: over the same
rows of the same clients, so its interval is that of differences.
"""

import math
from collections.abc import Sequence
from typing import Any

from tacit import metrics
from tacit.compare.results import CONFIDENCE, FEWEST_SEEDS, Estimate, Row, Run, estimate
from tacit.engine.run_files import RunFiles

NAMES = {
    "alone": "alone",
    "common": "common",
    "own": "own",
    "own_less_alone": "own − alone",
    "own_less_common": "own − common",
}
NOTHING = "–"
MARK = "†"


def told(run: Run | RunFiles) -> dict[str, Any]:
    """A run's numbers of the metric that stands for it, by model and by difference; empty where it has none."""
    found = (run.summary or {}).get("personal") or {}
    by = found.get("metrics", {}).get(found.get("metric"), {})
    return {key: by[key] for key in NAMES if key in by}


def asked(rows: Sequence[Row]) -> bool:
    """Whether any run of a comparison has own models to tell of."""
    return any(told(run) for row in rows for run in row.ended)


def over_seeds(row: Row, key: str) -> Estimate | None:
    """The mean of one number over a cell's seeds, with its interval."""
    bounds = (-math.inf, math.inf) if "_less_" in key else metrics.bounds(row.metric)
    return estimate([found[key]["value"] for run in row.ended if (found := told(run))], bounds)


def columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """A column for each model and each difference; none where no run has own models."""
    if not asked(rows):
        return []
    return [(f"{name}{MARK}", [_text(row, key) for row in rows]) for key, name in NAMES.items()]


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be read with the columns."""
    if not asked(rows):
        return []
    seeds = max(len(row.runs) for row in rows)
    how = (
        f"± the {100 * CONFIDENCE:g} % interval over seeds"
        if seeds >= FEWEST_SEEDS
        else "without an interval over so few seeds"
    )
    how = f"with the {100 * CONFIDENCE:g} % interval over kept rows" if seeds == 1 else how
    what = f"{metrics.words(rows[0].metric)} on rows that each client kept, mean over clients by these rows"
    return [
        f"{MARK} At home: {what}, {how}; differences are paired. From raw rows, not covered by epsilon: choosing by"
        " them is choosing by private rows."
    ]


def record(row: Row) -> dict[str, float | None]:
    """A cell's numbers for programs; nothing where it has none."""
    found = {key: over_seeds(row, key) for key in NAMES} if asked([row]) else {}
    pairs = {f"{row.metric}_at_home_{key}": one for key, one in found.items()}
    return {
        name: value
        for key, one in pairs.items()
        for name, value in ((key, one.mean if one else None), (f"{key}_interval", one.interval if one else None))
    }


def run_record(run: Run, *, metric: str) -> dict[str, float | None]:
    """A run's numbers, each with the ends of its interval over kept rows."""
    found: dict[str, float | None] = {}
    for key, one in told(run).items():
        low, high = one["interval"] or (None, None)
        name = f"{metric}_at_home_{key}"
        found |= {name: one["value"], f"{name}_low": low, f"{name}_high": high}
    return found


def _text(row: Row, key: str) -> str:
    known = [found[key] for run in row.ended if (found := told(run))]
    mean, sign = over_seeds(row, key), "+" if "_less_" in key else ""
    if mean is None:
        return NOTHING
    text = f"{mean.mean:{sign}.4f}"
    if mean.interval is not None:
        return f"{text} ± {max(mean.span):.4f}"
    ends = known[0]["interval"] if len(known) == 1 else None
    return f"{text} ({ends[0]:{sign}.4f} to {ends[1]:{sign}.4f})" if ends else text
