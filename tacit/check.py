"""Argument checks in one voice: `check.positive(clip=clip)` raises "Expected clip > 0, got -1.0."."""

import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tacit.errors import BadInput

NEAR = 0.7  # of difflib's likeness: one wrong, missing or exchanged letter in five, as in "mnits", is 0.8
BEGINNING = 3  # letters that two names must begin with for one to stand for the other
LONGEST = 100  # characters of a value that are repeated
MOST_LISTED = 20  # names in a sentence


def finite(**values: float) -> None:
    """Refuses NaN, infinity and anything that is not a number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise BadInput(f"Expected {name} to be a finite number, got {repr(value)[:LONGEST]}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def positive(**values: float) -> None:
    """Refuses what is not a finite number above zero."""
    finite(**values)
    for name, value in values.items():
        if value <= 0:
            raise BadInput(f"Expected {name} > 0, got {value!r}.")


def at_least(low: float, **values: float) -> None:
    """Refuses what is below `low`."""
    finite(**values)
    for name, value in values.items():
        if value < low:
            raise BadInput(f"Expected {name} >= {low}, got {value!r}.")


def probability(**values: float) -> None:
    """Refuses what is not strictly between 0 and 1 (a delta)."""
    finite(**values)
    for name, value in values.items():
        if not 0 < value < 1:
            raise BadInput(f"Expected 0 < {name} < 1, got {value!r}.")


def rate(**values: float) -> None:
    """Refuses what is not in (0, 1] (a sampling rate)."""
    finite(**values)
    for name, value in values.items():
        if not 0 < value <= 1:
            raise BadInput(f"Expected 0 < {name} <= 1, got {value!r}.")


def one_of(options: Iterable[str], **values: str) -> None:
    """Refuses a name that is not among the options, and points at the nearest one."""
    known = list(options)
    for name, value in values.items():
        if value not in known:
            raise BadInput(f"Expected {name} to be one of {', '.join(known)}; got {value!r}.{nearest(value, known)}")


def nearest(word: str, options: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" for the closest option, whatever its capitals, or nothing where none is near.

    Near is what a slip of the hand makes of a name, a name that the other begins with, or the one whose words begin so.

    >>> nearest("AGE", ["sex", "age", "Average"])
    " Did you mean 'age'?"
    >>> nearest("lr", ["rounds", "learning_rate"])
    " Did you mean 'learning_rate'?"
    >>> nearest("rest_bp", ["chest_pain", "age"])
    ''
    """
    spelled = {option.casefold(): option for option in reversed(list(options))}
    said, known = str(word).casefold(), list(spelled)[::-1]
    begun = [
        name
        for name in known
        if min(len(said), len(name)) >= BEGINNING and (name.startswith(said) or said.startswith(name))
    ]
    abbreviated = [name for name in known if len(said) > 1 and said == _initials(name)]
    found = difflib.get_close_matches(said, known, n=1, cutoff=NEAR) or begun or abbreviated
    return f" Did you mean {spelled[found[0]]!r}?" if found else ""


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.replace("-", "_").split("_") if word)


def listed(options: Iterable[str]) -> str:
    """The hint " There are: x, y." of what can be said instead.

    >>> listed(["age", "sex"])
    ' There are: age, sex.'
    """
    known = list(options)
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    return f" There are: {', '.join(known[:MOST_LISTED])}{more}." if known else ""


# What is wrong with a file's value, in one sentence that names the key as it was written and says what may stand there.

SHOWN = 100  # characters of a value that are repeated
ONE = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a table", list: "a list"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false", dict: "tables", list: "lists"}
RANGE, LOW_HIGH = tuple[float, float], "[low, high]"  # two numbers are a range wherever a file has them
LISTS = (list, tuple, set, frozenset, Sequence)
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
ANYTHING = "a value that TOML can say"


