"""The figures of a comparison, each as .png, .svg and .pdf: its metric by round, cell, uplink, varied number and epsilon.
Where promises differ, every name on a figure says what its epsilon is per, the promises stand below, and epsilons have no axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tacit.errors import BadInput
from tacit.lab.compare import results
from tacit.lab.compare.grid import Cell, label, size
from tacit.lab.compare.results import Row
from tacit.parts import metrics
from tacit.table import with_interval

# Okabe and Ito (2008), without black and yellow, darkest first: told apart by colour-blind readers and in grey
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MARKS = ("o", "s", "^", "D")
TICKS = ((1, (1, 1.5, 2, 3, 4, 5, 7)), (2, (1, 2, 5)), (4, (1, 3)), (math.inf, (1,)))  # digits by decades shown
GREY = "#666666"
LINE_HEIGHT = 0.17  # inches of a label of nine points
TRUETYPE = 42  # of fonts in a PDF: publishers refuse type 3
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 11, "parse_math": False}
LINE = 90  # characters that fit under an axis
BUDGETS = ("privacy.epsilon", "privacy.noise_multiplier")  # what sets an epsilon
SEEDS = ("seed.data", "seed.model", "seed.noise")  # numbers, but of nothing
ASIDE = 1.02  # a series steps aside by this ratio, never towards a smaller epsilon
SAME = 1.01  # epsilons closer than this ratio are one place on an axis
DECADE = 10  # values that span more are drawn on a logarithmic axis
THICK, THIN = 2.2, 1.2  # the first line and the last: where lines lie upon each other all of them are seen


def styles(count: int) -> list[dict[str, Any]]:
    """Ink, dashes, mark and width of so many lines: the first is the thickest, so that lines upon each other are all seen."""
    return [
        {
            "color": INKS[n % len(INKS)],
            "linestyle": DASHES[n // len(INKS) % len(DASHES)],
            "marker": MARKS[n % len(MARKS)],
        }
        | {"linewidth": THICK - (THICK - THIN) * n / count}
        for n in range(count)
    ]


def canvas(*, height: float, width: float = 9.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def log_axis(axes: Axes, words: Callable[[float], str]) -> None:
    """Makes the x axis logarithmic, with enough numbers on it to read it by."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    digits = next(digits for decades, digits in TICKS if math.log10(high / low) <= decades)
    axes.xaxis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, stem: Path) -> None:
    """Writes the figure as .png, .svg and .pdf; the same figure is the same file."""
    with rc_context({"svg.hashsalt": "tacit", "pdf.fonttype": TRUETYPE}):
        figure.savefig(stem.with_suffix(".png"), dpi=150)
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})


def _series(rows: Sequence[Row], without: Sequence[str]) -> list[tuple[Cell, list[Row]]]:
    """The rows that differ in these keys alone, each group with a cell that leaves the keys out."""
    groups: dict[str, list[Row]] = {}
    cells = {}
    for row in rows:
        others = {key: value for key, value in row.cell.varied.items() if key not in without}
        groups.setdefault(repr(others), []).append(row)
        cells[repr(others)] = replace(row.cell, varied=others, label=label(others) or rows[0].cell.experiments[0].name)
    return [(cells[key], group) for key, group in groups.items()]


def _names(rows: Sequence[Row]) -> list[str]:
    known = results.statements(rows)
    return [
        row.cell.label if len(known) < 2 else f"{row.cell.label}: {results.which_promise(row, known)}" for row in rows
    ]


def _promises(rows: Sequence[Row]) -> list[str]:
    """The different promises as lines under a figure; none where there is only one."""
    known = results.statements(rows) if len(results.statements(rows)) > 1 else []
    return [line for number, words in enumerate(known, 1) for line in wrap(f"({number}) epsilon {words}", LINE)]


def _height(rows: Sequence[Row]) -> float:
    return max(5.0, 1.5 + LINE_HEIGHT * (len(rows) + len(_promises(rows))))


def _over(rows: Sequence[Row], more: str = "", *, interval: bool = False) -> str:
    seeds = len(rows[0].runs)
    width = (
        "" if not interval else " with 95 % interval" if seeds >= results.FEWEST_SEEDS else ", too few for an interval"
    )
    return f"mean of {seeds} seeds{more}{width}" if seeds > 1 else "one seed"


