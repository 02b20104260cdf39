"""`tacit data`: which client holds what, and what it allows. True counts: for the researcher, not for release."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from rich.table import Table
from rich.text import Text

from tacit.data.partition import label_counts
from tacit.engine.assemble import clients
from tacit.errors import BadInput
from tacit.experiment import Experiment

MOST_COLUMNS = 500  # more clients share a column: at 10 inches a narrower one cannot be seen
MOST_NAMES = 30  # names on an axis, before they touch
MOST_NUMBERS = 12  # clients, up to which each cell shows its count
LONGEST_NAME = 14
BRIGHTEST = 99.5  # percentile of the cells that ends the colour scale, so that one large client does not fade the rest
SUFFIXES = (".png", ".svg")
INK, FREE = "#1f3b57", "#c44e52"
MOST_ROWS = 40  # a longer table is cut in the middle; the picture and --json show all


def picture(
    path: str | Path,
    labels_by_client: np.ndarray,
    class_names: Sequence[str],
    client_names: Sequence[str],
    epsilons: np.ndarray | None = None,
    *,
    name: str | None = None,
) -> None:
    """Draws labels by client and the epsilons below them, as PNG or SVG by the suffix of the path; `name` opens the title.

    Many clients share a column, which then shows their mean. Raises: BadInput if the shapes or the suffix do not fit.
    """
    path, counts = Path(path), np.asarray(labels_by_client)
    _check(counts, class_names, client_names, epsilons)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"Expected a picture named .png or .svg, got {path.name!r}.")
    tall = min(max(2.0, 0.3 * counts.shape[1]), 6.0)
    figure = Figure(figsize=(10, tall + (1.2 if epsilons is None else 2.9)), layout="constrained")
    heights = [tall] if epsilons is None else [tall, 1.6]
    grid = figure.add_gridspec(len(heights), 2, width_ratios=[40, 1], height_ratios=heights)
    heat = bottom = figure.add_subplot(grid[0, 0])
    sharing = _heat(heat, figure.add_subplot(grid[0, 1]), counts, class_names)
    if epsilons is not None:
        bottom = figure.add_subplot(grid[1, 0], sharex=heat)
        heat.tick_params(labelbottom=False)
        _epsilons(bottom, np.asarray(epsilons, dtype=float))
    _name_clients(bottom, client_names)
    figure.align_ylabels([heat, bottom])
    mean = f"; each column is the mean of {sharing} clients" if sharing > 1 else ""
    sizes = f"{len(counts):,} client{'s' * (len(counts) > 1)}, {int(counts.sum()):,} examples{mean}"
    heat.set_title(f"{name}: {sizes}" if name else sizes, loc="left", fontsize=11, parse_math=False)
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
    counts, found = np.asarray(labels_by_client), []
    _check(counts, class_names, client_names, epsilons)
    for index, (name, row) in enumerate(zip(client_names, counts, strict=True)):
        held = np.argsort(-row, kind="stable")[: np.count_nonzero(row)]
        rest = f", {len(held) - top} more" if len(held) > top else ""
        labels = ", ".join(f"{class_names[label]}: {row[label]}" for label in held[:top]) + rest
        epsilon = None if epsilons is None else float(epsilons[index])
        found.append({"client": name, "examples": int(row.sum()), "labels": labels, "epsilon": epsilon})
    return found


def _check(
    counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str], epsilons: np.ndarray | None
) -> None:
    if counts.shape != (len(client_names), len(class_names)) or not counts.size:
        shape = f"{len(client_names)} clients x {len(class_names)} classes"
        raise BadInput(f"Expected label counts of {shape}, got the shape {list(counts.shape)}.")
    if epsilons is not None and len(epsilons) != len(client_names):
        raise BadInput(f"Expected one epsilon per client, got {len(epsilons)} for {len(client_names)} clients.")


def _heat(axes: Axes, bar: Axes, counts: np.ndarray, class_names: Sequence[str]) -> int:
    """Draws the heat map with its colour bar and returns how many clients share a column."""
    clients, classes = counts.shape
    sharing = -(-clients // MOST_COLUMNS)
    starts = np.arange(0, clients, sharing)
    means = np.add.reduceat(counts, starts) / np.diff(starts, append=clients)[:, None]
    edges, rows = np.append(starts, clients) - 0.5, np.arange(classes + 1) - 0.5
    largest = max(float(np.percentile(means, BRIGHTEST, method="higher")), 1.0)
    mesh = axes.pcolormesh(edges, rows, means.T, cmap="YlGnBu", vmin=0, vmax=largest, rasterized=True)
    axes.invert_yaxis()
    axes.set_ylabel("label")
    shown = range(0, classes, -(-classes // MOST_NAMES))
    axes.set_yticks(list(shown), [_short(class_names[label]) for label in shown], fontsize=9, parse_math=False)
    axes.tick_params(length=0)
    if clients <= MOST_NUMBERS and classes <= MOST_NAMES:
        for client, label in np.ndindex(counts.shape):
            ink = "white" if means[client, label] > 0.6 * largest else INK
            axes.text(client, label, f"{counts[client, label]}", ha="center", va="center", fontsize=8, color=ink)
    axes.figure.colorbar(
        mesh,
        cax=bar,
        label="examples of a client" + (" (mean)" if sharing > 1 else ""),
        ticks=MaxNLocator(5, integer=True, min_n_ticks=1),
        extend="max" if means.max() > largest else "neither",
    )
    bar.tick_params(labelsize=8)
    return sharing


def _epsilons(axes: Axes, epsilons: np.ndarray) -> None:
    """Draws one point per client on a logarithmic scale; a client without a limit is a triangle on the upper edge."""
    limited = np.isfinite(epsilons)
    values, size = epsilons[limited], float(np.clip(3000 / len(epsilons), 2, 30))
    axes.set_yscale("log")
    room = 1.5 if limited.all() else 2.5  # above the largest, for the triangles
    axes.set_ylim(*((values.min() / 1.5, values.max() * room) if len(values) else (0.5, 2.0)))
    dots = {"s": size, "linewidths": 0, "alpha": 1 if len(values) <= 200 else 0.6, "rasterized": True}
    axes.scatter(np.flatnonzero(limited), values, color=INK, **dots)
    if not limited.all():
        free, top = np.flatnonzero(~limited), axes.get_xaxis_transform()
        axes.scatter(free, np.full(len(free), 0.97), marker="^", s=size, color=FREE, transform=top, clip_on=False)
        axes.set_title("▲ no limit (ε = ∞)", loc="right", fontsize=8, color=FREE)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("ε (log scale)")


def _name_clients(axes: Axes, client_names: Sequence[str]) -> None:
    """Labels the clients' axis: by name while there is room, else by index."""
    clients = len(client_names)
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_xlabel("client" if clients <= MOST_NAMES else "client (by index)")
    if clients > MOST_NAMES:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        return
    short = [_short(name) for name in client_names]
    crowded = clients * max(map(len, short)) > 110  # about as many characters as fit into ten inches
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(range(clients), short, fontsize=9, parse_math=False, **turned)


