"""The figures of a comparison, each as .png and .svg: its metric by round, cell, uplink and, where it is one thing,
epsilon. Where promises differ, every name on a figure says what its epsilon is per, and the promises stand below.

Record-level and client-level epsilons, or epsilons against different adversaries, are never drawn on one axis.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tacit import metrics
from tacit.compare import plot
from tacit.compare.cells import Cell
from tacit.compare.results import FEWEST_SEEDS, Estimate, Row, Run, last_rounds, lengths, over_rounds, statement
from tacit.compare.table import score, statements
from tacit.compare.values import label, size
from tacit.errors import BadInput

BUDGETS = ("privacy.epsilon", "privacy.noise_multiplier", "privacy.noise_on_mean")  # what sets an epsilon
LINE = 90  # characters that fit under an axis
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
    figure, axes = plot.canvas(height=_height(rows))
    inks, ends = plot.styles([row.cell for row in rows]), []
    for row, ink in zip(rows, inks, strict=True):
        values = over_rounds(row, _scores)
        rounds, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=ink.color, alpha=0.12, linewidth=0)
        single = ink.marker if len(rounds) == 1 else None
        axes.plot(rounds, mean, color=ink.color, linestyle=ink.linestyle, linewidth=ink.linewidth, marker=single)
        ends.append((float(rounds[-1]), float(mean[-1])))
    axes.set_xlim(1 if max(x for x, _ in ends) > 1 else 0.5, max(max(x for x, _ in ends), 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    _xlabel(axes, "round", rows)
    axes.set_ylabel(_tested(rows))
    plot.title(
        axes, f"{_name(rows)}: {metrics.words(rows[0].metric)} by round, {_over(rows, ', band from worst to best')}"
    )
    plot.label_ends(axes, ends, _named(rows), inks, tall=_height(rows))
    return figure


def by_cell(rows: Sequence[Row]) -> Figure:
    """A dot with its interval per cell, the seeds as small dots, and the number in words at the right."""
    figure, axes = plot.canvas(height=1.3 + 0.36 * len(rows) + plot.LINE_HEIGHT * len(_promises(rows)))
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
    axes.set_yticks(range(len(rows)), _named(rows), parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    _xlabel(axes, f"{_tested(rows)}, mean of the {last_rounds(lengths(rows))}", rows)
    plot.title(axes, f"{_name(rows)}: {_over(rows, ' (small dots)', interval=True)}")
    return figure


def by_uplink(rows: Sequence[Row]) -> Figure:
    """The metric against what all clients have uploaded until then."""
    figure, axes = plot.canvas(height=_height(rows))
    for row, name, ink in zip(rows, _named(rows), plot.styles([row.cell for row in rows]), strict=True):
        sent = over_rounds(row, _uploaded).mean(axis=0)
        reached = over_rounds(row, _scores).mean(axis=0)
        axes.plot(sent, reached, markevery=[-1], markersize=6, label=name, **vars(ink))
    plot.log_axis(axes, size)
    _xlabel(axes, "uploaded by all clients until then (log scale)", rows)
    axes.set_ylabel(_tested(rows))
    plot.title(
        axes, f"{_name(rows)}: {metrics.words(rows[0].metric)} by uplink, {_over(rows)}; the mark is the last round"
    )
    _legend(figure, axes)
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
    figure, axes = plot.canvas(height=_height(rows))
    series = _series(rows)
    inks = plot.styles([cell for cell, _ in series])
    for step, (cell, group) in enumerate(series):
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
    words = "\n".join(["largest epsilon spent by a client (log scale)", *wrap(promise, LINE)])
    axes.set_xlabel(words, fontsize=9, parse_math=False)
    axes.set_ylabel(f"{_tested(rows)}, mean of the {last_rounds(lengths(rows))}")
    plot.title(
        axes,
        f"{_name(rows)}: {metrics.words(rows[0].metric)} by epsilon, {_over(rows, interval=True)};"
        " equal epsilons stand side by side",
    )
    _legend(figure, axes)
    return figure


def _error(found: Estimate) -> np.ndarray | None:
    return None if found.interval is None else np.array(found.span)[:, None]


def _series(rows: Sequence[Row]) -> list[tuple[Cell, list[Row]]]:
    """The rows that differ in their budget alone, each with a cell that leaves the budget out."""
    groups: dict[str, list[Row]] = {}
    cells = {}
    for row in rows:
        others = {key: value for key, value in row.cell.varied.items() if key not in BUDGETS}
        groups.setdefault(repr(others), []).append(row)
        cells[repr(others)] = replace(row.cell, varied=others, label=label(others) or _name(rows))
    return [(cells[key], group) for key, group in groups.items()]


def _named(rows: Sequence[Row]) -> list[str]:
    """The cells in words; where their promises differ, each says what its epsilon is per, and which promise it makes."""
    promises = statements(rows)
    if len(promises) < 2:
        return [row.cell.label for row in rows]
    which = [
        f"({promises.index(statement(row.guarantee)) + 1}) per {row.guarantee['unit']}"
        if row.guarantee
        else "no promise"
        for row in rows
    ]
    return [f"{row.cell.label}: {words}" for row, words in zip(rows, which, strict=True)]


def _promises(rows: Sequence[Row]) -> list[str]:
    """The different promises as lines under a figure; none where there is only one."""
    promises = statements(rows)
    if len(promises) < 2:
        return []
    return [line for number, words in enumerate(promises, 1) for line in wrap(f"({number}) epsilon {words}", LINE)]


def _xlabel(axes: Axes, words: str, rows: Sequence[Row]) -> None:
    axes.set_xlabel("\n".join([words, *_promises(rows)]), fontsize=9 if _promises(rows) else None, parse_math=False)


def _legend(figure: Figure, axes: Axes) -> None:
    """Beside the axes, where it covers nothing."""
    legend = figure.legend(
        *axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9, handlelength=3.5
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)


def _height(rows: Sequence[Row]) -> float:
    return max(5.0, 1.5 + plot.LINE_HEIGHT * (len(rows) + len(_promises(rows))))


def _name(rows: Sequence[Row]) -> str:
    return rows[0].cell.experiments[0].name


def _tested(rows: Sequence[Row]) -> str:
    return f"test {metrics.words(rows[0].metric)}"


def _over(rows: Sequence[Row], more: str = "", *, interval: bool = False) -> str:
    seeds = len(rows[0].runs)
    width = "" if not interval else " with 95 % interval" if seeds >= FEWEST_SEEDS else ", too few for an interval"
    return f"mean of {seeds} seeds{more}{width}" if seeds > 1 else "one seed"


def _scores(run: Run) -> list[float]:
    return [record[run.metric] for record in run.rounds]


def _uploaded(run: Run) -> list[float]:
    return np.cumsum([record["uplink_bytes"] for record in run.rounds]).tolist()
