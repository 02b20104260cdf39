"""What a release is a function of, as one digest: the key of its noise, and the name of the attempt that is paid for. Two
releases that share noise give away what the noise hides: their difference is the difference of what was noised. So the noise of
a client is keyed by everything its release depends on: seed, experiment, clients, budget, mechanism, that client's rows, code,
arithmetic, trainer, the coins of canaries, the run of a search, round and the very bytes of the question. Same key, same bits;
anything else, independent noise. What cannot be repeated bit for bit (a GPU, somebody else's training, the operating system's
randomness) has a fresh nonce in its key, so every start is another release. The server's noise and cohorts are keyed likewise,
by the state they start from, and without rows, which a deployed server does not know. Where a run's files lie and how fast it
goes is left out. Partition, budgets and initial weights stay on their bare seeds (`Experiment.seeds`), each of which is in the
digest too: runs that differ in one of them alone are different releases."""

import functools
import hashlib
import json
import os
import platform
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import tacit
from tacit.data.sources import settings
from tacit.experiment import Experiment
from tacit.training.flat import bits
from tacit.wire import digest_of

WHERE = {  # where, how fast and under which seal, not what: a sealed run releases the very integers of an unsealed one
    "run": {"workers", "writers", "evaluate_every"},
    "data": {"path", "test_path"},
    "model": {"path"},  # what lies there is in the model: what trains in the state, the rest in `initial_model_digest`
    "privacy": {"ledger"},
    "protect": {"kind", "key", "threshold"},
}
AFTER = {"personal": True}  # what clients do with the last release, for themselves; `during` rounds it is in releases
# The rooms that a release is a function of, closed under imports. Whatever only starts runs, reads or prints is not here.
RELEASING = (
    "algorithms", "check", "crypto", "data", "deploy.site", "engine", "errors", "experiment", "parts",
    "personal", "plugin", "privacy", "random", "store", "training", "types", "wire",
)  # fmt: skip
KERNELS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_", "DNNL_", "OPENBLAS_CORETYPE")


def experiment_text(experiment: Experiment) -> str:
    left_out = WHERE if experiment.personal.during else WHERE | AFTER
    values = experiment.said(mode="json", exclude=left_out)  # pyright: ignore[reportArgumentType]
    said = {key: value for key, value in settings(experiment.data).items() if key not in WHERE["data"]}
    values["data"] = {key: value for key, value in said.items() if value is not None}
    return json.dumps(values, sort_keys=True, default=repr)


def arithmetic(device: str) -> str:
    """The machine as far as it decides about the last bits: equal machines agree, whatever their names."""
    kernels = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(KERNELS))
    flags = (torch.backends.mkldnn.enabled, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
    capability = torch.backends.cpu.get_cpu_capability()
    return "-".join((device.partition(":")[0], processor(), capability, repr(flags), *kernels))


@lru_cache
def package(*more: str) -> str:
    """A hash of Tacit's own code as it is installed: of what a release is a function of, and of `more` rooms.
    Guarantee: the bytes of every file of these rooms count, so an edit to any of them, a comment too, is another release."""
    home = Path(tacit.__file__).parent
    places = [home.joinpath(*room.split(".")) for room in (*RELEASING, *more)]
    files = sorted(
        file for place in places for file in (place.with_suffix(".py"), *place.rglob("*.py")) if file.exists()
    )
    return digest_of(*(part for file in files for part in (file.relative_to(home).as_posix(), file.read_bytes())))


def named_code(experiment: Experiment) -> list[object]:
    """The functions that an experiment names for its model, task, loss, rule, kind of privacy and attack."""
    task, privacy, attack = experiment.task, experiment.privacy, experiment.attack
    names = [experiment.model.name, task.kind, task.loss, experiment.aggregate.rule, privacy.kind]
    names.append(attack and attack.kind)
    named = [name.partition(":") for name in names if name and ":" in name]
    return [getattr(sys.modules.get(module), name, None) for module, _, name in named]


@lru_cache(maxsize=1)
def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


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
    if isinstance(thing, torch.Tensor):
        if nn.parameter.is_lazy(thing):
            return
        yield f"{thing.dtype} {tuple(thing.shape)} {thing.requires_grad}".encode()
        if not (isinstance(thing, nn.Parameter) and thing.requires_grad) and not thing.is_meta:
            yield bits(thing)
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


def _code(thing: Any) -> Iterator[bytes | tuple[Any]]:
    module = thing.__name__ if isinstance(thing, ModuleType) else str(thing.__module__)
    yield f"{_place(module)} {getattr(thing, '__qualname__', '')}".encode()
    top = sys.modules.get(module.partition(".")[0])
    place = (getattr(top, "__file__", None) or "").split("/")
    known = module.partition(".")[0] in KNOWN or "site-packages" in place or "dist-packages" in place
    if isinstance(thing, BuiltinFunctionType | ModuleType) or known:
        yield str(getattr(top, "__version__", "")).encode()
    elif isinstance(thing, FunctionType):
        cells: list[Any] = []
        for cell in thing.__closure__ or ():
            with suppress(ValueError):  # a name that has no value yet
                cells += [cell.cell_contents] if cell.cell_contents is not cell else []
        yield from ((part,) for part in (thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells))
        yield from ((part,) for part in _named(thing.__code__, thing.__globals__))
    else:
        yield (thing.__bases__,)
        yield from ((part,) for name, value in vars(thing).items() if name not in UNSEEN for part in (name, value))


def _place(module: str) -> str:
    return "tacit" if module.startswith("tacit.") else module


def _named(code: CodeType, space: Mapping[str, Any]) -> Iterator[Any]:
    found = [space[name] for name in code.co_names if name in space]
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in code.co_names if name in vars(module))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner, space)


def _object(thing: Any) -> Iterator[bytes | tuple[Any]]:
    yield (type(thing),)
    if isinstance(thing, torch.jit.ScriptModule):
        yield str(thing.graph).encode()
    for name in ("__func__", "__wrapped__", "fget", "fset", "func"):  # static methods, properties, caches and the like
        if name not in getattr(thing, "__dict__", {}) and callable(getattr(thing, name, None)):
            yield (getattr(thing, name),)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((part,) for name in slots if hasattr(thing, name) for part in (name, getattr(thing, name)))
    yield from ((part,) for pair in getattr(thing, "__dict__", {}).items() for part in pair)
