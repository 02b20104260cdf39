"""Checks of arguments and of files in one voice: `check.positive(clip=clip)` raises "Expected clip > 0, got -1.0."."""

import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from tacit.errors import BadInput

NEAR = 0.7  # of difflib's likeness: one wrong, missing or exchanged letter in five, as in "mnits", is 0.8
BEGINNING = 3  # letters that two names must begin with for one to stand for the other
LONGEST = 100  # characters of a value that are repeated
MOST_LISTED = 20  # names in a sentence
MOST_TEXT = 500  # characters of a refusal that may quote a message


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


def _hold(values: dict[str, float], wanted: str, holds: Callable[[float], bool]) -> None:
    finite(**values)
    for name, value in values.items():
        if not holds(value):
            raise BadInput(f"Expected {wanted.format(name)}, got {value!r}.")


def positive(**values: float) -> None:
    """Refuses what is not a finite number above zero."""
    _hold(values, "{} > 0", lambda value: value > 0)


def at_least(low: float, **values: float) -> None:
    """Refuses what is below `low`."""
    _hold(values, f"{{}} >= {low}", lambda value: value >= low)


def probability(**values: float) -> None:
    """Refuses what is not strictly between 0 and 1 (a delta)."""
    _hold(values, "0 < {} < 1", lambda value: 0 < value < 1)


def rate(**values: float) -> None:
    """Refuses what is not in (0, 1] (a sampling rate)."""
    _hold(values, "0 < {} <= 1", lambda value: 0 < value <= 1)


def one_of(options: Iterable[str], **values: str) -> None:
    """Refuses a name that is not among the options, and points at the nearest one."""
    known = list(options)
    for name, value in values.items():
        if value not in known:
            raise BadInput(f"Expected {name} to be one of {', '.join(known)}; got {value!r}.{nearest(value, known)}")


SAME = {  # what others call it: words of the field, and ours
    "mean": ("fedavg", "fedsgd", "average"),
    "local": ("dp-sgd", "dpsgd", "ldp"),
    "central": ("dp-fedavg", "dpfedavg", "cdp"),
    "distributed": ("ddp", "secagg-dp"),
    "masks": ("secagg", "secagg+", "secure-aggregation"),
    "paillier": ("he", "homomorphic"),
    "record": ("example", "sample", "row", "instance"),
    "person": ("patient", "user", "subject"),
    "client": ("site", "silo", "hospital", "device"),
    "logr": ("logistic", "logistic-regression", "linear"),
    "local_epochs": ("epochs",),
    "run": ("train", "trian", "fit"),
}
ELSEWHERE = {
    "fedprox": "train.proximal = 0.1",
    "scaffold": 'train.control = "scaffold"',
    "fedavgm": 'train.server_optimizer = "momentum"',
    "fedadam": 'train.server_optimizer = "adam"',
    "optimizer": "train.server_optimizer at the server; clients use SGD with train.learning_rate",
}


