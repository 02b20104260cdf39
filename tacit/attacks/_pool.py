"""The rows of an experiment's clients, of which a chosen part trains: the data source of the runs that an attack makes.

Rows stay with their clients, and every client keeps its name and its budget. Who is in is a function of the experiment's seed and
of the number of the run, so that a run is found again and goes on by itself, in whatever process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.progress import Progress

from tacit.build.clients import clients
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.random import seeded

SOURCE, SOME = "tacit.attacks._pool:members", "tacit.attacks._pool:some"


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
    for table, keys in {"data": ("held_out",), "privacy": ("evaluation_share",), "run": ("out", "writers")}.items():
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
