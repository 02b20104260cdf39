"""The records of a run in other shapes: flat rows for tables, and who its clients are for the report."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.build.parts import Parts
from tacit.tasks import headline
from tacit.types import Guarantee

MOST_COLUMNS = 2000  # more clients share a column of labels by clients


def flat_records(rounds: Sequence[dict[str, Any]], *, unit: str | None) -> list[dict[str, Any]]:
    """One flat dict of scalars per round, all with the same keys; the name of an epsilon carries its unit.

    >>> flat_records([{"round": 0, "dropped": ["a"], "epsilon_loosest": 1.5}, {"round": 1}], unit="record")
    [{'round': 0, 'epsilon_per_record_loosest': 1.5}, {'round': 1, 'epsilon_per_record_loosest': None}]
    """
    return filled([scalars(record, unit=unit) for record in rounds])


def filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the same keys each, in the order of the fullest: a round that was not tested has no score.

    >>> filled([{"round": 0, "cohort": 5}, {"round": 1, "accuracy": 0.5, "cohort": 5}])[0]
    {'round': 0, 'accuracy': None, 'cohort': 5}
    """
    keys = dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def scalars(record: dict[str, Any], *, unit: str | None) -> dict[str, Any]:
    """The numbers and texts of a record."""
    return {_with_unit(key, unit): value for key, value in record.items() if not isinstance(value, list | dict)}


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV with a heading."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["round"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def clients_record(
    parts: Parts, promise: Guarantee | None, *, ledger: str | None, simulated: bool = True
) -> dict[str, Any]:
    """Names, sizes, limits and labels of the clients, and what they are promised. True counts: for the researcher.

    `ledger` is the way from the run's folder to the file that says what was spent. Where clients are not simulated, nobody but
    they themselves knows their labels.
    """
    population = parts.population
    together = -(-len(population) // MOST_COLUMNS)
    return {
        "names": list(population.names),
        "records": population.sizes.tolist(),
        "limits": [None if np.isinf(limit) else float(limit) for limit in population.epsilons],
        "classes": list(parts.dataset.class_names),
        "together": together,
        "all_pay": parts.plan.together,
        "labels": _label_counts(parts, together) if simulated and parts.dataset.classified else [],
        "metric": headline(parts.experiment),
        "guarantee": promise.record() if promise else None,
        "ledger": ledger,
        "parameters": parts.params.numel(),
        "notes": list(parts.dataset.notes),
    }


def _label_counts(parts: Parts, together: int) -> list[list[int]]:
    """How often each label stands in each column of clients."""
    population, classes = parts.population, parts.dataset.classes
    owner = np.repeat(np.arange(len(population)), population.sizes)
    columns = -(-len(population) // together)
    counts = np.bincount((owner // together) * classes + population.y.cpu().numpy(), minlength=columns * classes)
    return counts.reshape(columns, classes).tolist()


def _with_unit(key: str, unit: str | None) -> str:
    return f"epsilon_per_{unit}_{key.removeprefix('epsilon_')}" if unit and key.startswith("epsilon_") else key