def nearest(word: str, options: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" for the closest option, whatever its capitals, or nothing where none is near. Near is what
    a slip of the hand makes of a name, a name that the other begins with, the one whose words begin so, or what others call it.

    >>> nearest("AGE", ["sex", "age", "Average"]), nearest("lr", ["rounds", "learning_rate"])
    (" Did you mean 'age'?", " Did you mean 'learning_rate'?")
    >>> nearest("rest_bp", ["chest_pain", "age"])
    ''
    >>> nearest("FedAvg", ["mean", "pfa"]), nearest("fedprox", ["mean", "pfa"])
    (" Did you mean 'mean'?", ' Here that is train.proximal = 0.1.')
    """
    spelled = {option.casefold(): option for option in reversed(list(options))}
    said, known = str(word).casefold(), list(spelled)[::-1]
    begun = [
        name
        for name in known
        if min(len(said), len(name)) >= BEGINNING and (name.startswith(said) or said.startswith(name))
    ]
    initials = {name: "".join(part[0] for part in name.replace("-", "_").split("_") if part) for name in known}
    abbreviated = [name for name in known if len(said) > 1 and said == initials[name]]
    called = [name for name in known if said.replace("_", "-") in SAME.get(name, ())]
    if not called and said in ELSEWHERE:
        return f" Here that is {ELSEWHERE[said]}."
    found = called or difflib.get_close_matches(said, known, n=1, cutoff=NEAR) or begun or abbreviated
    return f" Did you mean {spelled[found[0]]!r}?" if found else ""


def listed(options: Iterable[str]) -> str:
    """The hint of what can be said instead.

    >>> listed(["age", "sex"])
    ' There are: age, sex.'
    """
    known = list(options)
    return f" There are: {some(known, MOST_LISTED)}." if known else ""


def some(names: Sequence[str], most: int) -> str:
    """The first of several names, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def printable(text: str, most: int = MOST_TEXT) -> str:
    """A text that may quote what somebody has sent, for a terminal and a log: printable, and cut short."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:most])


def many(count: int, what: str) -> str:
    """
    >>> many(1, "run"), many(0, "other release")
    ('1 run', '0 other releases')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def unknown(key: str, known: Iterable[str], *, where: Sequence[str] = (), kind: str = "") -> str:
    """The sentence for a key that a table (of this kind) does not have, or that would be a part of a value.

    >>> unknown("epsilom", ["epsilon", "delta"])
    "Unknown key 'epsilom'. Did you mean 'epsilon'?"
    >>> unknown("epsilon.north", ["epsilon"], where=["privacy"])
    "'privacy.epsilon.north' cannot be set alone: give the whole of privacy.epsilon, a table as {north = ..., ...}."
    """
    keys, above = list(dict.fromkeys(known)), "".join(f"{table}." for table in where)
    whole, _, part = key.partition(".")
    if part and whole in keys and not any(one.startswith(f"{whole}.") for one in keys):
        return (
            f"'{above}{key}' cannot be set alone: give the whole of {above}{whole}, a table as {{{part} = ..., ...}}."
        )
    hint = nearest(key, keys).replace("mean '", f"mean '{above}") or f" Valid keys: {', '.join(keys)}."
    return f"Unknown key {above + key!r}{kind and f' for {kind}'}.{hint}"


# What is wrong with a file's value, in one sentence that names the key as it was written and says what may stand there.

ONE = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a table", list: "a list"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false", dict: "tables", list: "lists"}
RANGE, LOW_HIGH = tuple[float, float], "[low, high]"  # two numbers are a range wherever a file has them
LISTS = (list, tuple, set, frozenset, Sequence)
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
ANYTHING = "a value that TOML can say"

# what is wrong with a value whose type is right: pydantic's own words say it
NO_TYPE = ("string_pattern_mismatch", "string_too_short", "string_too_long", "multiple_of", "assertion_error")


