"""`tacit data`: which client holds what, and what it allows. True counts: for the researcher, not for release."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from rich.table import Table
from rich.text import Text

from tacit.data.partition import label_counts
from tacit.engine.assemble import clients
from tacit.errors import BadInput
from tacit.experiment import Experiment

# Who holds what and who allows what: labels by client as a heat map with every client's epsilon below, and as a table.

MOST_COLUMNS = 500  # more clients share a column: at 10 inches a narrower one cannot be seen
MOST_NAMES = 30  # names on an axis, before they touch
MOST_NUMBERS = 12  # clients, up to which each cell shows its count
LONGEST_NAME = 14
BRIGHTEST = 99.5  # percentile of the cells that ends the colour scale, so that one large client does not fade the rest
SUFFIXES = (".png", ".svg")
INK = "#1f3b57"


def picture(
    path: str | Path,
    labels_by_client: np.ndarray,
    class_names: Sequence[str],
    client_names: Sequence[str],
    epsilons: np.ndarray | None = None,
    *,
    name: str | None = None,
) -> None:
    """Draws labels by client and the epsilons below them, as PNG or SVG by the suffix of the path.

    `name` opens the title. Many clients share a column, which then shows their mean. Raises: BadInput if the shapes or the
    suffix do not fit.
    """
    path, counts = Path(path), np.asarray(labels_by_client)
    _check(counts, class_names, client_names, epsilons)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"Expected a picture named .png or .svg, got {path.name!r}.")
    tall = min(max(2.0, 0.3 * counts.shape[1]), 6.0)
    figure = Figure(figsize=(10, tall + (1.2 if epsilons is None else 2.9)), layout="constrained")
    heights = [tall] if epsilons is None else [tall, 1.6]
    grid = figure.add_gridspec(len(heights), 2, width_ratios=[40, 1], height_ratios=heights)
    heat = figure.add_subplot(grid[0, 0])
    together = _heat(heat, figure.add_subplot(grid[0, 1]), counts, class_names)
    bottom = heat
    if epsilons is not None:
        bottom = figure.add_subplot(grid[1, 0], sharex=heat)
        heat.tick_params(labelbottom=False)
        _epsilons(bottom, np.asarray(epsilons, dtype=float))
    _name_clients(bottom, client_names)
    mean = f"; each column is the mean of {together} clients" if together > 1 else ""
    figure.align_ylabels([heat, bottom])
    heat.set_title(
        f"{f'{name}: ' if name else ''}{len(counts):,} client{'s' * (len(counts) > 1)}, {int(counts.sum()):,} examples{mean}",
        loc="left",
        fontsize=11,
        parse_math=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "tacit"}):  # the same picture is the same file
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def table(
    labels_by_client: np.ndarray,
    class_names: Sequence[str],
    client_names: Sequence[str],
    epsilons: np.ndarray | None = None,
    *,
    top: int = 3,
) -> list[dict[str, str | int | float | None]]:
    """A row per client: its name, the number of its examples, its `top` most frequent labels with counts, its epsilon.

    >>> table(np.array([[5, 0, 1]]), ["a", "b", "c"], ["client-0"], np.array([3.0]))
    [{'client': 'client-0', 'examples': 6, 'labels': 'a: 5, c: 1', 'epsilon': 3.0}]
    """
    counts = np.asarray(labels_by_client)
    _check(counts, class_names, client_names, epsilons)
    budgets = [None] * len(counts) if epsilons is None else [float(epsilon) for epsilon in epsilons]
    return [
        {"client": name, "examples": int(row.sum()), "labels": _frequent(row, class_names, top), "epsilon": budget}
        for name, row, budget in zip(client_names, counts, budgets, strict=True)
    ]


def _check(
    counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str], epsilons: np.ndarray | None
) -> None:
    """Refuses counts, names and epsilons of different sizes."""
    if counts.shape != (len(client_names), len(class_names)) or not counts.size:
        shape = f"{len(client_names)} clients x {len(class_names)} classes"
        raise BadInput(f"Expected label counts of {shape}, got the shape {list(counts.shape)}.")
    if epsilons is not None and len(epsilons) != len(client_names):
        raise BadInput(f"Expected one epsilon per client, got {len(epsilons)} for {len(client_names)} clients.")


def _frequent(row: np.ndarray, class_names: Sequence[str], top: int) -> str:
    """The most frequent labels in words, and how many others there are."""
    held = np.argsort(-row, kind="stable")[: np.count_nonzero(row)]
    rest = f", {len(held) - top} more" if len(held) > top else ""
    return ", ".join(f"{class_names[label]}: {row[label]}" for label in held[:top]) + rest


def _heat(axes: Axes, bar: Axes, counts: np.ndarray, class_names: Sequence[str]) -> int:
    """Draws the heat map with its colour bar and returns how many clients share a column."""
    clients, classes = counts.shape
    together = -(-clients // MOST_COLUMNS)
    starts = np.arange(0, clients, together)
    means = np.add.reduceat(counts, starts) / np.diff(starts, append=clients)[:, None]
    edges = np.append(starts, clients) - 0.5
    largest = max(float(np.percentile(means, BRIGHTEST, method="higher")), 1.0)
    mesh = axes.pcolormesh(
        edges, np.arange(classes + 1) - 0.5, means.T, cmap="YlGnBu", vmin=0, vmax=largest, rasterized=True
    )
    axes.invert_yaxis()
    axes.set_ylabel("label")
    shown = range(0, classes, -(-classes // MOST_NAMES))
    axes.set_yticks(list(shown), [_short(class_names[label]) for label in shown], fontsize=9, parse_math=False)
    axes.tick_params(length=0)
    if clients <= MOST_NUMBERS and classes <= MOST_NAMES:
        dark = means > 0.6 * largest
        for client, label in np.ndindex(counts.shape):
            ink = "white" if dark[client, label] else INK
            axes.text(client, label, f"{counts[client, label]}", ha="center", va="center", fontsize=8, color=ink)
    axes.figure.colorbar(
        mesh,
        cax=bar,
        label="examples of a client" + (" (mean)" if together > 1 else ""),
        ticks=MaxNLocator(5, integer=True, min_n_ticks=1),
        extend="max" if means.max() > largest else "neither",
    )
    bar.tick_params(labelsize=8)
    return together


def _epsilons(axes: Axes, epsilons: np.ndarray) -> None:
    """Draws one point per client on a logarithmic scale; a client without a limit is a triangle on the upper edge."""
    limited = np.isfinite(epsilons)
    where, values = np.flatnonzero(limited), epsilons[limited]
    size = float(np.clip(3000 / len(epsilons), 2, 30))
    room = 1.5 if limited.all() else 2.5  # above the largest, for the triangles
    low, high = (values.min() / 1.5, values.max() * room) if len(values) else (0.5, 2.0)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.scatter(
        where, values, s=size, color=INK, linewidths=0, alpha=1 if len(values) <= 200 else 0.6, rasterized=True
    )
    if not limited.all():
        free = np.flatnonzero(~limited)
        top = axes.get_xaxis_transform()
        axes.scatter(free, np.full(len(free), 0.97), marker="^", s=size, color="#c44e52", transform=top, clip_on=False)
        axes.set_title("▲ no limit (ε = ∞)", loc="right", fontsize=8, color="#c44e52")
    ticks = _round_numbers(low, 1.5 * values.max()) if len(values) else []
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("ε (log scale)")


def _round_numbers(low: float, high: float) -> list[float]:
    """At most about six numbers of the form 1, 2, 5 x 10^k in a range, or its powers of ten where it is wide."""
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 6:
            break
    return ticks[:: -(-len(ticks) // 6) or 1]


def _name_clients(axes: Axes, client_names: Sequence[str]) -> None:
    """Labels the clients' axis: by name while there is room, else by index."""
    clients = len(client_names)
    axes.set_xlim(-0.5, clients - 0.5)
    if clients > MOST_NAMES:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("client (by index)")
        return
    short = [_short(name) for name in client_names]
    crowded = clients * max(map(len, short)) > 110  # about as many characters as fit into ten inches
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(range(clients), short, fontsize=9, parse_math=False, **turned)
    axes.set_xlabel("client")


def _short(name: str) -> str:
    """A name that fits beside an axis, with both its ends: they tell names apart."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


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
        picture(path, self.counts, self.class_names, self.client_names, self.epsilons, name=name)

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
        return table(self.counts, self.class_names, self.client_names, self.epsilons)


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
