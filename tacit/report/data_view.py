"""`tacit data`: which client holds what, and what it allows. True counts: for the researcher, not for release."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from tacit.build.clients import clients
from tacit.data import picture
from tacit.data.shares import label_counts
from tacit.experiment import Experiment

MOST_ROWS = 40  # a longer table is cut in the middle; the picture and --json show all


@dataclass(frozen=True, eq=False)
class Holdings:
    """Label counts of every client, and its epsilon where there is one."""

    name: str
    data: str
    counts: np.ndarray = field(repr=False)
    class_names: tuple[str, ...]
    client_names: tuple[str, ...] = field(repr=False)
    epsilons: np.ndarray | None = field(repr=False)
    notes: tuple[str, ...]

    def draw(self, path: Path) -> None:
        """Writes the picture."""
        name = self.data if self.data == self.name else f"{self.name} ({self.data})"
        picture.picture(path, self.counts, self.class_names, self.client_names, self.epsilons, name=name)

    def record(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "name": self.name,
            "classes": list(self.class_names),
            "clients": self._rows(),
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """A row per client; a long list is cut in the middle."""
        rows = self._rows()
        title = f"{self.name}: {len(rows):,} clients, {int(self.counts.sum()):,} records"
        shown = Table(
            "client",
            "examples",
            "most frequent labels",
            "epsilon",
            title=Text(title),
            caption=Text("; ".join(self.notes)) if self.notes else None,
        )
        half = MOST_ROWS // 2
        cut = len(rows) > MOST_ROWS
        for row in rows[:half] if cut else rows:
            _add(shown, row)
        if cut:
            shown.add_row("...", f"{len(rows) - 2 * half:,} more", "", "")
            for row in rows[-half:]:
                _add(shown, row)
        return shown

    def _rows(self) -> list[dict[str, Any]]:
        return picture.table(self.counts, self.class_names, self.client_names, self.epsilons)


def of(experiment: Experiment) -> Holdings:
    """The holdings of an experiment's clients."""
    dataset, shares, population = clients(experiment)
    counts = label_counts(dataset.y.numpy(), shares, classes=dataset.classes)
    epsilons = population.epsilons if experiment.privacy.epsilon is not None else None
    names = experiment.name, experiment.data.name
    return Holdings(*names, counts, dataset.class_names, population.names, epsilons, dataset.notes)


def _add(table: Table, row: dict[str, Any]) -> None:
    epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:.3g}"
    table.add_row(Text(row["client"]), f"{row['examples']:,}", Text(row["labels"]), epsilon)
