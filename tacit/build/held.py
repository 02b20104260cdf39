"""What a model or a rule is, as it lies in memory: a digest of its code, its attributes and whatever they reach.

A file says what code was, not what runs: it may have been edited since it was imported, and it does not name what it imports, reads
or was told by its surroundings. So code is taken from the objects themselves: classes, functions, their defaults and closures, the
globals they name, buffers, attributes. Torch, NumPy, Tacit and Python are known by their versions, other packages by name and
version. Parameters that train count by their shape: their values are in the state that a round starts from.
"""

import functools
import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.train.frozen import bits

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
    yield f"{type(thing).__module__}.{type(thing).__qualname__}".encode()
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
    yield f"{module} {getattr(thing, '__qualname__', '')}".encode()
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