def sentence(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The first problem of values that were held against `model`: a key that is not known before all others. `values` are what
    was read: of a problem's place only what stands in them is repeated.

    >>> class File(BaseModel):
    ...     rounds: int = 3
    >>> try:
    ...     File.model_validate({"rounds": "many"})
    ... except ValidationError as error:
    ...     print(sentence(error, File, {"rounds": "many"}))
    Expected rounds to be a whole number, got 'many'.
    """
    problems = error.errors(include_url=False)
    places = [_declared(model, each["loc"]) for each in problems]
    # an unknown key before all others, and of a value's alternatives the one that it comes nearest to
    order = [(each["type"] != "extra_forbidden", -len(keys)) for each, (keys, *_) in zip(problems, places, strict=True)]
    problem, (keys, field, _, above) = min(zip(order, problems, places, strict=True), key=lambda each: each[0])[1:]
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return _foreign_key(keys, above)
    name = ".".join(keys)
    if problem["type"] == "missing":
        return f"{name} is missing: add a line {name} = ..."
    value: Any = values
    for key in keys:
        value = value[key]
    if problem["type"] in NO_TYPE:
        reason = problem["msg"]
        return f"{name} cannot be {shown(value)}: {reason[:1].lower()}{reason[1:]}."
    if problem["type"].startswith("union_tag") and field is not None:
        return _no_kind(name, value, kinds_of(field))
    inside = [rest for path, _, rest, _ in places if path == keys]
    return wrong(name, hint_of(field) if field else Any, value, inside)


def _foreign_key(keys: Sequence[str], above: "Table") -> str:
    own = above.kinds.get(above.tag)
    kind, key = in_kind(own) if own and len(above.kinds) > 1 else "", keys[-1]
    others = [in_kind(one) for one in above.kinds.values() if key in one.model_fields]
    if others:
        return f"Unknown key {'.'.join(keys)!r} for {kind}: it is a key of {' and of '.join(filter(None, others))}."
    return unknown(key, own.model_fields if own else (), where=keys[:-1], kind=kind)


def _no_kind(name: str, value: Any, kinds: Mapping[str, type[BaseModel]]) -> str:
    said = value.get("kind") if isinstance(value, Mapping) else value
    name = f"{name}.kind" if isinstance(value, Mapping) else name
    fields = [one.model_fields["kind"].annotation for one in kinds.values()]
    known = list(dict.fromkeys(word for hint in fields for word in _options(hint)))
    if str in fields:
        known.append("package.module:name")
    if said is None:
        return f"{name} is missing: say one of {', '.join(known)}."
    if not isinstance(said, str):
        return f"Expected {name} to be {'a text' if isinstance(value, Mapping) else 'a table'}, got {shown(said)}."
    return f"Expected {name} to be one of {', '.join(known)}; got {shown(said)}.{nearest(said, known)}"


def in_kind(model: type[BaseModel]) -> str:
    """What a file says to have a table of this kind: the keys that have but one value.

    >>> class Central(BaseModel):
    ...     kind: Literal["central"]
    >>> in_kind(Central)
    'kind = "central"'
    """
    known = {key: get_args(field.annotation) for key, field in model.model_fields.items() if _is_literal(field)}
    return ", ".join(f'{key} = "{said[0]}"' for key, said in known.items() if len(said) == 1) or "this kind"


def _is_literal(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal


def kinds_of(field: FieldInfo | None) -> dict[str, type[BaseModel]]:
    """The tables that a key may hold, by their tag; "" where there is but one."""
    found: dict[str, type[BaseModel]] = {}
    for part in _parts(field.annotation) if field else ():
        bare, *marks = get_args(part) if get_origin(part) is Annotated else (part,)
        if isinstance(bare, type) and issubclass(bare, BaseModel):
            named = _options(bare.model_fields["kind"].annotation) if "kind" in bare.model_fields else []
            tags = [mark.tag for mark in marks if isinstance(mark, Tag)] or named
            found[tags[0] if len(tags) == 1 else ""] = bare
    return found if len(found) != 1 else {"": next(iter(found.values()))}


def _stands_beside(field: FieldInfo | None) -> bool:
    bare = [
        get_args(part)[0] if get_origin(part) is Annotated else part
        for part in _parts(field.annotation if field else None)
    ]
    tables = [isinstance(part, type) and issubclass(part, BaseModel) for part in bare]
    return any(tables) and not all(tables)


@dataclass
class Table:
    """Where a place of a file has come to: the kinds of the table there, and which of them it is."""

    kinds: dict[str, type[BaseModel]]
    tag: str = ""
    alternative: bool = False  # to a number or a text: the next part of a place says which of them it is


def _declared(
    model: type[BaseModel], place: Sequence[int | str]
) -> tuple[list[str], FieldInfo | None, Sequence[int | str], Table]:
    keys: list[str] = []
    field, inside, above = None, Table({"": model}), Table({})
    for at, part in enumerate(place):
        if inside.alternative:
            inside.alternative = False
            if any(each.__name__ in str(part) for each in inside.kinds.values()):
                continue
            return keys, field, place[at:], above
        if len(inside.kinds) > 1 and not inside.tag:
            inside.tag = str(part)
            continue
        table = inside.kinds.get(inside.tag)
        if table is None or not isinstance(part, str):
            return keys, field, place[at:], above
        keys.append(part)
        field, above = table.model_fields.get(part), inside
        inside = Table(kinds_of(field), alternative=_stands_beside(field))
    return keys, field, (), above


def wrong(name: str, hint: Any, value: Any, places: Sequence[Sequence[int | str]] = ()) -> str:
    """The sentence for a value that is not of the type `hint`; `places` lead to what is wrong of it, by each alternative.

    >>> wrong("privacy.epsilon", float | tuple[float, ...], [1, "x"], [("float",), ("tuple[float, ...]", 1)])
    "Expected privacy.epsilon to be a number or a list of numbers, got 'x' as item 2."
    >>> wrong("privacy.unit", Literal["record", "client"], "clients")
    "Expected privacy.unit to be one of 'record' or 'client'; got 'clients'. Did you mean 'client'?"
    """
    wanted, options = in_words(hint), _options(hint)
    if options and isinstance(value, str):
        return f"Expected {name} to be {wanted}; got {shown(value)}.{nearest(value, options)}"
    inner, where = max((_led(value, place) for place in places), key=lambda found: bool(found[1]), default=(value, ""))
    return f"Expected {name} to be {wanted}, got {shown(inner)}{where}."


def in_words(hint: Any) -> str:
    """What values of a type are called: what a file says, not what Python calls it.

    >>> in_words(float | tuple[float, ...] | str | dict[str, float] | None)
    'a number, a list of numbers, a text or a table of numbers'
    >>> in_words(dict[str, tuple[float, float] | Literal["private"]] | Literal["unscaled"])
    "a table of [low, high] or 'private', or 'unscaled'"
    """
    words = list(dict.fromkeys(_one(part) for part in _parts(hint)))
    within = any(" or " in word for word in words)  # an "or" of its own would run into ours
    return _joined(words, ", or " if within else " or ")


def shown(value: Any) -> str:
    """A value as the sentence repeats it: as a file says it, and not at length.

    >>> shown(True), shown("a" * 200)[-3:]
    ('true', '...')
    """
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _joined(words: Sequence[str], last: str = " or ") -> str:
    return last.join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _led(value: Any, place: Sequence[int | str]) -> tuple[Any, str]:
    where = ""
    for part in place:
        if isinstance(part, str) and isinstance(value, Mapping) and part in value:
            value, where = value[part], f" under {part}"
        elif isinstance(part, int) and isinstance(value, list | tuple) and part < len(value):
            value, where = value[part], f" as item {part + 1}"
    return value, where


def hint_of(field: FieldInfo) -> Any:
    """The type of a key, with its bounds."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _parts(hint: Any) -> list[Any]:
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
        return f"{'one of ' * (len(get_args(hint)) > 1)}{_joined([repr(value) for value in get_args(hint)])}"
    if hint == RANGE:
        return LOW_HIGH
    origin, inside = get_origin(hint), [part for part in get_args(hint) if part is not Ellipsis]
    if origin in LISTS:
        return f"a list of {_plural(inside[0])}" if inside else "a list"
    if origin in (dict, Mapping) and inside:
        return f"a table of {_plural(inside[1])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "a table"
    return f"{ONE.get(hint, ANYTHING)}{_bounds(marks)}"


def _plural(hint: Any) -> str:
    words = []
    for part in _parts(hint):
        bare = get_args(part)[0] if get_origin(part) is Annotated else part
        if bare == RANGE or get_origin(bare) is Literal:
            words += [LOW_HIGH] if bare == RANGE else map(repr, get_args(bare))
            continue
        bare = {tuple: list, Mapping: dict}.get(get_origin(bare) or bare, get_origin(bare) or bare)
        words.append(SEVERAL.get(bare, "values"))
    return _joined(list(dict.fromkeys(words)))


def _bounds(marks: Sequence[Any]) -> str:
    inner = [each for mark in marks for each in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    found = [f"{words} {getattr(mark, end):g}" for end, words in BOUNDS.items() for mark in inner if hasattr(mark, end)]
    return (
        f" of {' and '.join(found)}" if found and found[0].startswith("at") else f" {' and '.join(found)}" * bool(found)
    )


def _options(hint: Any) -> list[str]:
    found = [get_args(part)[0] if get_origin(part) is Annotated else part for part in _parts(hint)]
    literals = [part for part in found if get_origin(part) is Literal]
    return [value for part in literals for value in get_args(part) if isinstance(value, str)]
