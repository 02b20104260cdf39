"""Statistics that come with a run: histograms of some columns, asked for before round 1, noised, and paid for beside training."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit import check
from tacit.build.parts import Parts
from tacit.data.dataset import Dataset
from tacit.engine.asking import Asking, Replies, ask
from tacit.engine.folder import Folder
from tacit.errors import AnsweredOnce, BadInput, BudgetExhausted, Unanswered
from tacit.experiment import Experiment
from tacit.experiment.asking import STATS
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries import described
from tacit.privacy.queries.described import Described
from tacit.privacy.queries.mechanism import Counts
from tacit.types import Client

FILE = "stats.json"


@dataclass(frozen=True)
class Columns:
    """The query: what `Described` counts of a client's rows."""

    described: Described
    name: str = STATS

    @property
    def cells(self) -> int:
        """How many counts a client answers with."""
        return self.described.cells

    @property
    def l2_squared(self) -> int:
        """How far one record can move them, squared."""
        return self.described.l2_squared

    def count(self, client: Client) -> Counts:
        """The true counts of a client's rows."""
        return self.described.count(client.x.cpu().numpy(), client.y.cpu().numpy())


def columns_asked(experiment: Experiment, dataset: Dataset) -> Columns | None:
    """The statistics that an experiment asks for; None where there are none. Raises BadInput for what cannot be counted."""
    return Columns(query_of(experiment, dataset, experiment.privacy.stats)) if experiment.privacy.stats else None


def query_of(experiment: Experiment, dataset: Dataset, columns: Sequence[str]) -> Described:
    """The histograms of the columns that are named, or of all that can be counted, the label included. Raises BadInput."""
    encoder, options, found, start = dataset.encoder, experiment.data.options(), {}, 0
    wide = said if isinstance(said := options.get("wide"), dict) else {}
    for column in encoder.columns if encoder else ():
        if column.values is not None:
            found[column.name] = described.CategoricalColumn(column.name, tuple(column.values), start)
        else:
            span = wide.get(column.name)
            facts = {"limits": column.limits, "wide": None if span is None else (float(span[0]), float(span[1]))}
            if not columns or column.name in columns:
                found[column.name] = described.numbers(column.name, start, **facts)
        start += column.width
    if dataset.classified:
        label = encoder.label if encoder and encoder.label else "label"
        found[label] = described.CategoricalColumn(label, tuple(map(str, dataset.class_names)), None)
    for name in columns:
        if name not in found:
            known = [*(encoder.names if encoder else ()), *found]
            hint = check.nearest(name, known) or check.listed(dict.fromkeys(known))
            raise BadInput(f"There is no column {name!r} to count.{hint}")
    chosen = tuple(found[name] for name in dict.fromkeys(columns)) or tuple(found.values())
    if not chosen:
        raise BadInput("This data has neither columns nor classes to count.")
    return Described(chosen)


def describe(parts: Parts, ledger: Ledger | None, folder: Folder, *, asking: Asking = ask) -> None:
    """Asks for the statistics of a run and writes them into its folder (`stats.json`); nothing where none are asked for.

    `asking` is how clients are asked: in this process, or, in a deployment, where their rows are; it may say who is `missing`.

    Guarantee: as `ask`. A run is not lost by statistics that nobody can pay for or answers: then they say why nothing is known.
    """
    query = columns_asked(parts.experiment, parts.dataset)
    if query is None:
        return
    try:
        answers = asking(parts, ledger, folder, query)
        told = columns_told(parts, query.described, answers)
    except (BudgetExhausted, AnsweredOnce, Unanswered) as error:
        told = {"columns": [], "unknown": str(error), "answered": 0, "clients": len(parts.population)}
    missing = getattr(asking, "missing", {})
    folder.write(FILE, json.dumps(told | {"missing": missing}, indent=1).encode())


def read_stats(folder: Path) -> dict[str, Any]:
    """The statistics that a run's folder, or that of a federation, has. Raises BadInput where there are none."""
    for file in (folder / FILE, folder / "results" / FILE):
        if file.is_file():
            try:
                return json.loads(file.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise BadInput(f"{file} is damaged ({error}).") from None
    raise BadInput(
        f"{folder} has no statistics: a run or a deployment asks for them where its experiment names columns, as in"
        ' privacy.stats = ["age"]; for a simulation name its file here.'
    )


def columns_told(parts: Parts, query: Described, answers: Replies) -> dict[str, Any]:
    """What the clients' noised counts say of the columns together."""
    population, names = parts.population, list(answers.counts)
    sizes = dict(zip(population.names, population.sizes.tolist(), strict=True))
    stds = np.array([answers.stds[name] for name in names])
    return {
        "columns": query.told(
            [answers.counts[name] for name in names], stds, np.array([sizes[name] for name in names])
        ),
        "answered": len(names),
        "clients": len(population),
        "noise_std": [float(stds.min()), float(stds.max())],
    }
