"""How the model serves clients apart (`metric.per_client`), in the table and the files of a comparison.

From raw rows, for the researcher of a simulation: no epsilon covers it, and every name says so.
"""

from collections.abc import Sequence

from tacit import metrics
from tacit.compare.results import Estimate, Row, Run, estimate

NAMES = {"std": "std over clients", "worst_tenth": "worst tenth of clients"}  # what the table shows
FILED = ("mean", "std", "worst", "worst_tenth", "median", "best")  # what the files have
MARK, NOTHING = "‡", "–"


def over_seeds(row: Row, key: str) -> Estimate | None:
    """The mean of one number over a cell's seeds, with its interval."""
    bounds = (0.0, float("inf")) if key == "std" else metrics.bounds(row.metric)
    return estimate([run.spread[key] for run in row.ended if run.spread], bounds)


def asked(rows: Sequence[Row]) -> bool:
    """Whether any run of a comparison measured its clients."""
    return any(run.spread for row in rows for run in row.ended)


def columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """A column for each number that the table shows; none where no run measured its clients."""
    return [(f"{name}{MARK}", [_text(row, key) for row in rows]) for key, name in NAMES.items()] if asked(rows) else []


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be read with the columns."""
    if not asked(rows):
        return []
    own = [row.cell.experiments[0].data.own_share is not None for row in rows]
    where = "kept" if all(own) else "kept or, where it kept none, trained on" if any(own) else "trained on"
    return [
        f"{MARK} By client: {metrics.words(rows[0].metric)} of the final model on the rows that each client {where}; every client"
        " counts once, and the worst tenth is a mean. From raw rows, not covered by epsilon: choosing by it is choosing by private"
        " rows."
    ]


def record(row: Row) -> dict[str, float | None]:
    """A cell's numbers for programs; nothing where it has none."""
    found = {key: over_seeds(row, key) for key in FILED} if asked([row]) else {}
    return {
        name: value
        for key, one in found.items()
        for name, value in (
            (_named(row.metric, key), one.mean if one else None),
            (f"{_named(row.metric, key)}_interval", one.interval if one else None),
        )
    }


def run_record(run: Run, *, metric: str) -> dict[str, float]:
    """A run's numbers for programs."""
    return {_named(metric, key): run.spread[key] for key in FILED} if run.spread else {}


def _named(metric: str, key: str) -> str:
    return f"{metric}_by_client_{key}"


def _text(row: Row, key: str) -> str:
    found = over_seeds(row, key)
    if found is None:
        return NOTHING
    return f"{found.mean:.4f}" + ("" if found.interval is None else f" ± {max(found.span):.4f}")
