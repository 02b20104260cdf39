"""A strip of pictures: the records of a client on top, and below what was made of its update, a row for each level of privacy."""

import base64
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tacit.attacks._finding import BADGE, Strip

MOST_PICTURES = 10
SIDE = 0.8  # inches


def are_pictures(shape: tuple[int, ...]) -> bool:
    """Whether rows are pictures: (1 or 3 colours, height, width).

    >>> are_pictures((1, 28, 28)), are_pictures((13,))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


def strip_of(rows: Mapping[str, np.ndarray], shape: tuple[int, ...], *, low: float, high: float) -> Strip:
    """The first pictures of rows (picture, number) by their names; `low` is white, `high` black.

    >>> strip_of({"records": np.array([[0.0, 1.0]])}, (1, 1, 2), low=0.0, high=1.0).rows
    (('records', ('AP8=',)),)
    """
    count = min(MOST_PICTURES, *(len(part) for part in rows.values()))

    def text(picture: np.ndarray) -> str:
        shown = np.clip((picture - low) / max(high - low, 1e-12), 0, 1)
        return base64.b64encode((255 * shown).round().astype(np.uint8).tobytes()).decode()

    return Strip(shape, tuple((name, tuple(map(text, part[:count]))) for name, part in rows.items()))


def draw(path: Path, strip: Strip) -> None:
    """Writes the strip as a file."""
    count = len(strip.rows[0][1])
    figure = Figure(figsize=(SIDE * (count + 1.5), SIDE * len(strip.rows) + 0.4), layout="constrained")
    cells = figure.subplots(len(strip.rows), count, squeeze=False)
    for line, (name, pictures) in zip(cells, strip.rows, strict=True):
        for axes, picture in zip(line, pictures, strict=True):
            shown = np.frombuffer(base64.b64decode(picture), np.uint8).reshape(strip.shape).transpose(1, 2, 0)
            axes.imshow(shown.squeeze(), cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, parse_math=False)
    figure.suptitle(f"The nearest of all reconstructions ({BADGE})", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
