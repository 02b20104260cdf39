"""What the figures of a comparison say around their lines: names, promises, axes and legends."""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tacit import metrics
from tacit.compare import plot
from tacit.compare.cells import Cell
from tacit.compare.results import FEWEST_SEEDS, Row, statement
from tacit.compare.table import statements
from tacit.compare.values import label

LINE = 90  # characters that fit under an axis


def series(rows: Sequence[Row], without: Sequence[str]) -> list[tuple[Cell, list[Row]]]:
    """The rows that differ in these keys alone, each group with a cell that leaves the keys out."""
    groups: dict[str, list[Row]] = {}
    cells = {}
    for row in rows:
        others = {key: value for key, value in row.cell.varied.items() if key not in without}
        groups.setdefault(repr(others), []).append(row)
        cells[repr(others)] = replace(row.cell, varied=others, label=label(others) or name(rows))
    return [(cells[key], group) for key, group in groups.items()]


def named(rows: Sequence[Row]) -> list[str]:
    """The cells in words; where their promises differ, each says what its epsilon is per, and which promise it makes."""
    known = statements(rows)
    if len(known) < 2:
        return [row.cell.label for row in rows]
    which = [
        f"({known.index(statement(row.guarantee)) + 1}) per {row.guarantee['unit']}" if row.guarantee else "no promise"
        for row in rows
    ]
    return [f"{row.cell.label}: {words}" for row, words in zip(rows, which, strict=True)]


def promises(rows: Sequence[Row]) -> list[str]:
    """The different promises as lines under a figure; none where there is only one."""
    known = statements(rows)
    if len(known) < 2:
        return []
    return [line for number, words in enumerate(known, 1) for line in wrap(f"({number}) epsilon {words}", LINE)]


def xlabel(axes: Axes, words: str, rows: Sequence[Row]) -> None:
    """What the x axis is, and below it the promises where they differ."""
    axes.set_xlabel("\n".join([words, *promises(rows)]), fontsize=9 if promises(rows) else None, parse_math=False)


def legend(figure: Figure, axes: Axes) -> None:
    """Beside the axes, where it covers nothing."""
    made = figure.legend(
        *axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9, handlelength=3.5
    )
    for entry in made.get_texts():
        entry.set_parse_math(False)


def height(rows: Sequence[Row]) -> float:
    """Inches that have room for every name."""
    return max(5.0, 1.5 + plot.LINE_HEIGHT * (len(rows) + len(promises(rows))))


def name(rows: Sequence[Row]) -> str:
    """The experiment's name."""
    return rows[0].cell.experiments[0].name


def metric_words(rows: Sequence[Row]) -> str:
    """What an axis of the metric says."""
    return f"test {metrics.words(rows[0].metric)}"


def over(rows: Sequence[Row], more: str = "", *, interval: bool = False) -> str:
    """Over which seeds a figure's means are."""
    seeds = len(rows[0].runs)
    width = "" if not interval else " with 95 % interval" if seeds >= FEWEST_SEEDS else ", too few for an interval"
    return f"mean of {seeds} seeds{more}{width}" if seeds > 1 else "one seed"