def _words(axes: Axes, rows: Sequence[Row], *, x: str, over: str, by: str = "", mean: bool = False) -> None:
    below = _promises(rows)
    axes.set_xlabel("\n".join([x, *below]), fontsize=9 if below else None, parse_math=False)
    metric = metrics.words(rows[0].metric)
    if by:
        last = f", mean of the {results.last_rounds(results.lengths(rows))}" if mean else ""
        axes.set_ylabel(f"test {metric}{last}")
    words = f"{rows[0].cell.experiments[0].name}: {f'{metric} by {by}, ' if by else ''}{over}"
    axes.set_title(words, **TITLE)


def _legend(figure: Figure, axes: Axes) -> None:
    how: Any = {"loc": "outside right upper", "frameon": False, "fontsize": 9, "handlelength": 3.5}
    for entry in figure.legend(*axes.get_legend_handles_labels(), **how).get_texts():
        entry.set_parse_math(False)


def draw(out: Path, rows: Sequence[Row]) -> list[str]:
    """Draws what the rows allow into a folder and returns the names of the figures."""
    seen = [row for row in rows if any(run.rounds for run in row.ended)]
    wanted: dict[str, Callable[[Sequence[Row]], Figure]] = {}
    if seen:
        wanted = {"by-round": by_round, "by-cell": by_cell, "by-uplink": by_uplink}
    if seen and can_compare_epsilons(seen):
        wanted["by-epsilon"] = by_epsilon
    made = {name: figure(seen) for name, figure in wanted.items()}
    made |= {f"by-{key.replace('.', '-').replace('_', '-')}": by_value(rows, key) for key in keys(rows)}
    made = {f"{rows[0].metric.replace('_', '-')}-{name}": figure for name, figure in made.items()}
    for name, figure in made.items():
        save(figure, out / name)
    return list(made)


def by_round(rows: Sequence[Row]) -> Figure:
    """Mean over seeds by round, with the band from the worst to the best seed."""
    figure, axes = canvas(height=_height(rows))
    for row, name, ink in zip(rows, _names(rows), styles(len(rows)), strict=True):
        values = results.over_rounds(row, row.metric)
        known = results.tested(values)
        values, rounds = values[:, known], known + 1
        mean = values.mean(axis=0)
        if len(values) > 1:
            axes.fill_between(
                rounds, values.min(axis=0), values.max(axis=0), color=ink["color"], alpha=0.12, linewidth=0
            )
        axes.plot(rounds, mean, label=name, **{**ink, "marker": ink["marker"] if len(rounds) == 1 else None})
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    _words(axes, rows, x="round", by="round", over=_over(rows, ", band from worst to best"))
    _legend(figure, axes)
    return figure


def by_cell(rows: Sequence[Row]) -> Figure:
    """A dot with its interval per cell, the seeds as small dots, and the number in words at the right."""
    figure, axes = canvas(height=1.3 + 0.36 * len(rows) + LINE_HEIGHT * len(_promises(rows)))
    for place, (row, ink) in enumerate(zip(rows, styles(len(rows)), strict=True)):
        found = row.score
        if found is None:
            continue
        seeds = [run.score for run in row.ended]
        if len(seeds) > 1:
            axes.scatter(seeds, [place + 0.2] * len(seeds), s=9, color=GREY, alpha=0.6, linewidths=0)
        error = None if found.interval is None else np.array(found.span)[:, None]
        axes.errorbar(found.mean, place, xerr=error, color=ink["color"], marker=ink["marker"], capsize=3, linewidth=1.6)
        axes.text(1.02, place, with_interval(found), transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), _names(rows), parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    metric = f"test {metrics.words(rows[0].metric)}, mean of the {results.last_rounds(results.lengths(rows))}"
    _words(axes, rows, x=metric, over=_over(rows, " (small dots)", interval=True))
    return figure


