"""The plots of a finding as files: .png and .svg, each with the badge in its title."""

from pathlib import Path

from tacit.attacks._finding import Finding, Plot
from tacit.compare.plot import DASHES, GREY, INKS, canvas, save, title

CHANCE = "chance"  # a line of this name is what guessing reaches
HEIGHT = 4.5  # inches
SMALLEST = 1e-4  # of a logarithmic axis


def draw(finding: Finding, folder: Path) -> tuple[str, ...]:
    """Writes every plot of a finding and returns the names of the .png files."""
    names = []
    for plot in finding.plots:
        stem = folder / f"attack-{finding.attack}-{plot.name}"
        _draw(plot, stem, badge=finding.badge)
        names.append(f"{stem.name}.png")
    return tuple(names)


def _draw(plot: Plot, stem: Path, *, badge: str) -> None:
    figure, axes = canvas(height=HEIGHT, width=7.0)
    for number, line in enumerate(plot.lines):
        chance = line.name == CHANCE
        ink = GREY if chance else INKS[number % len(INKS)]
        dash = ":" if chance else DASHES[number // len(INKS) % len(DASHES)]
        axes.plot(line.x, line.y, color=ink, linestyle=dash, label=line.name, linewidth=1.0 if chance else 1.8)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.15, linewidth=0)
    if plot.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        least = min((value for line in plot.lines for value in line.x if value > 0), default=SMALLEST)
        axes.set_xlim(max(SMALLEST, least), 1.0)
        axes.set_ylim(max(SMALLEST, least), 1.0)
    axes.set_xlabel(plot.x, fontsize=9, parse_math=False)
    axes.set_ylabel(plot.y, fontsize=9, parse_math=False)
    axes.legend(fontsize=9, frameon=False)
    title(axes, f"{plot.title} ({badge})")
    save(figure, stem)
