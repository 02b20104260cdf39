"""The figures of a comparison, each as .png, .svg and .pdf: its metric by round, cell, uplink and, where it is one thing,
epsilon. Where promises differ, every name on a figure says what its epsilon is per, and the promises stand below.

Record-level and client-level epsilons, or epsilons against different adversaries, are never drawn on one axis.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tacit import metrics
from tacit.compare import figure_words as words
from tacit.compare import plot
from tacit.compare.results import (
    Estimate,
    Row,
    Run,
    last_rounds,
    lengths,
    over_rounds,
    statement,
    tested,
    values_of,
)
from tacit.compare.table import score, statements
from tacit.compare.values import size
from tacit.errors import BadInput

BUDGETS = ("privacy.epsilon", "privacy.noise_multiplier", "privacy.noise_on_mean")  # what sets an epsilon
ASIDE = 1.02  # a series steps aside by this ratio, never towards a smaller epsilon
SAME = 1.01  # epsilons closer than this ratio are one place on an axis


def draw(out: Path, rows: Sequence[Row]) -> list[str]:
    """Draws what the rows allow into a folder and returns the names of the figures."""
    seen = [row for row in rows if any(run.rounds for run in row.ended)]
    wanted = {"by-round": by_round, "by-cell": by_cell, "by-uplink": by_uplink}
    if can_compare_epsilons(seen):
        wanted["by-epsilon"] = by_epsilon
    wanted = {f"{rows[0].metric.replace('_', '-')}-{name}": figure for name, figure in wanted.items()}
    for name, figure in wanted.items() if seen else ():
        plot.save(figure(seen), out / name)
    return list(wanted) if seen else []


def by_round(rows: Sequence[Row]) -> Figure:
    """Mean over seeds by round, with the band from the worst to the best seed."""
    figure, axes = plot.canvas(height=words.height(rows))
    inks, ends = plot.styles([row.cell for row in rows]), []
    for row, ink in zip(rows, inks, strict=True):
        values = over_rounds(row, _scores)
        known = tested(values)
        values, rounds = values[:, known], known + 1
        mean = values.mean(axis=0)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=ink.color, alpha=0.12, linewidth=0)
        single = ink.marker if len(rounds) == 1 else None
        axes.plot(rounds, mean, color=ink.color, linestyle=ink.linestyle, linewidth=ink.linewidth, marker=single)
        ends.append((float(rounds[-1]), float(mean[-1])))
    axes.set_xlim(1 if max(x for x, _ in ends) > 1 else 0.5, max(max(x for x, _ in ends), 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    words.xlabel(axes, "round", rows)
    axes.set_ylabel(words.metric_words(rows))
    plot.title(
        axes,
        f"{words.name(rows)}: {metrics.words(rows[0].metric)} by round, {words.over(rows, ', band from worst to best')}",
    )
    plot.label_ends(axes, ends, words.named(rows), inks, tall=words.height(rows))
    return figure


def by_cell(rows: Sequence[Row]) -> Figure:
    """A dot with its interval per cell, the seeds as small dots, and the number in words at the right."""
    figure, axes = plot.canvas(height=1.3 + 0.36 * len(rows) + plot.LINE_HEIGHT * len(words.promises(rows)))
    for row_number, (row, ink) in enumerate(zip(rows, plot.styles([row.cell for row in rows]), strict=True)):
        found = row.score
        if found is None:
            continue
        seeds = [run.score for run in row.ended]
        if len(seeds) > 1:
            axes.scatter(seeds, [row_number + 0.2] * len(seeds), s=9, color=plot.GREY, alpha=0.6, linewidths=0)
        axes.errorbar(
            found.mean, row_number, xerr=_error(found), color=ink.color, marker=ink.marker, capsize=3, linewidth=1.6
        )
        axes.text(1.02, row_number, score(row), transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), words.named(rows), parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    words.xlabel(axes, f"{words.metric_words(rows)}, mean of the {last_rounds(lengths(rows))}", rows)
    plot.title(axes, f"{words.name(rows)}: {words.over(rows, ' (small dots)', interval=True)}")
    return figure


def by_uplink(rows: Sequence[Row]) -> Figure:
    """The metric against what all clients have uploaded until then."""
    figure, axes = plot.canvas(height=words.height(rows))
    for row, name, ink in zip(rows, words.named(rows), plot.styles([row.cell for row in rows]), strict=True):
        values = over_rounds(row, _scores)
        known = tested(values)
        sent, reached = over_rounds(row, _uploaded).mean(axis=0)[known], values[:, known].mean(axis=0)
        axes.plot(sent, reached, markevery=[-1], markersize=6, label=name, **vars(ink))
    plot.log_axis(axes, size)
    words.xlabel(axes, "uploaded by all clients until then (log scale)", rows)
    axes.set_ylabel(words.metric_words(rows))
    plot.title(
        axes,
        f"{words.name(rows)}: {metrics.words(rows[0].metric)} by uplink, {words.over(rows)}; the mark is the last round",
    )
    words.legend(figure, axes)
    return figure


def can_compare_epsilons(rows: Sequence[Row]) -> bool:
    """Whether all cells promise the same but for the number, and the numbers differ."""
    largest = [row.guarantee["epsilon"]["max"] for row in rows if row.guarantee]
    drawable = len(largest) == len(rows) > 1 and all(0 < one < float("inf") for one in largest)
    return drawable and len(statements(rows)) == 1 and max(largest) > SAME * min(largest)


def by_epsilon(rows: Sequence[Row]) -> Figure:
    """The metric against the largest epsilon spent; lines join cells that differ in their budget alone.

    Raises BadInput where the cells do not make one and the same promise: then their epsilons are not one axis.
    """
    if len(statements(rows)) != 1 or not all(row.guarantee for row in rows):
        raise BadInput("Epsilons of different units or adversaries are not one axis: compare them in separate figures.")
    figure, axes = plot.canvas(height=words.height(rows))
    groups = words.series(rows, BUDGETS)
    inks = plot.styles([cell for cell, _ in groups])
    for step, (cell, group) in enumerate(groups):
        points = [(row.guarantee["epsilon"]["max"], row.score) for row in group if row.guarantee and row.score]
        points.sort(key=lambda point: point[0])
        x, y, spans = zip(*((spent, found.mean, found.span) for spent, found in points), strict=True)
        axes.errorbar(
            np.array(x) * ASIDE**step,
            y,
            yerr=np.array(spans).T,
            capsize=3,
            label=cell.label,
            **vars(inks[step]),
        )
    plot.log_axis(axes, "{:g}".format)
    promise = next(statement(row.guarantee) for row in rows if row.guarantee)
    below = "\n".join(["largest epsilon spent by a client (log scale)", *wrap(promise, words.LINE)])
    axes.set_xlabel(below, fontsize=9, parse_math=False)
    axes.set_ylabel(f"{words.metric_words(rows)}, mean of the {last_rounds(lengths(rows))}")
    plot.title(
        axes,
        f"{words.name(rows)}: {metrics.words(rows[0].metric)} by epsilon, {words.over(rows, interval=True)};"
        " equal epsilons stand side by side",
    )
    words.legend(figure, axes)
    return figure


def _error(found: Estimate) -> np.ndarray | None:
    return None if found.interval is None else np.array(found.span)[:, None]


def _scores(run: Run) -> list[float]:
    return values_of(run, run.metric)


def _uploaded(run: Run) -> list[float]:
    return np.cumsum([record["uplink_bytes"] for record in run.rounds]).tolist()
