"""The game of property inference: every client has rows with the property or, by a coin, none of them.

A client holds as many rows in either case: those with the property take the place of others. So the number of its rows, which is
public, says nothing. Games 2k and 2k + 1 are mirrors: each client's coin falls both ways.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from tacit import check
from tacit.attacks._pool import kept
from tacit.build.clients import clients
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.random import seeded

SOURCE = "tacit.attacks._games:arranged"


@dataclass(frozen=True)
class Wanted:
    """A property of single rows: a class among `classes`, or a `column` that has a `value`. Raises BadInput."""

    classes: tuple[str, ...] = ()
    column: str = ""
    value: str = ""

    def __post_init__(self) -> None:
        if bool(self.classes) == bool(self.column) or bool(self.column) != bool(self.value):
            raise BadInput(
                "Say which rows have the property: --with classes=[0,1], or --with column=NAME --with value=VALUE."
            )

    def __str__(self) -> str:
        return f"{self.column} = {self.value}" if self.column else f"class {' or '.join(self.classes)}"

    def of(self, dataset: Dataset, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        """Which rows have it. Raises BadInput for a class or a value that there is not."""
        if not self.column:
            if not dataset.classified:
                raise BadInput("The rows of this data have no classes: say a column and a value.")
            for name in self.classes:
                check.one_of(dataset.class_names, **{"with.classes": name})
            chosen = [number for number, name in enumerate(dataset.class_names) if name in self.classes]
            return np.isin(y.cpu().numpy(), chosen)
        first = 0
        for column in dataset.encoder.columns if dataset.encoder else ():
            if column.name == self.column and column.values:
                check.one_of(column.values, **{"with.value": self.value})
                return x[:, first + column.values.index(self.value)].cpu().numpy() > 0.5
            first += column.width
        named = [column.name for column in dataset.encoder.columns if column.values] if dataset.encoder else []
        raise BadInput(
            f"Expected with.column to be a column of declared values ({check.listed(named) or 'this data has none'}); got"
            f" {self.column!r}.{check.nearest(self.column, named)}"
        )

    def refuse_trivial(self, having: np.ndarray, whose: str) -> None:
        """Raises BadInput where no row has it, or every row."""
        if having.all() or not having.any():
            none = "Every" if having.all() else "No"
            raise BadInput(f"{none} row of {whose} has the property {self}: name one that some have and others do not.")


@dataclass(frozen=True)
class arranged:
    """The rows of game `number` among those of the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    number: int = 0
    classes: list[str] = field(default_factory=list)
    column: str = ""
    value: str = ""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """The rows that train, with their clients."""
        dataset, _, population = clients(Experiment(data=self.of, run={"seed": seed}), progress=progress)
        wanted = Wanted(tuple(self.classes), self.column, self.value)
        having = wanted.of(dataset, population.x, population.y)
        return kept(dataset, population, dealt(population, having, seed=seed, number=self.number)[0])


def dealt(population: Population, having: np.ndarray, *, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train in a game, and every client's coin: 1 with the property, 0 without, NaN where it cannot play.

    It cannot who has no row with the property, or none without it: all of its rows train, whatever the coin.
    """
    chance = seeded(seed)("attack", "property", number // 2).generator()
    masks, coins = [], np.full(len(population), np.nan)
    order = chance.permutation(len(population))
    for index in range(len(population)):
        own = having[int(population.offsets[index]) : int(population.offsets[index + 1])]
        mask, turn = np.ones(len(own), bool), chance.permutation(np.flatnonzero(~own))
        if own.any() and not own.all():
            coins[index] = (order[index] + number) % 2  # half of the clients each way
            with_it = np.flatnonzero(own)[: len(turn)]
            mask = ~own
            if coins[index]:
                mask[turn[: len(with_it)]] = False
                mask[with_it] = True
        masks.append(mask)
    return np.concatenate(masks), coins
