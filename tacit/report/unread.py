"""Sites of a federation that nobody has read a row of: their names and epsilons from the experiment, their rows as somebody says.

For plans before round 0 (`tacit plan --gain --rows N`): nothing of `data.path` and `data.test_path` is opened.
"""

from typing import cast

import numpy as np
import torch

from tacit import check
from tacit.data.budgets import budgets
from tacit.data.csv_columns import column_of, declared_classes
from tacit.data.dataset import Dataset
from tacit.data.load import load, source
from tacit.data.names import NUMBERS
from tacit.data.population import Population
from tacit.data.sources.csv import csv
from tacit.data.sources.npz import npz
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.random import seeded

FILES = ("csv", "npz")


def unread(experiment: Experiment, *, rows: int, columns: int | None) -> tuple[Dataset, Population]:
    """What rows look like, by one of zeros, and the sites with so many of them each.

    Guarantee: of csv and npz no file is opened; the data that comes with Tacit is public. `columns` is how many features a row has
    where the experiment does not say it.

    Raises: BadInput where nothing says how many sites there are, what a row looks like, or which classes there are.
    """
    looks = _looks(experiment, columns)
    return looks, sites_of(experiment, _names(experiment), np.full(len(_names(experiment)), rows), looks)


def sites_of(experiment: Experiment, names: tuple[str, ...], sizes: np.ndarray, looks: Dataset) -> Population:
    """Clients by name and size, without rows: one stands for all of them, so that no memory is taken."""
    privacy, rng = experiment.privacy, seeded(experiment.seeds.epsilon)("budgets").generator()
    said = float("inf") if privacy.epsilon is None else privacy.epsilon
    epsilons = budgets(said, clients=len(names), rng=rng, names=names)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    x = looks.x[:1].expand(int(offsets[-1]), *looks.x.shape[1:])
    y = looks.y[:1].expand(int(offsets[-1]), *looks.y.shape[1:])
    return Population(x, y, offsets, names, epsilons, privacy.run_delta, privacy.unit_kept)


def _names(experiment: Experiment) -> tuple[str, ...]:
    """The sites, by the table of their epsilons, or as rows are dealt out."""
    epsilon, data = experiment.privacy.epsilon, experiment.data
    if isinstance(epsilon, dict) and set(epsilon) != {"file"}:
        return tuple(epsilon)
    if isinstance(epsilon, tuple):
        return tuple(f"client-{index}" for index in range(len(epsilon)))
    if data.name in FILES and "clients" not in data.model_fields_set:
        raise BadInput(
            "Without rows nothing says how many sites there are: name them in privacy.epsilon, as in epsilon = {north = 1.0,"
            " coast = 3.0}, or say --set data.clients=3."
        )
    return tuple(f"client-{index}" for index in range(data.clients))


def _looks(experiment: Experiment, columns: int | None) -> Dataset:
    data = experiment.data
    if data.name not in FILES:
        if columns is not None:
            raise BadInput(f"--columns is for rows in files, and the {data.name} data has its own: leave it out.")
        return load(data, seed=experiment.seeds.data)
    files = cast(csv | npz, source(data))
    classes = declared_classes(files)
    if not classes and files.classes != NUMBERS:
        raise BadInput(
            'Without rows nothing says which classes there are: list them, as in data.classes = ["no", "yes"].'
        )
    x = torch.zeros(1, *_shape(files, columns))
    y = torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    return Dataset(data.name, x, y, x[:0], y[:0], classes)


def _shape(files: csv | npz, columns: int | None) -> tuple[int, ...]:
    """The shape of a row: as somebody says, else by what is declared of columns."""
    if columns is not None:
        check.at_least(1, **{"--columns": columns})
        return (columns,)
    if isinstance(files, npz):
        known = tuple(files.shape or ())
    else:
        named = files.columns or (*files.ranged, *(name for name in files.categorical if name not in files.ranged))
        known = (sum(column_of(name, files).width for name in named),) if named else ()
    if not known:
        raise BadInput("Without rows nothing says how many features one has: list data.columns, or say --columns N.")
    return known
