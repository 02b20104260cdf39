"""How much a setting matters: the metric over the values of each varied number, a line for every choice of the other keys."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tacit import metrics
from tacit.compare import figure_words as words
from tacit.compare import plot
from tacit.compare.figures import BUDGETS
from tacit.compare.results import Row, last_rounds, lengths

SEEDS = ("data.seed", "privacy.epsilon_seed", "model.seed", "run.noise_seed")  # numbers, but of nothing
DECADE = 10  # values that span more are drawn on a logarithmic axis


def draw(out: Path, rows: Sequence[Row]) -> list[str]:
    """Draws a figure for every varied number into a folder, and returns their names."""
    names = {f"{rows[0].metric.replace('_', '-')}-by-{_slug(key)}": key for key in keys(rows)}
    for name, key in names.items():
        plot.save(by_value(rows, key), out / name)
    return list(names)


def keys(rows: Sequence[Row]) -> list[str]:
    """The varied keys that are numbers, of at least two values that were run; a budget has a figure of its own, by epsilon."""
    found = []
    for key in rows[0].cell.varied if rows else ():
        values = {row.cell.varied[key] for row in rows if row.score and _is_number(row.cell.varied[key])}
        told = [row.cell.varied[key] for row in rows if row.cell.varied[key] is not None]
        if len(values) > 1 and all(map(_is_number, told)) and key not in (*BUDGETS, *SEEDS):
            found.append(key)
    return found


def by_value(rows: Sequence[Row], key: str) -> Figure:
    """The metric by a setting's value, with its interval over seeds; lines join cells that differ in nothing else."""
    seen = [row for row in rows if row.score and row.cell.varied[key] is not None]
    figure, axes = plot.canvas(height=words.height(seen))
    groups = words.series(seen, [key])
    inks = plot.styles([cell for cell, _ in groups])
    for (cell, group), ink in zip(groups, inks, strict=True):
        points = sorted(((row.cell.varied[key], row.score) for row in group if row.score), key=lambda point: point[0])
        x, y, spans = zip(*((value, found.mean, found.span) for value, found in points), strict=True)
        axes.errorbar(x, y, yerr=np.array(spans).T, capsize=3, label=cell.label, **vars(ink))
    values = [float(row.cell.varied[key]) for row in seen]
    log = min(values) > 0 and max(values) >= DECADE * min(values)
    if log:
        plot.log_axis(axes, "{:g}".format)
    words.xlabel(axes, f"{key}{' (log scale)' * log}", seen)
    axes.set_ylabel(f"{words.metric_words(seen)}, mean of the {last_rounds(lengths(seen))}")
    name = f"{words.name(seen)}: {metrics.words(seen[0].metric)} by {key}"
    plot.title(axes, f"{name}, {words.over(seen, interval=True)}")
    words.legend(figure, axes)
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _slug(key: str) -> str:
    return key.replace(".", "-").replace("_", "-")
