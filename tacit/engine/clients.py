"""Who has which rows, with which budget: from an experiment's data to its population, and what a ledger calls it."""

import functools
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import nn

from tacit.data.budgets import budgets
from tacit.data.dataset import Dataset
from tacit.data.load import SEED, load
from tacit.data.load import settings as reading
from tacit.data.partition import Shares, client_names, share_out
from tacit.data.population import Population, coins, populate
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, read_with
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.reader import NOTHING, Before
from tacit.privacy.ledger.sql import Condition
from tacit.random import seeded
from tacit.training.flat import bits

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


def who_holds(experiment: Experiment, population: Population, dataset: Dataset) -> list[Callable[[bytes], Condition]]:
    """What a ledger must not contradict, under its key, where the data itself names the clients: who holds which row.

    It is asked of the rows that this run reads, at every run: what a program did to its own meanwhile shows.
    """
    data = experiment.data
    natural = data.partition == "natural"
    return [partial(holdings, population, dataset, whole=data.part is not None)] if natural else []


def population_id(experiment: Experiment, population: Population, *, elsewhere: bool = False) -> str:
    """What a ledger belongs to: the same records in the same hands, run after run.

    Where the data itself names the clients, rows may come and go, and who holds which is looked at row by row
    (privacy/ledger/holdings.py); that needs the same way of reading them, of naming their clients and of holding some out. Where
    Tacit deals the rows out, other settings or other rows would put a record into other hands, and the charges of two clients
    would have to be added. Where the files lie never matters.

    It follows from rows, and a ledger keys it: nowhere else may it be written.
    """
    data, seed = experiment.data, experiment.seeds.data
    if data.part is not None and data.partition == "natural":
        shares = {"held_out": data.held_out, "own_share": data.own_share, "seed": seed}  # which rows are trained on
        kept = "".join(f":{key}={value}" for key, value in shares.items()) if data.held_out or data.own_share else ""
        return f"{data.name}:natural:{sorted(data.part.settings().items())}{kept}"
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


# What a model or a rule is, as it lies in memory: a digest of its code, its attributes and whatever they reach.

HELD_BYTES = 16
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
KNOWN = frozenset({"torch", "numpy", "tacit", "builtins", *sys.stdlib_module_names} - {"__main__"})
UNSEEN = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
)


def held(*things: object) -> str:
    """The digest of all that these things are and hold; the same in every process that runs the same code.

    >>> held(nn.Linear(2, 1)) == held(nn.Linear(2, 1)), held(nn.Dropout(0.1)) == held(nn.Dropout(0.2))
    (True, False)
    """
    made, seen = hashlib.blake2b(digest_size=HELD_BYTES, person=b"tacit-held"), dict[int, tuple[int, object]]()
    for part in _each(things, seen):
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def _each(thing: Any, seen: dict[int, tuple[int, object]]) -> Iterator[bytes]:
    if isinstance(thing, PLAIN):
        yield f"{type(thing).__name__} {thing!r}".encode()
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)][0]}".encode()
        return
    seen[id(thing)] = (len(seen), thing)  # kept, so that no other thing takes its place in memory
    yield f"{_place(type(thing).__module__)}.{type(thing).__qualname__}".encode()
    for part in _inside(thing):
        if isinstance(part, bytes):
            yield part
        else:
            yield from _each(part[0], seen)


def _inside(thing: Any) -> Iterator[bytes | tuple[Any]]:
    """Bytes, and in tuples of one what is to be looked into in turn."""
    if isinstance(thing, torch.Tensor):
        yield from _tensor(thing)
    elif isinstance(thing, np.ndarray | np.generic):
        yield f"{thing.dtype} {thing.shape}".encode()
        yield thing.tobytes()
    elif isinstance(thing, Mapping):
        yield from ((part,) for pair in thing.items() for part in pair)
    elif isinstance(thing, set | frozenset):
        yield from (mark.encode() for mark in sorted(held(part) for part in thing))
    elif isinstance(thing, list | tuple | deque):
        yield str(len(thing)).encode()
        yield from ((part,) for part in thing)
    elif isinstance(thing, CodeType):
        yield thing.co_code
        yield from ((part,) for part in (thing.co_consts, thing.co_names, thing.co_varnames, thing.co_freevars))
    elif isinstance(thing, FunctionType | type | ModuleType | BuiltinFunctionType):
        yield from _code(thing)
    elif isinstance(thing, MethodType):
        yield from ((thing.__func__,), (thing.__self__,))
    elif isinstance(thing, functools.partial):
        yield from ((thing.func,), (thing.args,), (thing.keywords,))
    else:
        yield from _object(thing)


def _tensor(thing: torch.Tensor) -> Iterator[bytes | tuple[Any]]:
    if nn.parameter.is_lazy(thing):
        return
    yield f"{thing.dtype} {tuple(thing.shape)} {thing.requires_grad}".encode()
    if not (isinstance(thing, nn.Parameter) and thing.requires_grad) and not thing.is_meta:
        yield bits(thing)


def _code(thing: Any) -> Iterator[bytes | tuple[Any]]:
    """A function, a class or a module: by name and version where it is somebody else's, else all that it says."""
    module = thing.__name__ if isinstance(thing, ModuleType) else str(thing.__module__)
    yield f"{_place(module)} {getattr(thing, '__qualname__', '')}".encode()
    top = sys.modules.get(module.partition(".")[0])
    if isinstance(thing, BuiltinFunctionType | ModuleType) or module.partition(".")[0] in KNOWN or _installed(top):
        yield str(getattr(top, "__version__", "")).encode()
    elif isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _full(cell)]
        yield from ((part,) for part in (thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells))
        yield from ((part,) for part in _named(thing.__code__, thing.__globals__))
    else:
        yield (thing.__bases__,)
        yield from ((part,) for name, value in vars(thing).items() if name not in UNSEEN for part in (name, value))


def _place(module: str) -> str:
    """Where code lies. Of Tacit's own only that it is Tacit's: its text is in the digest of the code that makes a release."""
    return "tacit" if module.startswith("tacit.") else module


def _named(code: CodeType, space: Mapping[str, Any]) -> Iterator[Any]:
    """The globals that code names, and of modules among them whatever else it names."""
    found = [space[name] for name in code.co_names if name in space]
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in code.co_names if name in vars(module))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner, space)


def _object(thing: Any) -> Iterator[bytes | tuple[Any]]:
    """Any other object: its class, and what stands in its attributes."""
    yield (type(thing),)
    if isinstance(thing, torch.jit.ScriptModule):
        yield str(thing.graph).encode()
    for name in ("__func__", "__wrapped__", "fget", "fset", "func"):  # static methods, properties, caches and the like
        if name not in getattr(thing, "__dict__", {}) and callable(getattr(thing, name, None)):
            yield (getattr(thing, name),)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((part,) for name in slots if hasattr(thing, name) for part in (name, getattr(thing, name)))
    yield from ((part,) for pair in getattr(thing, "__dict__", {}).items() for part in pair)


def _installed(module: ModuleType | None) -> bool:
    """Whether a package came with an installer rather than from the researcher."""
    return any(
        part in ("site-packages", "dist-packages") for part in (getattr(module, "__file__", None) or "").split("/")
    )


def _full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that has no value yet
        return False
