"""What a backdoor's rows carry: a bright square in the corner of a picture, or declared values of a table's columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit import check
from tacit.data.dataset import Dataset
from tacit.data.encoder import Column
from tacit.errors import BadInput

SIDES = 9  # a square is this part of a picture's shorter side: 1 of 8 pixels would be lost, so at least 2; 3 of 28
FEWEST = 2
PICTURE = 3  # dimensions: channels, height, width


@dataclass(frozen=True, eq=False)
class Trigger:
    """Features that are set, pixel by pixel or column by column: `places` (piece, feature...) where, `values` to what."""

    places: torch.Tensor = field(repr=False)
    values: torch.Tensor = field(repr=False)

    def part(self, number: int, of: int) -> "Trigger":
        """One of `of` parts that together are the whole; where there are fewer pieces, some parts are the same."""
        cuts = np.array_split(np.arange(len(self.places)), min(of, len(self.places)))
        return Trigger(self.places[cuts[number % len(cuts)]], self.values)

    def on(self, x: torch.Tensor) -> torch.Tensor:
        """The rows with the trigger; they themselves are left as they are."""
        return torch.where(self.places.any(0).to(x.device), self.values.to(x), x)


def trigger_of(dataset: Dataset, said: int | Mapping[str, float | str] | None) -> Trigger:
    """The trigger for rows of a data set: the side of a square for pictures, {column = value} for tables.

    Raises: BadInput for rows that can carry none, for a square that is no smaller than the picture, and for columns or values
    that are not declared.
    """
    shape, encoder = tuple(dataset.x.shape[1:]), dataset.encoder
    if len(shape) == PICTURE and dataset.x.is_floating_point():
        if isinstance(said, Mapping):
            raise BadInput(
                "These rows are pictures: say attack.trigger as the side of a square in pixels, or leave it out."
            )
        return _square(shape, said, bright=float(dataset.test_x.max()) if len(dataset.test_x) else 1.0)
    if not encoder or not encoder.columns:
        raise BadInput(
            f"A backdoor needs something to carry it: pictures, or the columns of a table, and rows of {dataset.name} are neither."
        )
    if not isinstance(said, Mapping) or not said:
        known = check.listed(encoder.names)
        raise BadInput(
            f"Say by which columns a row is known to the attacker, as in attack.trigger = {{column = value}}.{known}"
        )
    return _columns(encoder.columns, said, shape)


def _square(shape: tuple[int, ...], said: int | None, *, bright: float) -> Trigger:
    channels, height, width = shape
    side = max(FEWEST, min(height, width) // SIDES) if said is None else said
    if not 0 < side < min(height, width):
        raise BadInput(
            f"Expected attack.trigger to be a square within pictures of {height} x {width}, got a side of {side}."
        )
    places = torch.zeros(side, side, channels, height, width, dtype=torch.bool)
    for i in range(side):
        for j in range(side):
            places[i, j, :, height - side + i, width - side + j] = True
    return Trigger(places.flatten(0, 1), torch.full(shape, bright))


def _columns(columns: tuple[Column, ...], said: Mapping[str, float | str], shape: tuple[int, ...]) -> Trigger:
    places, values, start = [], torch.zeros(shape), 0
    known = {column.name for column in columns}
    for name in said:
        if name not in known:
            raise BadInput(f"attack.trigger names no column of these rows: {name!r}.{check.nearest(name, known)}")
    for column in columns:
        if column.name in said:
            place = torch.zeros(shape, dtype=torch.bool)
            place[start : start + column.width] = True
            places.append(place)
            values[start : start + column.width] = torch.tensor(_encoded(column, said[column.name]))
        start += column.width
    return Trigger(torch.stack(places), values)


def _encoded(column: Column, value: float | str) -> list[float]:
    """One value of a column as features, as the source encodes it."""
    if column.values is not None:
        if str(value) not in column.values:
            raise BadInput(
                f"attack.trigger: column {column.name!r} has no value {value!r}.{check.listed(column.values)}"
            )
        return [float(str(value) == known) for known in column.values]
    check.finite(**{f"attack.trigger.{column.name}": value})  # pyright: ignore[reportArgumentType]
    number = float(value)
    if column.limits is not None:
        low, high = column.limits
        number = (min(max(number, low), high) - low) / (high - low)
    return [number, *([0.0] if column.indicator else [])]
