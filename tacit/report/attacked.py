"""What attacks reached, for the page: a matrix of defences by attacks, and the findings of one experiment. No epsilon covers it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.compare.findings import Found, findings
from tacit.compare.results import Estimate
from tacit.compare.table import AUC
from tacit.report.collect import short

MOST_POINTS = 300  # of a line
MOST_NUMBERS = 200  # of a finding: a page is no archive, and the file beside it has all
GUESSING = 0.5  # an AUC that says nothing

MatrixRow = tuple[str, Estimate | None, Mapping[str, Estimate]]  # a defence, what the model reaches, what attacks reach


def matrix(rows: Sequence[MatrixRow], *, metric: str) -> dict[str, Any] | None:
    """Defences by attacks; None where nothing was attacked. Every cell is [value, low, high] or null."""
    titles = list(dict.fromkeys(title for *_, found in rows for title in found))
    if not titles:
        return None
    return {
        "metric": metric,
        "columns": [{"name": title, "chance": GUESSING if title.endswith(AUC) else 0.0} for title in titles],
        "rows": [
            {"label": label, "score": _ends(score), "attacked": [_ends(found.get(title)) for title in titles]}
            for label, score, found in rows
        ],
    }


def matrix_page(
    name: str, rows: Sequence[MatrixRow], *, metric: str, words: str, notes: Sequence[str]
) -> dict[str, Any]:
    """A page with nothing but a matrix."""
    return {"kind": "matrix", "name": name, "words": words, "matrix": matrix(rows, metric=metric), "notes": list(notes)}


def attack_page(folder: Path) -> dict[str, Any]:
    """The page of what attacks have left in a folder."""
    found = findings(folder)
    names = dict.fromkeys(one.experiment for one in found)
    return {"kind": "attack", "name": ", ".join(names), "folder": folder.resolve().name, "findings": shown(found)}


def shown(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Findings as plain values, with no more points than a line can show."""
    return [_one(one) for one in found]


def _one(found: Found) -> dict[str, Any]:
    kept = found.model_dump(mode="json")
    kept["more"] = max(0, len(kept["estimates"]) - MOST_NUMBERS)
    kept["estimates"] = kept["estimates"][:MOST_NUMBERS]
    for plot in kept["plots"]:
        for line in plot["lines"]:
            count = len(line["x"])
            at = sorted(
                {round(k * (count - 1) / max(1, min(MOST_POINTS, count) - 1)) for k in range(min(MOST_POINTS, count))}
            )
            line |= {
                key: None if line[key] is None else [short(line[key][i]) for i in at]
                for key in ("x", "y", "low", "high")
            }
    return kept


def _ends(found: Estimate | None) -> list[float | None] | None:
    if found is None:
        return None
    below, above = found.span
    limits = (None, None) if found.interval is None else (short(found.mean - below), short(found.mean + above))
    return [short(found.mean), *limits]
