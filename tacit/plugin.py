"""A part by its name: "package.module:name", or the file of that name in one of Tacit's rooms. One way for all kinds of parts.

A room is a package (`tacit.algorithms.rules`), in which a part is a file with a class or function of the file's name, or a module
(`tacit.parts.metrics`), in which parts carry `@part`. So there is no list to edit. A part's options are its own: the fields of its
dataclass, or the parameters of its function, with their types and defaults.

Guarantee: nothing is imported before `find` is asked for it, and whatever somebody's module or factory raises becomes one
sentence (BadInput), never a traceback. Where modules are searched is said once, by the command: `search_here`, `only_installed`.
"""

import ast
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from tacit import check
from tacit.errors import BadInput, PartFailed, TacitError

Factory = Callable[..., Any]
NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
PYTHON = "python"  # the name of a part that was passed to tacit.run
PASSED_AS = {"data.name": "data", "model.name": "model", "aggregate.rule": "rule"}
LONGEST = 200  # characters of somebody else's error that are repeated


@dataclass(frozen=True)
class Option:
    """One option of a part: the type its values must have, and whether it must be given."""

    hint: Any
    required: bool


Part = TypeVar("Part", bound=Callable[..., Any])


def part(found: Part) -> Part:
    """Marks a class or a function of a room that is one module as a part, which is named after it."""
    return found


def names(room: str) -> list[str]:
    """The parts in a room: `inverse_variance` is `inverse-variance`. Imports none of them.

    >>> "mean" in names("tacit.algorithms.rules"), "mlp" in names("tacit.parts.models")
    (True, True)
    """
    spec = find_spec(room)
    folders = spec.submodule_search_locations if spec else ()
    if spec and folders is None:
        return sorted(name.replace("_", "-") for name in _marked(Path(str(spec.origin))))
    return sorted(path.stem.replace("_", "-") for folder in folders or () for path in Path(folder).glob("[a-z]*.py"))


@lru_cache
def _marked(module: Path) -> list[str]:
    return [
        node.name
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and any(isinstance(mark, ast.Name) and mark.id == part.__name__ for mark in node.decorator_list)
    ]


def find(room: str, name: str, *, key: str) -> Factory:
    """The factory that a name stands for; `key` is where the name was said. This imports its module. Raises BadInput for a name
    that no file in the room has, a module that cannot be imported, what cannot be called, and a part that was passed from
    Python and is not here any more.

    >>> find("tacit.algorithms.rules", "mean", key="aggregate.rule").__name__
    'mean'
    """
    refuse_passed(name, key=key)
    refuse_unknown(room, name, key=key)
    module, colon, part = name.partition(":")
    if not colon:
        part = name.replace("-", "_")
        spec = find_spec(room)
        module = f"{room}.{part}" if spec and spec.submodule_search_locations is not None else room
    if not all(word.isidentifier() for word in (*module.split("."), part)):
        raise BadInput(f"Expected {key} to be package.module:name, got {name!r}.")
    with guarded(f"{key} = {name!r} cannot be imported"):
        found = getattr(_imported(module, f"{key} = {name!r}"), part, None)
    if not callable(found):
        raise BadInput(
            f"Expected {key} = {name!r} to name a class or a function, and {module} has none named {part!r}."
        )
    return found


def refuse_unknown(room: str, name: str, *, key: str) -> None:
    """Refuses a name that no file in the room has, and that names no module either. Imports nothing. Raises BadInput."""
    known = names(room)
    if ":" not in name and name not in known:
        raise BadInput(
            f"Expected {key} to be one of {', '.join(known)} or package.module:name; got {name!r}."
            f"{check.nearest(name, known)}"
        )