def by_uplink(rows: Sequence[Row]) -> Figure:
    """The metric against what all clients have uploaded until then."""
    figure, axes = canvas(height=_height(rows))
    for row, name, ink in zip(rows, _names(rows), styles(len(rows)), strict=True):
        values, sent = results.over_rounds(row, row.metric), results.over_rounds(row, "uplink_bytes", cumulated=True)
        known = results.tested(values)
        axes.plot(sent.mean(axis=0)[known], values.mean(axis=0)[known], markevery=[-1], markersize=6, label=name, **ink)
    log_axis(axes, size)
    said = f"{_over(rows)}; the mark is the last round"
    _words(axes, rows, x="uploaded by all clients until then (log scale)", by="uplink", over=said)
    _legend(figure, axes)
    return figure


def can_compare_epsilons(rows: Sequence[Row]) -> bool:
    """Whether all cells promise the same but for the number, and the numbers differ."""
    largest = [row.guarantee["epsilon"]["max"] for row in rows if row.guarantee]
    drawable = len(largest) == len(rows) > 1 and all(0 < one < float("inf") for one in largest)
    return drawable and len(results.statements(rows)) == 1 and max(largest) > SAME * min(largest)


def by_epsilon(rows: Sequence[Row]) -> Figure:
    """The metric against the largest epsilon spent; lines join cells that differ in their budget alone.
    Raises BadInput where the cells do not make one and the same promise: then their epsilons are not one axis."""
    if len(results.statements(rows)) != 1 or not all(row.guarantee for row in rows):
        raise BadInput("Epsilons of different units or adversaries are not one axis: compare them in separate figures.")
    figure, axes = canvas(height=_height(rows))
    spent = {row.cell.label: row.guarantee["epsilon"]["max"] for row in rows if row.guarantee}
    _lines(axes, rows, BUDGETS, lambda row: spent[row.cell.label], aside=ASIDE)
    log_axis(axes, "{:g}".format)
    said = f"{_over(rows, interval=True)}; equal epsilons stand side by side"
    _words(axes, rows, x="", by="epsilon", over=said, mean=True)
    below = "\n".join(["largest epsilon spent by a client (log scale)", *wrap(results.statements(rows)[0], LINE)])
    axes.set_xlabel(below, fontsize=9, parse_math=False)
    _legend(figure, axes)
    return figure


def keys(rows: Sequence[Row]) -> list[str]:
    """The varied keys that are numbers, of at least two values that were run; a budget has a figure of its own, by epsilon."""
    found = []
    for key in rows[0].cell.varied if rows else ():
        values = {row.cell.varied[key] for row in rows if row.score and _is_number(row.cell.varied[key])}
        given = [row.cell.varied[key] for row in rows if row.cell.varied[key] is not None]
        if len(values) > 1 and all(map(_is_number, given)) and key not in (*BUDGETS, *SEEDS):
            found.append(key)
    return found


def by_value(rows: Sequence[Row], key: str) -> Figure:
    """The metric by a setting's value, with its interval over seeds; lines join cells that differ in nothing else."""
    seen = [row for row in rows if row.score and row.cell.varied[key] is not None]
    figure, axes = canvas(height=_height(seen))
    _lines(axes, seen, [key], lambda row: row.cell.varied[key])
    values = [float(row.cell.varied[key]) for row in seen]
    log = min(values) > 0 and max(values) >= DECADE * min(values)
    if log:
        log_axis(axes, "{:g}".format)
    _words(axes, seen, x=f"{key}{' (log scale)' * log}", by=key, over=_over(seen, interval=True), mean=True)
    _legend(figure, axes)
    return figure


def _lines(
    axes: Axes, rows: Sequence[Row], without: Sequence[str], place: Callable[[Row], float], *, aside: float = 1.0
) -> None:
    """A line with intervals for every group of rows that differ in some keys alone; each steps aside of the one before."""
    groups = _series(rows, without)
    inks = styles(len(groups))
    for step, (cell, group) in enumerate(groups):
        points = sorted(((place(row), row.score) for row in group if row.score), key=lambda point: point[0])
        x, y, spans = zip(*((value, found.mean, found.span) for value, found in points), strict=True)
        axes.errorbar(np.array(x) * aside**step, y, yerr=np.array(spans).T, capsize=3, label=cell.label, **inks[step])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
