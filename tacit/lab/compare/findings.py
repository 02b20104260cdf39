"""The finding of one attack: numbers with 95 % intervals, lines, pictures; and the findings in a folder, read again.
A finding is measured on real members of a simulation, so no epsilon covers it. A file that is no finding is refused."""

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tacit.engine.malicious import BADGE
from tacit.errors import BadInput
from tacit.lab.compare.grid import Cell
from tacit.lab.compare.results import ANYTHING, Estimate, estimate
from tacit.table import Column, Kind, Table, for_json

AUC = "AUC"
FOLDER = "attacks"  # of a comparison: its findings are in attacks/<cell>/seed-<n>
NAMED = re.compile(r"attack-[A-Za-z0-9_-]+(\.[A-Za-z_][\w-]*)*\.json")  # attack-NAME.1.json was set aside
MOST_SIDE = 1024  # pixels of a picture
VALUE = Kind("{:.3g}".format)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _or_nan(value: Any) -> Any:
    return math.nan if _finite(value) is None else value


Numbers = tuple[FiniteFloat, ...]
End = Annotated[float | None, BeforeValidator(_finite)]
Side = Annotated[int, Field(ge=1, le=MOST_SIDE)]


@dataclass(frozen=True)
class Number:
    """One number with its 95 % interval, where there is one. `of` says whose: a method, a client, a round, a level of privacy."""

    name: str
    value: Annotated[float, BeforeValidator(_or_nan)]
    low: End = None
    high: End = None
    of: str = ""

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.of, self.name) if word)


@dataclass(frozen=True)
class Line:
    name: str
    x: Numbers = field(repr=False)
    y: Numbers = field(repr=False)
    low: Numbers | None = field(default=None, repr=False)
    high: Numbers | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if {len(part) for part in (self.y, self.low, self.high) if part is not None} != {len(self.x)}:
            raise ValueError(f"{self.name} has parts of different lengths")


@dataclass(frozen=True)
class Plot:
    """Lines over common axes, by their words; `log` makes both axes logarithmic."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log: bool = False


@dataclass(frozen=True)
class Strip:
    """Rows of pictures of one shape (colours, height, width), by name; a picture is its bytes, 0 to 255, in base64."""

    shape: tuple[int, Side, Side]
    rows: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.shape[0] not in (1, 3):
            raise ValueError("a picture has one colour or three")
        for text in (text for _, pictures in self.rows for text in pictures):
            try:
                size = len(base64.b64decode(text, validate=True))
            except binascii.Error:
                raise ValueError("a picture is no base64") from None
            if size != math.prod(self.shape):
                raise ValueError("a picture is not of the strip's shape")


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one experiment. Guarantee: none, and the badge says so wherever a finding is shown."""

    attack: str
    experiment: str
    attacked: str
    estimates: tuple[Number, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    strip: Strip | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    badge: str = BADGE
    key: str = ""  # of the experiment and the options that it is of

    def number(self, name: str, of: str = "") -> Number:
        """The estimate of that name. Raises BadInput where there is none."""
        for one in self.estimates:
            if (one.name, one.of) == (name, of):
                return one
        raise BadInput(f"This finding has no {name!r} of {of!r}.")

    def table(self) -> Table:
        """A row for each number."""
        ones = self.estimates
        ends = [None if one.low is None or one.high is None else f"{one.low:.3g} to {one.high:.3g}" for one in ones]
        columns = [Column("of", [one.of for one in ones]), Column("what", [one.name for one in ones])]
        columns += [Column("value", [one.value for one in ones], VALUE), Column("95 % interval", ends, VALUE)]
        notes = (*self.notes, f"These numbers are {self.badge}: they were measured on real members of a simulation.")
        return Table(columns, notes, f"{self.attack} on {self.experiment}: {self.attacked}")

    def record(self) -> dict[str, Any]:
        return for_json(asdict(self))


def findings(folder: Path) -> list[Finding]:
    """The findings in a folder, by the names of their files. Raises BadInput for one that is damaged."""
    return [read(file) for file in sorted(folder.glob("attack-*.json")) if NAMED.fullmatch(file.name)]


def read(file: Path) -> Finding:
    """The finding in a file. Raises BadInput for what is none."""
    try:
        return TypeAdapter(Finding).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        why = "it does not hold what an attack writes" if isinstance(error, ValidationError) else error.strerror
        raise BadInput(f"{file} is damaged ({why}): attack again with --force, which sets it aside.") from None


def place(out: Path, cell: Cell, seed: int) -> Path:
    return out / FOLDER / cell.slug / f"seed-{seed}"


def columns(out: Path, cell: Cell) -> dict[str, Estimate]:
    """What each attack found first, over seeds, by its title; of attacks that every seed of the cell has a finding of."""
    each: dict[str, list[Number]] = {}
    for experiment in cell.experiments:
        for found in findings(place(out, cell, experiment.run.seed)):
            for first in found.estimates[:1]:
                each.setdefault(f"{found.attack} {first.title}", []).append(first)
    whole = {title: ones for title, ones in each.items() if len(ones) == len(cell.experiments)}
    return {title: over(ones) for title, ones in whole.items() if all(math.isfinite(one.value) for one in ones)}


def over(numbers: Sequence[Number]) -> Estimate:
    """The mean over seeds with Student's interval; of one seed, the number with the attack's own interval."""
    only = numbers[0]
    if len(numbers) == 1 and only.low is not None:
        return Estimate.between(only.value, only.low, only.high)
    found = estimate([one.value for one in numbers], (0.0, 1.0) if only.name == AUC else ANYTHING)
    if found is None:
        raise BadInput(f"No attack has a number for {only.title}.")
    return found
