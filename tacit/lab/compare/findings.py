"""What attacks have left in a folder (attack-NAME.json), read again for tables and pages. No epsilon covers any of it.

The attacks of a comparison are in `attacks/<cell>/seed-<n>`. A file is somebody's until it is checked: what is no finding is
refused in a sentence, and numbers are finite."""

import base64
import binascii
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from tacit.errors import BadInput
from tacit.lab.compare.grid import Cell
from tacit.lab.compare.results import Estimate, estimate
from tacit.lab.compare.table import AUC

FOLDER = "attacks"
NAMED = re.compile(r"attack-[A-Za-z0-9_-]+(\.[A-Za-z_][\w-]*)*\.json")  # attack-NAME.1.json was set aside
MOST_SIDE = 1024  # pixels of a picture
Numbers = list[FiniteFloat]


class Number(BaseModel):
    """One number with its 95 % interval, where there is one; `of` says whose."""

    name: str
    value: FiniteFloat | None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    of: str = ""

    @property
    def title(self) -> str:
        """Whose it is, and what."""
        return " ".join(word for word in (self.of, self.name) if word)


class Line(BaseModel):
    """A line of a plot."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None

    @model_validator(mode="after")
    def _one_length(self) -> "Line":
        if {len(part) for part in (self.y, self.low, self.high) if part is not None} != {len(self.x)}:
            raise ValueError(f"{self.name} has parts of different lengths")
        return self


class Plot(BaseModel):
    """Lines over common axes."""

    title: str
    x: str
    y: str
    lines: list[Line]
    log: bool = False


class Strip(BaseModel):
    """Rows of pictures of one shape (colours, height, width), by name; a picture is its bytes, 0 to 255, in base64."""

    shape: tuple[int, Annotated[int, Field(ge=1, le=MOST_SIDE)], Annotated[int, Field(ge=1, le=MOST_SIDE)]]
    rows: list[tuple[str, list[str]]]

    @model_validator(mode="after")
    def _of_one_shape(self) -> "Strip":
        if self.shape[0] not in (1, 3):
            raise ValueError("a picture has one colour or three")
        for _, pictures in self.rows:
            for text in pictures:
                try:
                    size = len(base64.b64decode(text, validate=True))
                except binascii.Error:
                    raise ValueError("a picture is no base64") from None
                if size != math.prod(self.shape):
                    raise ValueError("a picture is not of the strip's shape")
        return self


class Found(BaseModel):
    """What one attack found, as its file says it."""

    attack: str
    experiment: str
    attacked: str
    badge: str
    estimates: list[Number]
    plots: list[Plot] = []
    notes: list[str] = []
    strip: Strip | None = None


def findings(folder: Path) -> list[Found]:
    """The findings in a folder, by the names of their files. Raises BadInput for one that is damaged."""
    return [_read(file) for file in sorted(folder.glob("attack-*.json")) if NAMED.fullmatch(file.name)]


def place(out: Path, cell: Cell, seed: int) -> Path:
    """Where the attacks on one run of a comparison are."""
    return out / FOLDER / cell.slug / f"seed-{seed}"


def columns(out: Path, cell: Cell) -> dict[str, Estimate]:
    """What each attack found first, over seeds, by its title; of attacks that every seed of the cell has a finding of."""
    each: dict[str, list[Number]] = {}
    for experiment in cell.experiments:
        for found in findings(place(out, cell, experiment.run.seed)):
            for first in found.estimates[:1]:
                each.setdefault(f"{found.attack} {first.title}", []).append(first)
    return {title: over(ones) for title, ones in each.items() if len(ones) == len(cell.experiments) and _known(ones)}


def over(numbers: Sequence[Number]) -> Estimate:
    """The mean over seeds with Student's interval; of one seed, the number with the attack's own interval."""
    only = numbers[0]
    if len(numbers) == 1 and only.value is not None and only.low is not None and only.high is not None:
        wide = max(only.value - only.low, only.high - only.value)
        return Estimate(only.value, wide, (only.low, only.high))
    bounds = (0.0, 1.0) if only.name == AUC else (-math.inf, math.inf)
    found = estimate([one.value for one in numbers if one.value is not None], bounds)
    if found is None:
        raise BadInput(f"No attack has a number for {only.title}.")
    return found


def _known(numbers: Sequence[Number]) -> bool:
    return all(one.value is not None for one in numbers)


def _read(file: Path) -> Found:
    try:
        return Found.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        why = "it does not hold what an attack writes" if isinstance(error, ValidationError) else error.strerror
        raise BadInput(f"{file} is damaged ({why}): attack again with --force, which sets it aside.") from None