def _imported(module: str, whose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and what it imports is not
        here = os.getcwd() if {"", os.getcwd()} & set(sys.path) else None
        where = f"and then the current folder, {here}" if here else "and not the current folder"
        raise BadInput(
            f"{whose} cannot be imported ({said(error)}): what is installed was searched, {where}."
        ) from error


def refuse_passed(name: str | None, *, key: str) -> None:
    """Refuses to look for what was passed from Python: a file has its digest, and nobody can make the part from that.

    >>> refuse_passed("python", key="data.name")
    Traceback (most recent call last):
    tacit.errors.BadInput: data.name = "python" was passed from Python, and no file holds it: only tacit.run(..., data=...) can \
run this, and with resume=True go on with it.
    """
    if name == PYTHON and key in PASSED_AS:
        raise BadInput(
            f'{key} = "{PYTHON}" was passed from Python, and no file holds it: only tacit.run(..., {PASSED_AS[key]}=...) can run'
            " this, and with resume=True go on with it."
        )


def options(factory: Factory, *, given: Iterable[str] = ()) -> dict[str, Option]:
    """The options of a factory by name, without what the caller gives it itself. Raises BadInput where it does not say them.

    >>> def trimmed(*, beta: float, rounds: int = 3): ...
    >>> options(trimmed, given=["rounds"])
    {'beta': Option(hint=<class 'float'>, required=True)}
    """
    hints, apart = _hints(factory), set(given)
    return {
        name: Option(hints.get(name, Any), one.default is one.empty)
        for name, one in _parameters(factory).items()
        if one.kind in NAMED and name not in apart
    }


def takes_any(factory: Factory) -> bool:
    """Whether a factory takes options that it does not name (`**options`)."""
    return any(one.kind is one.VAR_KEYWORD for one in _parameters(factory).values())


def typed(
    factory: Factory,
    values: Mapping[str, Any],
    *,
    table: str,
    given: Iterable[str] = (),
    keys: Iterable[str] = (),
) -> dict[str, Any]:
    """The values with the types that the factory's options have, without calling it. `table` is the table of the experiment
    that they stand in, and `keys` are that table's own keys. Raises BadInput for a key that is no option, a value of another
    type, and an option that is missing.

    >>> def trimmed(*, beta: float): ...
    >>> typed(trimmed, {"beta": 1}, table="aggregate")
    {'beta': 1.0}
    >>> typed(trimmed, {"bta": 1}, table="aggregate")
    Traceback (most recent call last):
    tacit.errors.BadInput: Unknown key 'aggregate.bta'. Did you mean 'aggregate.beta'?
    """
    known, anything = options(factory, given=given), takes_any(factory)
    for key in values:
        if key not in known and (not anything or key in set(given)):
            raise BadInput(check.unknown(key, [*keys, *known], where=[table]))
    for key, option in known.items():
        if option.required and key not in values:
            raise BadInput(f"{table}.{key} is missing: {_name(factory)} cannot be made without it.")
    return {
        key: _value(f"{table}.{key}", value, known[key].hint) if key in known else value
        for key, value in values.items()
    }


def make(
    factory: Factory,
    values: Mapping[str, Any],
    *,
    table: str,
    given: Mapping[str, Any] | None = None,
    keys: Iterable[str] = (),
) -> Any:
    """What the factory makes of the values, checked as in `typed`, and of what it takes of `given`. Raises TacitError.

    >>> make(dict, {"beta": 0.1}, table="aggregate")
    Traceback (most recent call last):
    tacit.errors.BadInput: dict does not say which options it takes: give it a signature.
    """
    given = given or {}
    checked = typed(factory, values, table=table, given=given, keys=keys)
    parameters, anything = _parameters(factory), takes_any(factory)
    with guarded(f"{_name(factory)}, which [{table}] names, cannot be made"):
        return factory(**{key: value for key, value in given.items() if anything or key in parameters}, **checked)


@contextmanager
def guarded(words: str) -> Iterator[None]:
    """Runs somebody else's code: what it raises becomes one sentence that begins with `words`. Refusals pass as they are."""
    try:
        yield
    except TacitError:
        raise
    except Exception as error:
        raise BadInput(f"{words} ({said(error)}).") from error


def failed(error: Exception, part: Any, words: str, *, then: str) -> PartFailed:
    """The refusal for what a part that has been made raised: one sentence with its place and `then`, what to do now. `words` are
    the beginning, with the part's name as a file says it for {name}."""
    text = check.printable(f"{said(error)}, {_place(error, part)}")  # it may quote what a client has sent
    return PartFailed(f"{words.format(name=_called(part))} ({text}). {then}")


def _place(error: Exception, part: Any) -> str:
    own = getattr(sys.modules.get(getattr(part, "__module__", "")), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if frame.filename == own] or frames
    return f"{found[-1].filename}, line {found[-1].lineno}"


def _called(part: Any) -> str:
    kind = part if hasattr(part, "__name__") else type(part)
    name, module = kind.__name__, kind.__module__
    return name.replace("_", "-") if module.startswith("tacit.") else f"{module}:{name}"


def said(error: Exception) -> str:
    """An error of somebody else's code in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST].rstrip(".: ")


def search_here() -> None:
    """Modules in the current folder can be named, and are searched last: for a researcher's commands, never at a site."""
    only_installed()
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def only_installed() -> None:
    """Takes back the current folder, where `python -m` has put it: what lies around where a site is started is not code. One
    that PYTHONPATH names was asked for, and stays."""
    asked_for = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if sys.path and sys.path[0] in ("", os.getcwd()) and os.getcwd() not in asked_for:
        del sys.path[0]


def _value(key_path: str, value: Any, hint: Any) -> Any:
    try:
        # true is no number, though Python takes it for one
        return TypeAdapter(hint).validate_python(value, strict=True if isinstance(value, bool) else None)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        if problems[0]["type"] == "value_error":
            raise BadInput(problems[0]["msg"].removeprefix("Value error, ")) from None
        raise BadInput(check.wrong(key_path, hint, value, [each["loc"] for each in problems])) from None
    except PydanticUserError:
        raise BadInput(f"{key_path} cannot be set: no text says a value of the type {hint}.") from None


def _parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        raise BadInput(f"{_name(factory)} does not say which options it takes: give it a signature.") from None


def _hints(factory: Factory) -> dict[str, Any]:
    whole: Any = factory if is_dataclass(factory) or not isinstance(factory, type) else factory.__init__
    try:
        return get_type_hints(whole, include_extras=True)
    except (TypeError, NameError, AttributeError, SyntaxError):
        return {}


def _name(factory: Factory) -> str:
    return getattr(factory, "__name__", type(factory).__name__)
