"""A strip of pictures: the records of a client on top, and below what was made of its update, a row for each level of privacy."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tacit.attacks._finding import BADGE

MOST_PICTURES = 10
SIDE = 0.8  # inches


def are_pictures(shape: tuple[int, ...]) -> bool:
    """Whether rows are pictures: (1 or 3 colours, height, width).

    >>> are_pictures((1, 28, 28)), are_pictures((13,))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


def draw(path: Path, rows: Mapping[str, np.ndarray], shape: tuple[int, ...], *, low: float, high: float) -> None:
    """Writes the strip: rows (picture, number) by their names."""
    count = min(MOST_PICTURES, *(len(part) for part in rows.values()))
    figure = Figure(figsize=(SIDE * (count + 1.5), SIDE * len(rows) + 0.4), layout="constrained")
    cells = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, pictures) in zip(cells, rows.items(), strict=True):
        for axes, picture in zip(line, pictures, strict=False):
            shown = np.clip((picture.reshape(shape) - low) / max(high - low, 1e-12), 0, 1).transpose(1, 2, 0)
            axes.imshow(shown.squeeze(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, parse_math=False)
    figure.suptitle(f"The nearest of all reconstructions ({BADGE})", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