def _short(name: str) -> str:
    """A name that fits beside an axis, with both its ends: they tell names apart."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


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
        rows = table(self.counts, self.class_names, self.client_names, self.epsilons)
        return {"name": self.name, "classes": list(self.class_names), "clients": rows, "notes": list(self.notes)}

    def table(self) -> Table:
        """A row per client; a long list is cut in the middle."""
        rows = self.record()["clients"]
        title = Text(f"{self.name}: {len(rows):,} clients, {int(self.counts.sum()):,} records")
        notes = Text("; ".join(self.notes)) if self.notes else None
        shown = Table("client", "examples", "most frequent labels", "epsilon", title=title, caption=notes)
        cut = len(rows) > MOST_ROWS
        for index, row in enumerate(rows):
            if cut and index == MOST_ROWS // 2:
                shown.add_row("...", f"{len(rows) - MOST_ROWS:,} more", "", "")
            if not cut or not MOST_ROWS // 2 <= index < len(rows) - MOST_ROWS // 2:
                epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:.3g}"
                shown.add_row(Text(row["client"]), f"{row['examples']:,}", Text(row["labels"]), epsilon)
        return shown


def of(experiment: Experiment) -> Holdings:
    """The holdings of an experiment's clients."""
    dataset, shares, population = clients(experiment)
    counts = label_counts(dataset.y.numpy(), shares, classes=dataset.classes)
    epsilons = population.epsilons if experiment.privacy.epsilon is not None else None
    names = experiment.name, experiment.data.name
    return Holdings(*names, counts, dataset.class_names, population.names, epsilons, dataset.notes)
