"""What an attack found: numbers with 95 % intervals, lines to draw, and what was attacked.

A finding is about real members of a simulation and carries no noise: it is a researcher's measurement, and no epsilon covers it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.errors import BadInput

BADGE = "not covered by ε"


@dataclass(frozen=True)
class Estimate:
    """One number with its 95 % interval, where there is one. `of` says whose: a method, a client, a round, a level of privacy."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    of: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a plot, perhaps with a band."""

    name: str
    x: tuple[float, ...] = field(repr=False)
    y: tuple[float, ...] = field(repr=False)
    low: tuple[float, ...] | None = field(default=None, repr=False)
    high: tuple[float, ...] | None = field(default=None, repr=False)


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
    """Rows of pictures for a page, by name: `shape` is (colours, height, width), a picture its bytes (0 to 255) in base64."""

    shape: tuple[int, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)


@dataclass(frozen=True)
class Finding:
    """What one attack on one experiment found.

    `files` are pictures that the attack itself has written beside the finding. Guarantee: none, and the badge says so wherever a
    finding is shown.

    >>> found = Finding("membership", "digits", "the final model", (Estimate("AUC", 0.7, 0.6, 0.8, of="LiRA"),))
    >>> Finding.of(found.record()) == found, found.badge
    (True, 'not covered by ε')
    """

    attack: str
    experiment: str
    attacked: str
    estimates: tuple[Estimate, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    strip: Strip | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def badge(self) -> str:
        """What is said beside every number of it."""
        return BADGE

    def number(self, name: str, of: str = "") -> Estimate:
        """The estimate of that name. Raises BadInput where there is none."""
        for estimate in self.estimates:
            if (estimate.name, estimate.of) == (name, of):
                return estimate
        raise BadInput(f"This finding has no {name!r} of {of!r}.")

    def record(self) -> dict[str, Any]:
        """The finding as plain values for JSON, which knows neither infinity nor NaN."""
        return _plain({"badge": BADGE} | {name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Finding":
        """The finding of a record. Raises BadInput for what is none."""
        try:
            plots = tuple(
                Plot(**{**plot, "lines": tuple(Line(**_tuples(line)) for line in plot["lines"])})
                for plot in record["plots"]
            )
            said = {name: record[name] for name in ("attack", "experiment", "attacked", "options", "seconds")}
            estimates = tuple(Estimate(**{**one, "value": _number(one["value"])}) for one in record["estimates"])
            strip = record.get("strip")
            if strip is not None:
                strip = Strip(tuple(strip["shape"]), tuple((name, tuple(row)) for name, row in strip["rows"]))
            words: dict[str, Any] = {name: tuple(record[name]) for name in ("notes", "files")}
            return cls(**said, estimates=estimates, plots=plots, strip=strip, **words)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"This is no finding of an attack ({error}).") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _tuples(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in line.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
