"""Who has which rows, with which budget: from an experiment's data to its population, and what a ledger calls it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from rich.progress import Progress

from tacit.data.budgets import budgets
from tacit.data.dataset import Dataset
from tacit.data.load import SEED, load
from tacit.data.load import settings as reading
from tacit.data.partition import client_names, share_out
from tacit.data.population import Population, populate
from tacit.data.row_hashes import coins
from tacit.data.shares import Shares
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.experiment.asking import EVALUATION, read_with
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger.before import NOTHING, Before
from tacit.random import seeded

PERSONAL = "own evaluation"  # of the coin that says which of a client's rows are for its own evaluation alone


def clients(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    before: Before = NOTHING,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    mask: np.ndarray | None = None,
) -> tuple[Dataset, Shares, Population]:
    """The data and who has what of it, with each client's epsilon, and what of that other runs have sealed."""
    seeds, privacy, data = experiment.seeds, experiment.privacy, read_with(experiment.data, ranges)
    dataset = load(data, seed=seeds.data, progress=progress)
    shares = share_out(dataset, experiment.data, rng=seeded(seeds.data)("partition").generator())
    names = client_names(dataset, experiment.data)
    spec = privacy.epsilon if privacy.epsilon is not None else float("inf")
    epsilons = budgets(spec, clients=len(shares), rng=seeded(seeds.epsilon)("budgets").generator(), names=names)
    if privacy.level != "own":
        epsilons = np.full(len(epsilons), epsilons.min() if privacy.level == "minimum" else epsilons.max())
    limits = {"epsilons": epsilons, "delta": privacy.run_delta, "unit": privacy.unit_kept}
    population = populate(dataset, shares, names=names, **limits)
    for key, share, purpose in (("held_out", data.held_out, EVALUATION), ("own_share", data.own_share, PERSONAL)):
        if share is None:
            continue
        if dataset.mapped:
            raise BadInput(f"Rows that stay in a file are not divided: leave out data.{key}.")
        if mask is None:
            mask = coins(population.x, population.y, share=share, seed=seeds.data, purpose=purpose)
        population = population.holding_out(_fitting(mask, population), key=f"data.{key}")
    dataset = dataset.noting(*_loose_delta(experiment, population))
    if before.runs:
        sealed = before.epsilons(population.names, together=kind_of(experiment).plans.together)
        population = replace(population, sealed=sealed)
    return dataset, shares, population


def _fitting(mask: np.ndarray, population: Population) -> np.ndarray:
    """A mask for these rows. Raises BadData where there were others when it was made."""
    if len(mask) != len(population.y):
        raise BadData("The data files have changed while they were read: start again when they are at rest.")
    return mask


def _loose_delta(experiment: Experiment, population: Population) -> Iterator[str]:
    """A note where delta is no small probability among so many: it bounds for how many of them the promise may fail outright."""
    unit, delta = population.unit, population.delta
    most = int(population.sizes.max()) if unit == "record" else len(population)
    if experiment.privacy.epsilon is not None and delta * most > 1:
        whose = f"the largest client has {most} records" if unit == "record" else f"there are {most} clients"
        yield f"delta = {delta:g} is more than 1/{most}, and {whose}: set privacy.delta below {1 / most:.1g}"


def population_id(experiment: Experiment, population: Population, *, elsewhere: bool = False) -> str:
    """What a ledger belongs to: the same records in the same hands, run after run.

    Where the data itself names the clients, rows may come and go, and who holds which is looked at row by row
    (privacy/ledger/holdings.py); that needs the same way of reading them, of naming their clients and of holding some out. Where
    Tacit deals the rows out, other settings or other rows would put a record into other hands, and the charges of two clients
    would have to be added. Where the files lie never matters. Of rows that were passed from Python nobody knows how they were
    encoded, so that a row that moved could look like a new one: there all rows must be the same, in whatever order.
    """
    data, seed = experiment.data, experiment.seeds.data
    if data.part is not None and data.partition == "natural":
        shares = {"held_out": data.held_out, "own_share": data.own_share, "seed": seed}  # which rows are trained on
        kept = "".join(f":{key}={value}" for key, value in shares.items()) if data.held_out or data.own_share else ""
        return f"{data.name}:natural:{data.part.hands}{kept}"
    later = ("wide", "held_out", "own_share")  # keys that ledgers of earlier versions do not know
    settings = {key: value for key, value in reading(data).items() if key not in later or value}
    settings.pop(SEED, None)  # as it counts it stands below, whether it was said as data.seed or as run.seed
    tested = settings.pop("test_path", None)
    for key in ("path", "shape", "label_shape"):  # where rows lie and what they must look like changes nobody's hands
        settings.pop(key, None)
    if data.partition == "natural":
        unused = ("clients", "alpha", "min_size", "shards_per_client", "examples_per_client")
        settings = {key: value for key, value in settings.items() if key not in unused}
        held_out = {"test_path": True, "test_share": None} if tested else {"seed": seed, "by": "coins"}
        made = hashlib.blake2b(repr(sorted((settings | held_out).items())).encode(), digest_size=8)
        return f"{data.name}:natural:{made.hexdigest()}"
    made = hashlib.blake2b(population.offsets.tobytes(), digest_size=8)
    made.update(repr(sorted((settings | {"seed": seed}).items())).encode())
    if not elsewhere:
        made.update(population.digest().encode())
        made.update(population.held.digest().encode() if population.held else b"")
    return f"{data.name}:{made.hexdigest()}"
