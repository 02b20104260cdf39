"""The rows of an experiment's clients, of which a chosen part trains: the data source of the runs that an attack makes.

Rows stay with their clients, and every client keeps its name and its budget. Who is in is a function of the experiment's seed and
of the number of the run, so that a run is found again and goes on by itself, in whatever process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from tacit import check
from tacit.data.dataset import Dataset
from tacit.data.population import Population, rows_mark
from tacit.engine import trainers
from tacit.engine.assemble import Parts, clients
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.random import seeded
from tacit.types import Client, Message
from tacit.wire import pack, unpack

SOURCE, SOME = "tacit.lab.attacks._records:members", "tacit.lab.attacks._records:some"


@dataclass(frozen=True)
class members:
    """The members of run number `number` among the rows of the clients that the [data] table `of` describes.

    Runs 2k and 2k + 1 are mirrors: of every client one has a half of the rows, drawn at random, and the other the rest.
    """

    of: dict[str, Any]
    number: int = 0

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """The rows that train, with their clients. Raises BadData for a client that has fewer than two rows."""
        dataset, _, population = clients(Experiment(data=self.of, run={"seed": seed}), progress=progress)
        return kept(dataset, population, halves(population, seed=seed, number=self.number))


@dataclass(frozen=True)
class some:
    """The first `records` rows of client number `client` alone, among the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    client: int
    records: int

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """The rows of that client."""
        dataset, _, population = clients(Experiment(data=self.of, run={"seed": seed}), progress=progress)
        own = population[self.client]
        rows = {"x": own.x[: self.records], "y": own.y[: self.records]}
        owner = np.zeros(len(rows["y"]), int)
        return replace(dataset, **rows, client=owner, client_names=(own.id,), mapped=False)


def halves(population: Population, *, seed: int, number: int) -> np.ndarray:
    """Which rows of a population train in run `number`."""
    chance = seeded(seed)("attack", "members", number // 2).generator()

    def half(rows: int) -> np.ndarray:
        mask = np.zeros(rows, bool)
        mask[chance.permutation(rows)[: rows // 2]] = True
        return mask if number % 2 == 0 else ~mask

    return by_client(population, half)


def by_client(population: Population, choose: Callable[[int], np.ndarray]) -> np.ndarray:
    """A mask over all rows, client by client. Raises BadData for a client that has fewer than two rows."""
    for name, size in zip(population.names, population.sizes.tolist(), strict=True):
        if size < 2:
            raise BadData(f"Client {name} has {size} row, and an attack needs two of each client, one in and one out.")
    return np.concatenate([choose(size) for size in population.sizes.tolist()])


def kept(dataset: Dataset, population: Population, mask: np.ndarray) -> Dataset:
    """The data set of the rows in a mask over a population's rows, with its clients named."""
    whose = np.repeat(np.arange(len(population)), population.sizes)
    return replace(
        dataset,
        x=population.x[mask],
        y=population.y[mask],
        client=whose[mask],
        client_names=population.names,
        mapped=False,
    )


def whole(experiment: Experiment) -> Experiment:
    """The experiment with all of its clients' rows in training, to run in one process: an attack's runs go side by side.

    Raises BadInput where how rows are read is asked for during a run.
    """
    refuse_private_ranges(experiment)
    values = experiment.model_dump(exclude_none=True)
    for table, keys in {"data": ("held_out",), "privacy": ("query_shares",), "run": ("out", "writers")}.items():
        values[table] = {key: value for key, value in values[table].items() if key not in keys}
    return Experiment(**values | {"run": values["run"] | {"workers": 1}})


def pooled(experiment: Experiment, source: str = SOURCE, **options: Any) -> Experiment:
    """The experiment on a part of its clients' rows, which `source` chooses. Raises BadInput, as `whole`."""
    values = whole(experiment).model_dump(exclude_none=True)
    return Experiment(**values | {"data": {"name": source, "partition": "natural", "of": values["data"]} | options})


def refuse_private_ranges(experiment: Experiment) -> None:
    """Refuses columns whose range every run would ask its clients for: their rows would be other rows in every run."""
    numeric = experiment.data.options().get("numeric", {})
    private = [name for name, value in numeric.items() if value == "private"] if isinstance(numeric, Mapping) else []
    if private:
        raise BadInput(
            f"The range of {private[0]!r} is asked for in every run: declare one in data.numeric to attack this experiment."
        )


# The game of property inference: every client has rows with the property or, by a coin, none of them.

SOURCE_GAMES = "tacit.lab.attacks._records:arranged"


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


# Updates that an attacker makes itself, of public rows: clients that it knows, trained and noised by the run's own
# code.


@dataclass(frozen=True, eq=False)
class Public:
    """The public rows of an attacker, with the property and without it."""

    having: tuple[torch.Tensor, torch.Tensor]
    lacking: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, parts: Parts, wanted: Wanted) -> "Public":
        """The experiment's test rows. Raises BadInput where there are none, or none with the property, or none without."""
        x, y = parts.test_rows
        if not len(y):
            raise BadInput("The attacker trains on public rows, and this data has no test rows: set data.test_share.")
        having = wanted.of(parts.dataset, x, y)
        wanted.refuse_trivial(having, "the public test set")
        return cls((x[having], y[having]), (x[~having], y[~having]))

    def drawn(self, chance: np.random.Generator, size: int, with_it: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many rows, of which some have the property; drawn again where there are not enough."""
        parts = []
        for (x, y), count in ((self.having, with_it), (self.lacking, size - with_it)):
            rows = chance.choice(len(y), count, replace=count > len(y))
            parts.append((x[rows], y[rows]))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def imitated(parts: Parts, victim: int, x: torch.Tensor, y: torch.Tensor, *, number: int) -> Client:
    """A client with the victim's place and budget, so with its mechanism, and with other rows.

    Its name is its own: noise is keyed by it and by its rows, so that it shares none with anybody.
    """
    own = parts.population[victim]
    return Client(own.index, f"auxiliary {number}", own.budget, x, y, rows_mark(x, y))


def updates_of(parts: Parts, told: Message, round: int, clients: Sequence[Client]) -> torch.Tensor | None:
    """What such clients would send in a round, (client, parameter); None where they send no whole update."""
    trainer = trainers.alone(parts, dict(enumerate(clients)))
    replies = (unpack(raw) for raw, _ in trainer(pack(told), round, range(len(clients))))
    found = [whole_update(message, told) for message in replies]
    known = [update for update in found if update is not None]
    return torch.stack(known) if len(known) == len(found) and known else None


def whole_update(message: Message, told: Message) -> torch.Tensor | None:
    """The update in a message, where it is one number for each parameter."""
    update = message.tensors.get("update")
    if update is None or update.numel() != told.tensors["params"].numel() or not update.is_floating_point():
        return None
    return update.flatten().float().cpu()
