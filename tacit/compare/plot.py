"""How the figures of a comparison look: inks, line styles, labels that keep clear of each other, files."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tacit.compare.cells import Cell

# Okabe and Ito (2008), without black and yellow, darkest first: told apart by colour-blind readers and in grey
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MARKS = ("o", "s", "^", "D")
TICKS = ((1, (1, 1.5, 2, 3, 4, 5, 7)), (2, (1, 2, 5)), (4, (1, 3)), (math.inf, (1,)))  # digits by decades shown
GREY = "#666666"
LINE_HEIGHT = 0.17  # inches of a label of nine points
MARGIN = 1.0  # inches that title and axis take of a figure's height
SAMPLE = (1.03, 1.075)  # where a label's piece of line stands, in widths of the axes
TRUETYPE = 42  # of fonts in a PDF: publishers refuse type 3
THICK, THIN = 2.2, 1.2  # the first line and the last: where lines lie upon each other all of them are seen


@dataclass(frozen=True)
class Style:
    """One cell's ink, dashes, mark and width."""

    color: str
    linestyle: Any
    marker: str
    linewidth: float


def styles(cells: Sequence[Cell]) -> list[Style]:
    """Ink by the key with the most values and dashes by the others, so that related cells look alike; else in turn."""
    keys = list(cells[0].varied)
    values = {key: _numbered([repr(cell.varied[key]) for cell in cells]) for key in keys}
    main = max(keys, key=lambda key: max(values[key]), default=None)
    inks = values[main] if main else [0] * len(cells)
    rests = _numbered([repr([cell.varied[key] for key in keys if key != main]) for cell in cells])
    if max(inks) >= len(INKS) or max(rests) >= len(DASHES):
        inks, rests = [n % len(INKS) for n in range(len(cells))], [n // len(INKS) for n in range(len(cells))]
    widths = np.linspace(THICK, THIN, len(cells)).tolist()
    return [
        Style(INKS[ink], DASHES[rest % len(DASHES)], MARKS[rest % len(MARKS)], width)
        for ink, rest, width in zip(inks, rests, widths, strict=True)
    ]


def canvas(*, height: float, width: float = 9.0) -> tuple[Figure, Axes]:
    """An empty figure with a light grid."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def title(axes: Axes, words: str) -> None:
    """A title over the left edge; never read as mathematics."""
    axes.set_title(words, loc="left", fontsize=11, parse_math=False)


def log_axis(axes: Axes, words: Callable[[float], str]) -> None:
    """Makes the x axis logarithmic, with enough numbers on it to read it by."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    digits = next(digits for decades, digits in TICKS if math.log10(high / low) <= decades)
    axes.xaxis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def spread(wished: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """The places nearest to the wished ones that are `gap` apart and between low and high; of equals the first is highest.

    >>> spread([5.0, 5.0, 1.0], gap=1.0, low=0.0, high=10.0)
    [5.5, 4.5, 1.0]
    """
    gap = min(gap, (high - low) / max(len(wished) - 1, 1))
    order = sorted(range(len(wished)), key=lambda index: (wished[index], -index))
    blocks: list[list[float]] = []  # [mean of (wish - offset), count]: neighbours that touch move as one
    for rank, index in enumerate(order):
        blocks.append([wished[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (one, n), (other, m) = blocks[-2:]
            blocks[-2:] = [[(one * n + other * m) / (n + m), n + m]]
    starts = [start for start, count in blocks for _ in range(int(count))]
    top = high - (len(wished) - 1) * gap
    heights = [0.0] * len(wished)
    for rank, index in enumerate(order):
        heights[index] = min(max(starts[rank], low), top) + rank * gap
    return heights


def label_ends(
    axes: Axes, ends: Sequence[tuple[float, float]], names: Sequence[str], inks: Sequence[Style], *, tall: float
) -> None:
    """Writes each line's name to the right of a figure `tall` inches high, at the height of its end as far as there is room."""
    low, high = axes.get_ylim()
    wished = [y for _, y in ends]
    gap = LINE_HEIGHT / (tall - MARGIN) * (high - low)
    heights = spread(wished, gap=gap, low=low + gap / 2, high=high - gap / 2)
    across = axes.get_yaxis_transform()  # x from 0 to 1 over the axes, y as the data
    for (x, y), height, name, style in zip(ends, heights, names, inks, strict=True):
        sample = {"color": style.color, "linestyle": style.linestyle, "linewidth": style.linewidth}
        axes.plot(SAMPLE, [height, height], transform=across, clip_on=False, **sample)
        axes.text(SAMPLE[1] + 0.01, height, name, transform=across, va="center", fontsize=9, parse_math=False)
        axes.annotate(
            "",
            xy=(x, y),
            xytext=(SAMPLE[0], height),
            textcoords=across,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": style.color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2},
        )
    axes.set_ylim(low, high)


def save(figure: Figure, stem: Path) -> None:
    """Writes the figure as .png, .svg and .pdf; the same figure is the same file."""
    with rc_context({"svg.hashsalt": "tacit", "pdf.fonttype": TRUETYPE}):
        figure.savefig(stem.with_suffix(".png"), dpi=150)
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})


def _numbered(words: Sequence[str]) -> list[int]:
    known = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return [known[word] for word in words]