def sentence(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The first problem of values that were held against `model`: a key that is not known before all others.

    `values` are what was read: of a problem's place only what stands in them is repeated.

    >>> class File(BaseModel):
    ...     rounds: int = 3
    >>> try:
    ...     File.model_validate({"rounds": "many"})
    ... except ValidationError as error:
    ...     print(sentence(error, File, {"rounds": "many"}))
    Expected rounds to be a whole number, got 'many'.
    """
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    keys, field = _declared(model, problem["loc"])
    name = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        return unknown(keys[-1], keys_of(model, keys[:-1]), where=keys[:-1])
    if problem["type"] == "missing":
        return f"{name} is missing: add a line {name} = ..."
    value: Any = values
    for key in keys:
        value = value[key]
    places = [each["loc"][len(keys) :] for each in problems if list(each["loc"][: len(keys)]) == keys]
    return wrong(name, _hint(field) if field else Any, value, places)


def wrong(name: str, hint: Any, value: Any, places: Sequence[Sequence[int | str]] = ()) -> str:
    """The sentence for a value that is not of the type `hint`; `places` lead to what is wrong of it, by each alternative.

    >>> wrong("privacy.epsilon", float | tuple[float, ...], [1, "x"], [("float",), ("tuple[float, ...]", 1)])
    "Expected privacy.epsilon to be a number or a list of numbers, got 'x' as item 2."
    >>> wrong("privacy.accountant", Literal["pld", "rdp"], "rdpp")
    "Expected privacy.accountant to be one of 'pld' or 'rdp'; got 'rdpp'. Did you mean 'rdp'?"
    """
    wanted, options = in_words(hint), _options(hint)
    if options and isinstance(value, str):
        return f"Expected {name} to be {wanted}; got {shown(value)}.{nearest(value, options)}"
    inner, where = max((_led(value, place) for place in places), key=lambda found: bool(found[1]), default=(value, ""))
    return f"Expected {name} to be {wanted}, got {shown(inner)}{where}."


def unknown(key: str, known: Iterable[str], *, where: Sequence[str] = ()) -> str:
    """That a file has a key that nothing reads, with the nearest one that something does.

    >>> unknown("epsilom", ["epsilon", "delta"])
    "Unknown key 'epsilom'. Did you mean 'epsilon'?"
    """
    keys, above = list(known), "".join(f"{table}." for table in where)
    hint = nearest(key, keys).replace("mean '", f"mean '{above}") or f" Valid keys: {', '.join(keys)}."
    return f"Unknown key {above + key!r}.{hint}"


def in_words(hint: Any) -> str:
    """What values of a type are called: what a file says, not what Python calls it.

    >>> in_words(float | tuple[float, ...] | str | dict[str, float] | None)
    'a number, a list of numbers, a text or a table of numbers'
    >>> in_words(dict[str, tuple[float, float] | Literal["private"]] | Literal["unscaled"])
    "a table of [low, high] or 'private', or 'unscaled'"
    """
    words = list(dict.fromkeys(_one(part) for part in _parts(hint)))
    within = any(" or " in word for word in words)  # an "or" of its own would run into ours
    return (", or " if within else " or ").join(filter(None, [", ".join(words[:-1]), words[-1]]))


def shown(value: Any) -> str:
    """A value as the sentence repeats it: as a file says it, and not at length.

    >>> shown(True), shown("a" * 200)[-3:]
    ('true', '...')
    """
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def keys_of(model: type[BaseModel], tables: Sequence[str] = ()) -> list[str]:
    """The keys of a model, or of the table within it that the names lead to."""
    for table in tables:
        inner = _table(model.model_fields[table]) if table in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _declared(model: type[BaseModel], place: Sequence[int | str]) -> tuple[list[str], FieldInfo | None]:
    """The names of the tables and of the key that a place begins with, and how that key is declared."""
    keys: list[str] = []
    field, table = None, model
    for part in place:
        if table is None or not isinstance(part, str):
            break
        keys.append(part)
        field = table.model_fields.get(part)
        table = _table(field) if field else None
    return keys, field


def _table(field: FieldInfo) -> type[BaseModel] | None:
    """The table that a key holds, where it holds one."""
    found = [part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
    return found[0] if found else None


def _led(value: Any, place: Sequence[int | str]) -> tuple[Any, str]:
    """The part of a value that a place leads to, and where it stands; what names an alternative leads nowhere."""
    where = ""
    for part in place:
        if isinstance(part, str) and isinstance(value, Mapping) and part in value:
            value, where = value[part], f" under {part}"
        elif isinstance(part, int) and isinstance(value, list | tuple) and part < len(value):
            value, where = value[part], f" as item {part + 1}"
    return value, where


def _hint(field: FieldInfo) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _parts(hint: Any) -> list[Any]:
    """The alternatives of a type, without None; a bound that stands around all of them stays with each."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        return [Annotated[(part, *marks)] for part in _parts(inner)]
    if get_origin(hint) in (Union, types.UnionType):
        return [each for part in get_args(hint) if part is not type(None) for each in _parts(part)]
    return [hint]


def _one(hint: Any) -> str:
    marks: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        marks += tuple(more)
    if get_origin(hint) is Literal:
        return f"{'one of ' * (len(get_args(hint)) > 1)}{_quoted(get_args(hint))}"
    several = _of_several(hint)
    if several:
        return several
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "a table"
    return f"{ONE.get(hint, ANYTHING)}{_bounds(marks)}"


def _of_several(hint: Any) -> str:
    """Of a list or a table, what it holds; nothing for what is neither."""
    if hint == RANGE:
        return LOW_HIGH
    origin, inside = get_origin(hint), [part for part in get_args(hint) if part is not Ellipsis]
    if origin in LISTS:
        return f"a list of {_plural(inside[0])}" if inside else "a list"
    return f"a table of {_plural(inside[1])}" if origin in (dict, Mapping) and inside else ""


def _plural(hint: Any) -> str:
    words = []
    for part in _parts(hint):
        bare = get_args(part)[0] if get_origin(part) is Annotated else part
        if bare == RANGE or get_origin(bare) is Literal:
            words += [LOW_HIGH] if bare == RANGE else map(repr, get_args(bare))
            continue
        bare = {tuple: list, Mapping: dict}.get(get_origin(bare) or bare, get_origin(bare) or bare)
        words.append(SEVERAL.get(bare, "values"))
    words = list(dict.fromkeys(words))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _bounds(marks: Sequence[Any]) -> str:
    """The bounds that a type names, as in " of at least 0"."""
    inner = [each for mark in marks for each in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    found = [f"{words} {getattr(mark, end)}" for mark in inner for end, words in BOUNDS.items() if hasattr(mark, end)]
    return f" of {' and '.join(found)}" if found else ""


def _options(hint: Any) -> list[str]:
    """The texts that a type lists, where it lists what may be said."""
    found = [part for part in _parts(hint) if get_origin(part) is Literal]
    return [value for part in found for value in get_args(part) if isinstance(value, str)]


def _quoted(values: Sequence[Any]) -> str:
    words = [repr(value) for value in values]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
